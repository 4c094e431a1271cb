// GraphCache: repeated work of a stream, recorded once as a CUDA graph. One call queues a graph of thousands of
// kernels; queuing small kernels one by one takes the host longer than the GPU needs to run them.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "core/cuda/cuda_graph.h"
#include "core/stream/stream.h"

namespace hone {

enum class GraphUse {
  kNever,
  kAuto,    ///< if the work can be recorded
  kAlways,  ///< throws if the work cannot be recorded
};

class GraphCache {
 public:
  /// All inputs that the launches depend on, except the contents of device memory.
  using Key = std::vector<int64_t>;

  /// Work is recorded when its key occurs for the second time, so unique shapes cost nothing. Of the kMostKeys most
  /// recent keys, the last kMostGraphs keep their graphs.
  static constexpr size_t kMostKeys = 64, kMostGraphs = 16;

  /// `settled` returns whether all data that work reads has arrived, or the stream waits for it. Until then run() calls
  /// the work, which waits for each value before it reads it: a recording does not wait.
  GraphCache(Stream& stream, GraphUse use, std::function<bool()> settled)
      : stream_(stream), use_(use), settled_(std::move(settled)) {}

  /// Queues the launches of `work`: calls it or, if the launches of this key are recorded, replays the recording.
  /// `work` must only launch (no uploads, no waits), at the same addresses for the same key. It must not change host
  /// state, or the caller must set that state again; a call may be repeated. On a CPU, while a profiler is attached to
  /// the stream, and until all is settled, run() calls `work`.
  void run(const Key& key, const std::function<void()>& work);

  /// Removes all entries: call before addresses or launches change.
  void clear() { entries_.clear(); }

  /// Numbers of the calls of run(), by how they were served.
  struct Counts {
    int64_t called = 0;    ///< work was called
    int64_t recorded = 0;  ///< work was called and recorded, and the recording was launched
    int64_t replayed = 0;  ///< the recording was launched without a call
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Entry {
    Key key;
    std::unique_ptr<CudaGraph> graph;  // null: the key has occurred once
  };

  void call(const std::function<void()>& work);
  std::unique_ptr<CudaGraph> record(const std::function<void()>& work);
  void drop_oldest();

  Stream& stream_;
  GraphUse use_;
  std::function<bool()> settled_;
  std::list<Entry> entries_;  // most recently used first
  Counts counts_;
};

}  // namespace hone
