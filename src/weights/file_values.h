// FileValues: reads frozen values that stay in the checkpoint's files, for each use of their group, with threads of its
// own. On a CPU they are read to the slot itself; to a GPU they go through small pinned buffers. Reading overlaps with
// the groups that are computed meanwhile (dist/exchange/weight_ring.h asks for two ahead), and the system's page cache
// keeps as much of the files as memory allows.
#pragma once

#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "params/value_reader.h"
#include "weights/checkpoint.h"
#include "weights/piece_loader.h"

namespace hone {

class FileValues final : public ValueReader {
 public:
  /// The checkpoint and its map must outlive this.
  FileValues(const Checkpoint& checkpoint, const CheckpointMap& map);
  /// Reads that were begun end first.
  ~FileValues() override;
  FileValues(const FileValues&) = delete;
  FileValues& operator=(const FileValues&) = delete;

  /// Reading is a UserError if a file has changed since it was opened.
  void bring(Stream& stream, const Bucket& bucket) override;

 private:
  struct Read {
    const Bucket* bucket;
    std::future<void> slot_free;
    std::promise<void> done;
  };
  /// Where the values of a bucket come from and go to.
  struct Sources {
    std::vector<LoadedSource> list;
    std::vector<LoadedPiece> pieces;
  };
  void serve();
  void read(const Bucket& bucket);
  const Sources& sources(const Bucket& bucket);

  const Checkpoint& checkpoint_;
  const CheckpointMap& map_;
  ThreadPool pool_;
  PieceLoaders loaders_;
  std::map<const Bucket*, Sources> sources_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Read> reads_;
  bool stopping_ = false;
  std::thread server_;  // last: it uses the others
};

}  // namespace hone
