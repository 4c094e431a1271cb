// matmul: the dense matrix product of CUDA ops, by cuBLASLt. A launcher shared by ops; for CPUs see kernels/cpu/gemm.
// Included by *_cuda.cu only.
#pragma once

#include "core/stream/context.h"
#include "formats/fp8.h"

namespace hone::cuda {

/// C[m, n] = alpha · op(A)[m, k] op(B)[k, n] + bias[n] + beta · D[m, n], all row-major; D is C where none is stated.
///   a [m, k] or, transposed, [k, m]; b [k, n] or, transposed, [n, k]: float32 or bfloat16, converted in scratch to the
///   dtype `operands` if it differs; c [m, n] float32, or bfloat16 if the operands are. Float32 accumulation;
///   float32 operands multiply in float32, never tf32.
/// A bfloat16 c is rounded once, except where it is added to itself: there cuBLASLt's Hopper kernels round the product
/// and add in memory (bench/results/cublaslt-rounding-2026-11-28.txt: each algorithm offered for 12 shapes, on an
/// H200). m, n and k may be 0. The algorithm is a function of shapes, dtypes, pitches and the alignment of pointers (up
/// to 16 bytes), and every algorithm adds in a fixed order, so equal calls give bitwise equal results. A row of C may
/// depend on the number of rows, though.
struct MatmulArgs {
  Tensor a;
  bool a_transposed = false;
  Tensor b;
  bool b_transposed = false;
  Tensor c;
  DType operands = DType::kF32;
  float alpha = 1.0f;
  float beta = 0.0f;  ///< 0: d is not read
  Tensor d = {};      ///< [m, n] in c's dtype and pitch, other memory or c; or undefined
  Tensor bias = {};   ///< [n] or undefined; converted to c's dtype. Requires k > 0
  /// Elements between rows in memory; 0: the number of columns.
  int64_t a_pitch = 0, b_pitch = 0, c_pitch = 0;
};

void matmul(const Context& context, const MatmulArgs& args);

/// C[m, n] = Σ_k a[m, k] · b[n, k] + bias[n] + beta · D[m, n] of operands in 8-bit floats (formats/fp8.h), on GPUs of
/// compute capability 9.0; D is C where none is stated.
///   codes u8, k and n multiples of kFp8Unit, of blockwise m, too; scales float32: tensorwise [1] each; rowwise [m] and
///   [n]; blockwise of a [ceil(k / 128), m] and of b [ceil(n / 128), ceil(ceil(k / 128) / 4) · 4] or, `b_of_rows`,
///   [ceil(k / 128), n]. c and d bfloat16 or float32; bias in c's dtype or undefined.
/// Tensor cores of Hopper keep some 14 bits of a sum of 8-bit products. `fast` leaves sums there for all of k;
/// otherwise, and always of blockwise, they are added to float32 sums again and again: cuBLASLt's fast accumulation.
/// One H200: bench/results/h200-fp8-cublaslt-2026-11-29.txt.
struct Fp8MatmulArgs {
  Fp8Recipe recipe = Fp8Recipe::kRowwise;
  Tensor a, a_scales;
  Fp8Code a_code = Fp8Code::kE4m3;
  Tensor b, b_scales;
  bool b_of_rows = false;
  bool fast = false;
  Tensor c;
  float beta = 0.0f;
  Tensor d = {};
  Tensor bias = {};
};

void fp8_matmul(const Context& context, const Fp8MatmulArgs& args);

/// Queues to[row, column] = from[row, column] for tensors of two dimensions (or one: a row), each float32 or bfloat16,
/// with pitches as above.
void copy_matrix(const Context& context, const Tensor& from, int64_t from_pitch, const Tensor& to, int64_t to_pitch);

/// The smallest pitch for `columns` columns that aligns all rows to 16 bytes.
inline int64_t aligned_pitch(int64_t columns, DType dtype) {
  const int64_t unit = 16 / static_cast<int64_t>(size_of(dtype));
  return (columns + unit - 1) / unit * unit;
}

}  // namespace hone::cuda
