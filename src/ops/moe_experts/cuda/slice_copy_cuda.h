// Copies between stacks of matrices of different layouts and dtypes: converts adapters to operands of products, and
// gradients of those operands to gradients of adapters. CUDA only.
#pragma once

#include "core/base/tensor.h"
#include "core/stream/context.h"

namespace hone::cuda {

/// Element (e, x, y) of a stack is at e · expert + x · row + y · column.
struct SliceStrides {
  int64_t expert, row, column;
};

/// dst(e, x, y) = scale · src(e, x, y) + beta · dst(e, x, y) for e < experts, x < rows, y < columns; beta is 1 if
/// `adds`. Columns of dst are contiguous; in src either columns or rows are.
struct SliceCopy {
  int64_t experts, rows, columns;
  SliceStrides from, to;
  float scale = 1.0f;
  bool adds = false;
};

/// From element `from_at` of src to element `to_at` of dst on; each is float32 or bfloat16.
void copy_slice(const Context& context, const SliceCopy& copy, const Tensor& src, int64_t from_at, const Tensor& dst,
                int64_t to_at);

}  // namespace hone::cuda
