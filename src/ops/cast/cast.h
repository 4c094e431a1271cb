// cast: converts between float32 and bfloat16; copy: copies bytes; fill_zero: zeroes a tensor.
#pragma once

#include "core/stream/context.h"

namespace hone {

/// dst[i] = src[i] in dst's dtype, rounded to nearest even. The tensors have the same number of elements, are float32
/// or bfloat16, and do not overlap. Deterministic.
struct CastArgs {
  Tensor src;
  Tensor dst;
};

void cast(const Context& context, const CastArgs& args);
inline void cast(const Context& context, Tensor src, Tensor dst) { cast(context, CastArgs{src, dst}); }

/// Copies the bytes of src to dst, which have equal dtype and number of elements and do not overlap.
void copy(const Context& context, Tensor src, Tensor dst);

/// Sets every byte of a tensor of any dtype to zero.
void fill_zero(const Context& context, const Tensor& tensor);

namespace cpu {
void cast(const Context& context, const CastArgs& args);
void copy(const Context& context, const CastArgs& args);
void fill_zero(const Context& context, const Tensor& tensor);
}  // namespace cpu

namespace cuda {
void cast(const Context& context, const CastArgs& args);
void copy(const Context& context, const CastArgs& args);
void fill_zero(const Context& context, const Tensor& tensor);
}  // namespace cuda

}  // namespace hone
