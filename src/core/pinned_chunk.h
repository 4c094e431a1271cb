// PinnedChunk: host memory through which a thread's bytes pass on their way to or from a GPU, beside the work of the
// streams and of other chunks.
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

  /// Starts copying the chunk's bytes [0, bytes) to device memory; they stay as they are until wait().
  void start_upload(std::byte* destination, size_t bytes);
  /// Starts filling the chunk's bytes [0, bytes) from device memory; they are there after wait().
  void start_download(const std::byte* source, size_t bytes);
  /// Waits for the copies that were started, and for nothing else.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hone
