// cast: copies between float32 and bfloat16; copy: copies as they are; fill_zero: clears a tensor.
#pragma once

#include "core/context.h"

namespace hone {

/// dst[i] = src[i] in dst's dtype, to nearest, ties to even. Equal numbers of elements; each float32 or bfloat16; the
/// tensors do not overlap. Deterministic.
struct CastArgs {
  Tensor src;
  Tensor dst;
};

void cast(const Context& context, const CastArgs& args);
inline void cast(const Context& context, Tensor src, Tensor dst) { cast(context, CastArgs{src, dst}); }

/// Copies the bytes of src to dst, of equal dtype and number of elements; they do not overlap.
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
