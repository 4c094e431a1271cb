#include "weights/tensor_pieces.h"

#include <algorithm>
#include <utility>

namespace hone {

namespace {

/// Large enough for full speed over PCIe, small beside any host's memory.
constexpr size_t kReadBytes = size_t{16} << 20;

std::byte* address_of(const Tensor& tensor, int64_t element) {
  return tensor.data + static_cast<size_t>(element) * size_of(tensor.dtype);
}

}  // namespace

std::byte* PieceWriter::open(const Tensor& tensor, int64_t first, int64_t count) {
  HONE_ASSERT(first >= 0 && first + count <= tensor.numel());
  if (tensor.device.kind == DeviceKind::kCpu) return address_of(tensor, first);
  HONE_ASSERT(tensor.device == device_);
  const size_t bytes = static_cast<size_t>(count) * size_of(tensor.dtype);
  HONE_ASSERT(bytes <= largest_);
  commit();
  if (chunks_.empty()) {
    for (int i = 0; i < 2; ++i) chunks_.emplace_back(device_.index, largest_);
  }
  current_ = 1 - current_;
  chunks_[current_].wait();
  destination_ = address_of(tensor, first);
  bytes_ = bytes;
  return chunks_[current_].data();
}

void PieceWriter::commit() {
  if (destination_ != nullptr) chunks_[current_].start_upload(std::exchange(destination_, nullptr), bytes_);
}

void PieceWriter::finish() {
  commit();
  for (PinnedChunk& chunk : chunks_) chunk.wait();
}

void PieceReader::read(const Tensor& tensor, int64_t first, int64_t count, const Use& use) {
  HONE_ASSERT(first >= 0 && first + count <= tensor.numel());
  if (count == 0) return;
  if (tensor.device.kind == DeviceKind::kCpu) return use(address_of(tensor, first), count);
  if (chunks_.empty()) {
    for (int i = 0; i < 2; ++i) chunks_.emplace_back(tensor.device.index, kReadBytes);
  }
  const auto element = size_of(tensor.dtype);
  const auto piece = static_cast<int64_t>(kReadBytes / element);
  const auto start = [&](int64_t begin) {
    const auto bytes = static_cast<size_t>(std::min(piece, count - begin)) * element;
    chunks_[static_cast<size_t>(begin / piece % 2)].start_download(address_of(tensor, first + begin), bytes);
  };
  start(0);
  for (int64_t begin = 0; begin < count; begin += piece) {
    PinnedChunk& chunk = chunks_[static_cast<size_t>(begin / piece % 2)];
    chunk.wait();
    if (begin + piece < count) start(begin + piece);
    use(chunk.data(), std::min(piece, count - begin));
  }
}

}  // namespace hone
