// PinnedChunk: pinned host memory for a thread's copies to or from a GPU, concurrent with the work of streams and of
// other chunks.
#pragma once

#include <cstddef>
#include <memory>

namespace hone {

class PinnedChunk {
 public:
  PinnedChunk(int device, size_t bytes);
  /// Waits for its copies.
  ~PinnedChunk();
  PinnedChunk(PinnedChunk&& other) noexcept;
  PinnedChunk(const PinnedChunk&) = delete;
  PinnedChunk& operator=(const PinnedChunk&) = delete;

  std::byte* data() const;
  size_t size() const;

  /// Starts copying the chunk's bytes [0, bytes) to device memory; do not change them until wait().
  void start_upload(std::byte* destination, size_t bytes);
  /// Starts copying device memory to the chunk's bytes [0, bytes); they are valid after wait().
  void start_download(const std::byte* source, size_t bytes);
  /// Waits only for the copies of this chunk.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hone
