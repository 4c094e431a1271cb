#include "core/memory/arena.h"

#include <fmt/format.h>

#include <algorithm>

namespace hone {

/// A dry arena starts at a non-null address, so views of its tensors are `defined`.
std::byte* Arena::base() const { return dry_ ? reinterpret_cast<std::byte*>(Buffer::kAlignment) : buffer_.data(); }

Tensor Arena::taken_since(size_t mark) const {
  HONE_ASSERT(mark <= top_, name_);
  return {base() + mark, DType::kU8, {static_cast<int64_t>(top_ - mark)}, device_};
}

Tensor Arena::take(Shape shape, DType dtype) {
  Tensor tensor{base() + top_, dtype, shape, device_};
  const size_t bytes = (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  HONE_ASSERT(dry_ || top_ + bytes <= buffer_.size(),
              fmt::format("arena '{}' has {} bytes, {} are needed", name_, buffer_.size(), top_ + bytes));
  top_ += bytes;
  high_water_ = std::max(high_water_, top_);
  return tensor;
}

void Arena::release(size_t mark) {
  HONE_ASSERT(mark <= top_, name_);
  top_ = mark;
}

void Arena::begin_dry() {
  buffer_.reset();
  dry_ = true;
  top_ = high_water_ = 0;
}

void Arena::reserve(size_t bytes) {
  top_ = 0;
  buffer_ = Buffer(device_, std::max(bytes, kAlignment));
  dry_ = false;
  high_water_ = 0;
}

}  // namespace hone
