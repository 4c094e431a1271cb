// Whether numbers are still numbers before they are saved.
#pragma once

#include <cstddef>
#include <string>

#include "core/dtype.h"

namespace hone {

/// Whether none of `count` elements (float32, bfloat16 or float16) is NaN or infinite.
bool all_finite(DType dtype, const std::byte* elements, int64_t count);

/// Error(kNumbersLost) with `name` if one of `count` elements (float32, bfloat16 or float16) is NaN or infinite.
void require_finite(const std::string& name, DType dtype, const std::byte* elements, int64_t count);

}  // namespace hone
