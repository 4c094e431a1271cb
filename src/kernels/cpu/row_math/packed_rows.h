// Packed matrices (formats/packed_weights.h) as float32 or bfloat16, with the active instruction set.
#pragma once

#include "core/base/tensor.h"
#include "formats/packed_weights.h"

namespace hone {

/// Elements [first, first + count) of a stack of packed matrices, whose chunks follow one another, to elements [at, at
/// + count) of dst, float32 or bfloat16, rounded to nearest, ties to even. Pure; safe from any thread.
void unpack_elements(const PackedLayout& layout, const std::byte* chunks, int64_t first, int64_t count,
                     const Tensor& dst, int64_t at);

}  // namespace hone
