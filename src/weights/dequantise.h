// Writing dequantised numbers in the dtype that the caller asks for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "kernels/cpu/row_math/row_math.h"

namespace hone {

/// Calls make(begin, count, floats) for parts of [0, count), each of which writes `count` float32 numbers, and puts
/// them to destination[begin, begin + count) as float32 or bfloat16.
template <class Make>
void dequantise(int64_t count, DType dtype, std::byte* destination, const Make& make) {
  if (dtype == DType::kF32) return make(int64_t{0}, count, reinterpret_cast<float*>(destination));
  HONE_ASSERT(dtype == DType::kBF16);
  constexpr int64_t kPart = 1024;  // stays in the first-level cache
  float floats[kPart];
  for (int64_t begin = 0; begin < count; begin += kPart) {
    const int64_t n = std::min(kPart, count - begin);
    make(begin, n, floats);
    row_math().narrow(floats, reinterpret_cast<BFloat16*>(destination) + begin, n);
  }
}

}  // namespace hone
