// Sizes of a shape as the headers of files list them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/tensor.h"

namespace hone {

inline std::vector<int64_t> dims_of(const Shape& shape) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return dims;
}

}  // namespace hone
