// Rows sorted by expert, and the experts' matrices, as operands of products.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/gemm.h"

namespace hone::cpu {

/// Rows sorted by expert: contiguous (index null), or gathered from [T, n] by token. Their columns start at col_begin.
struct RowMatrix {
  Tensor tensor;
  const int32_t* index = nullptr;
  int64_t col_begin = 0;

  MatrixView from(int64_t row) const {
    MatrixView view = matrix(tensor);
    const int64_t first = (index ? 0 : row * view.row_stride) + col_begin;
    view.data = tensor.data + static_cast<size_t>(first) * size_of(tensor.dtype);
    if (index) view.row_index = index + row;
    return view;
  }
};

/// Matrix e of a stack [E, rows, cols].
inline Tensor expert_tensor(const Tensor& stack, int64_t e) {
  return stack.rows(e, 1).reshaped({stack.shape[1], stack.shape[2]});
}
inline MatrixView expert_matrix(const Tensor& stack, int64_t e) { return matrix(expert_tensor(stack, e)); }

}  // namespace hone::cpu
