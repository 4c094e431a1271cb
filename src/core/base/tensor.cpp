#include "core/base/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace hone {

std::string Shape::to_string() const {
  return fmt::format("[{}]", fmt::join(dims_.begin(), dims_.begin() + rank_, ", "));
}

Tensor Tensor::rows(int64_t begin, int64_t count) const {
  HONE_ASSERT(shape.rank() >= 1 && begin >= 0 && count >= 0 && begin + count <= shape[0]);
  Tensor view = *this;
  view.shape = Shape{count};
  for (int i = 1; i < shape.rank(); ++i) view.shape.push_back(shape[i]);
  const int64_t row = shape[0] == 0 ? 0 : numel() / shape[0];
  view.data += static_cast<size_t>(begin * row) * size_of(dtype);
  return view;
}

Tensor Tensor::reshaped(Shape other) const {
  HONE_ASSERT(other.numel() == numel(), shape.to_string() + " as " + other.to_string());
  Tensor view = *this;
  view.shape = other;
  return view;
}

}  // namespace hone
