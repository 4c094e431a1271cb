// gemm: the matrix product of all CPU ops (linear, experts, attention, head, LoRA).
//
//   C[m, n] = row_scale[m] * alpha * A[m, k] x B[k, n] + bias[n] + beta * C + addend[m, n]
//
// Products are exact or float32, sums float32, the terms added from left to right; a bf16 C is rounded once, at the
// end. Products of two bf16 operands run on AMX if the CPU has it (Isa::kAmx), and so do products with float32 operands
// that `may_round` allows to be rounded to bf16 first. All others convert bf16 to float32 while packing.
//
// Determinism. An element of C depends only on its row of A, its column of B, k, the dtypes and the instruction set. It
// does not depend on the number of threads, on m or n, on the other rows, on strides, on gathering, or on whether the
// product ran alone, in a group or serially:
//   float32: k is divided into blocks of kGemmDepth; each block is one chain of multiply-adds in increasing k,
//            and blocks are added in increasing order.
//   AMX:     k is divided into steps of 32, whose 16 even and 16 odd products are a chain each; their sums are added,
//            and the steps in increasing order.
//
// Error: |C - exact| <= roundings * 2^-24 * |alpha row_scale| sum |a||b|, then C's rounding.
//   float32: roundings = min(k, kGemmDepth) + k / kGemmDepth + 4, with the first term doubled without
//            fused multiply-add (Isa::kBaseline).
//   AMX:     roundings = min(k, 16) + k / 32 + 6 with A and B rounded as allowed; numbers, products and sums below
//            2^-126 are flushed to zero, which adds (sum |a| + sum |b| + 3 k) * 2^-126.
//
// Structure: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/dtype.h"
#include "core/base/tensor.h"

namespace hone {

class ThreadPool;

/// Length of one chain of multiply-adds: the depth of packed blocks.
inline constexpr int64_t kGemmDepth = 256;

/// A matrix in memory. Element (r, c) is data[R(r) * row_stride + C(c) * col_stride] with R(r) = row_index ?
/// row_index[r] : r, and C likewise. One stride should be 1, in a dimension that is not gathered; other views are
/// correct but packed element by element.
///
/// The indices gather while packing. In a product
///   A.row_index: the rows of C;  A.col_index and B.row_index: the k dimension;  B.col_index: the columns of C.
/// Experts:   Y[rows, I] = X[tokens[rows], H] x W[I, H]^T     a = {x, .row_index = tokens}, b = transposed(w)
///            dW[I, H] = dY[rows, I]^T x X[tokens[rows], H]   a = transposed(dy), b = {x, .row_index = tokens}
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::kF32;           ///< kF32 or kBF16
  int64_t row_stride = 0;              ///< elements between rows
  int64_t col_stride = 1;              ///< elements between columns
  const int32_t* row_index = nullptr;  ///< as many entries as the matrix has rows
  const int32_t* col_index = nullptr;  ///< as many entries as the matrix has columns
};

/// One product. C is row-major and must not overlap A or B.
struct GemmArgs {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;                ///< 0: the product is zero, beta is still applied
  MatrixView a;                 ///< [m, k]
  MatrixView b;                 ///< [k, n]
  void* c = nullptr;            ///< [m, n]
  DType c_dtype = DType::kF32;  ///< kF32 or kBF16
  int64_t ldc = 0;              ///< elements between rows of C
  float alpha = 1.0f;
  float beta = 0.0f;                 ///< 0: C is not read, so NaN in it is overwritten
  const float* row_scale = nullptr;  ///< [m] or null: row r of the product is multiplied by row_scale[r]
  const void* bias = nullptr;        ///< [n] of c_dtype or null, added to every row
  const void* addend = nullptr;      ///< [m, n] of c_dtype, rows ldc apart, or null. Must not overlap C
  /// Whether float32 operands may be rounded to bf16 (nearest even): for ops with bf16 activations
  /// (ops/linear/linear.h).
  bool may_round = false;
  int node = 0;  ///< the NUMA node of the pool whose memory has the largest operand: its threads compute it first
};

/// View of a 2-dimensional tensor.
inline MatrixView matrix(const Tensor& t) {
  HONE_ASSERT(t.shape.rank() == 2);
  return {.data = t.data, .dtype = t.dtype, .row_stride = t.shape[1], .col_stride = 1};
}

/// The same memory with rows and columns swapped.
inline MatrixView transposed(const MatrixView& v) {
  return {v.data, v.dtype, v.col_stride, v.row_stride, v.col_index, v.row_index};
}

/// Whether products with `may_round` actually round: if AMX is in use.
bool gemm_rounds();

/// Runs one product on the threads of the pool. Inside a parallel loop of the pool it runs serially.
void gemm(ThreadPool& pool, const GemmArgs& args);

/// Runs many products (experts) as one set of tasks; empty ones (m, n or k of 0) are allowed. The C of products must
/// not overlap. Products on AMX ignore their nodes.
void grouped_gemm(ThreadPool& pool, std::span<const GemmArgs> groups);

/// Runs one product on the calling thread, for use inside a task (attention: per head and block). The packing workspace
/// is thread-local, of constant size (about 2 MiB, and 32 MiB for AMX, of which only touched pages take memory), and
/// allocated at a thread's first product. The workspace of a product on all threads belongs to its caller (64 MiB, AMX
/// only).
void gemm_serial(const GemmArgs& args);

}  // namespace hone
