// RankWriters: the ranks of a run write the tensor files of a checkpoint together. Each writes the parts that deal()
// (weights/tensor_file.h) gives it, straight from its memory into the first rank's files. State that a writer lacks
// travels to it alone, in pieces of 16 MiB: while one is used, the next one travels.
//
// Memory of a rank: on a GPU four threads with two pinned buffers of 16 MiB; where state travels, 32 MiB on the device,
// and in host memory one matrix in both orders, or the parameters of one tensor of an adapter.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "core/memory/arena.h"
#include "dist/transport/communicator.h"
#include "weights/tensor_file.h"

namespace hone {

class RankWriters {
 public:
  /// Constructed on every rank with the same files. The first `holders` ranks keep all state among them, and write: the
  /// others are in groups that are replicas of theirs. All arguments must outlive it.
  RankWriters(Communicator& communicator, int holders, Stream& stream, ThreadPool& pool,
              std::span<const TensorFile> files);

  /// On the first rank: writes the files into `folder`, with the other ranks, which are in serve(). All bytes are on
  /// the disk when it returns. An error of any rank ends the group (Control::fail) and is thrown here.
  void write(const std::filesystem::path& folder, FileChecksums& checksums);
  /// On the other ranks.
  void serve();

 private:
  /// A piece of the state of a part on its way to the part's writer.
  struct Piece {
    const FilePart* part;
    StateRange state;
    size_t range, at;  ///< index in the part's state, and the elements before it there
    bool first, last;  ///< whether it is the first or last of the part
  };

  void write_parts(PartWriter& writer);
  void write_travelling(PartWriter& writer, std::span<const FilePart> parts);
  /// Starts the transfer of a piece; returns the communicator's calls so far.
  int64_t start(const Piece& piece, const Tensor& staged);
  void write_held(PartWriter& writer, std::span<const FilePart> parts);
  const TensorSource& source_of(const FilePart& part) const;
  std::vector<Piece> pieces_of(std::span<const FilePart> parts) const;

  Communicator& communicator_;
  int holders_;
  Stream& stream_;
  ThreadPool& pool_;
  const std::span<const TensorFile> files_;
  Arena scratch_;  // for copies, which need none
};

}  // namespace hone
