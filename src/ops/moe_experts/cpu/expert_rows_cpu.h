// Loops of moe_experts over the rows of experts, inside launched CPU work: one product per expert, or row by row.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/grouped_rows.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/moe_experts/moe_experts.h"

namespace hone::cpu {

/// Rows [begin, begin + count) of one expert.
struct ExpertSlice {
  int64_t expert = 0, begin = 0, count = 0;
};

/// Element i of a float32 or bfloat16 tensor.
inline float element_of(const Tensor& t, int64_t i) {
  return t.dtype == DType::kF32 ? t.as<float>()[i] : static_cast<float>(t.as<BFloat16>()[i]);
}

/// Runs product(slice, i) of experts[i], also for those without rows, as one set of tasks; the threads of the NUMA node
/// that has an expert (spread_items of core/cpu/numa.h) take its tasks first.
template <class Experts, class Product>
void expert_products(ThreadPool& pool, const ExpertRows& rows, const Experts& experts, Product product) {
  const int64_t* offsets = rows.offsets.as<int64_t>();
  std::vector<GemmArgs> groups;
  groups.reserve(experts.size());
  for (size_t i = 0; i < experts.size(); ++i) {
    const int64_t e = experts[i];
    groups.push_back(product(ExpertSlice{e, offsets[e], offsets[e + 1] - offsets[e]}, i));
    groups.back().node = node_of_item(e, rows.offsets.numel() - 1, pool.nodes());
  }
  grouped_gemm(pool, groups);
}

/// The list of all experts, in order.
struct AllExperts {
  size_t count = 0;

  size_t size() const { return count; }
  int64_t operator[](size_t i) const { return static_cast<int64_t>(i); }
};

inline AllExperts all_experts(const ExpertRows& rows) { return {static_cast<size_t>(rows.offsets.numel() - 1)}; }

/// Options of a product of rows: scaling of its result, and whether float32 operands may be rounded to bfloat16.
struct ProductScale {
  float alpha = 1.0f, beta = 0.0f;
  bool may_round = false;
  Tensor bias = {};  ///< [E, n] in c's dtype, or undefined
};

/// c[rows of e, :] = alpha · a[rows of e, :] · b(i) + bias[e] + beta · c, for e = experts[i]; rounded once. b(i) is
/// [k, n].
template <class Experts, class B>
void rows_product(ThreadPool& pool, const ExpertRows& rows, const Experts& experts, const RowMatrix& a, B b, int64_t k,
                  const RowMatrix& c, int64_t n, const ProductScale& scale = {}) {
  expert_products(pool, rows, experts, [&](ExpertSlice s, size_t i) {
    const MatrixView dst = c.from(s.begin);
    return GemmArgs{.m = s.count,
                    .n = n,
                    .k = k,
                    .a = a.from(s.begin),
                    .b = b(i),
                    .c = const_cast<void*>(dst.data),
                    .c_dtype = dst.dtype,
                    .ldc = dst.row_stride,
                    .alpha = scale.alpha,
                    .beta = scale.beta,
                    .bias = scale.bias.defined() ? scale.bias.rows(s.expert, 1).data : nullptr,
                    .may_round = scale.may_round};
  });
}

/// As above for every expert, with b(e).
template <class B>
void rows_product(ThreadPool& pool, const ExpertRows& rows, const RowMatrix& a, B b, int64_t k, const RowMatrix& c,
                  int64_t n, const ProductScale& scale = {}) {
  rows_product(
      pool, rows, all_experts(rows), a, [&](size_t e) { return b(static_cast<int64_t>(e)); }, k, c, n, scale);
}

/// dst[e] [m, n] = alpha · a[rows of e, :m]ᵀ · b[rows of e, :n] + beta · dst[e]: the gradient of a stacked weight.
/// Experts without rows get zeros (beta 0) or keep their values.
inline void weight_product(ThreadPool& pool, const ExpertRows& rows, const RowMatrix& a, const RowMatrix& b,
                           const GradDest& dest, float alpha = 1.0f, bool may_round = false) {
  expert_products(pool, rows, all_experts(rows), [&](ExpertSlice s, size_t) {
    const Tensor dst = expert_tensor(dest.dst, s.expert);
    return GemmArgs{.m = dst.shape[0],
                    .n = dst.shape[1],
                    .k = s.count,
                    .a = transposed(a.from(s.begin)),
                    .b = b.from(s.begin),
                    .c = dst.data,
                    .c_dtype = dst.dtype,
                    .ldc = dst.shape[1],
                    .alpha = alpha,
                    .beta = dest.beta,
                    .may_round = may_round};
  });
}

/// The rows in use.
inline int64_t rows_in_use(const ExpertRows& rows) { return rows.offsets.as<int64_t>()[rows.offsets.numel() - 1]; }

/// Calls body(expert, row) for every row in use, in parallel.
template <class Body>
void for_each_expert_row(ThreadPool& pool, const ExpertRows& rows, Body body) {
  const int64_t* offsets = rows.offsets.as<int64_t>();
  const int64_t* end_offset = offsets + rows.offsets.numel();
  pool.parallel_ranges(rows_in_use(rows), 32, [&](int64_t begin, int64_t end) {
    int64_t e = std::upper_bound(offsets, end_offset, begin) - offsets - 1;
    for (int64_t r = begin; r < end; ++r) {
      while (r >= offsets[e + 1]) ++e;
      body(e, r);
    }
  });
}

/// Biases of experts in the dtype of the product that adds them, [E, n].
class ExpertBias {
 public:
  /// `bias` may be undefined; takes scratch if its dtype differs.
  ExpertBias(ArenaScope& scratch, const Tensor& bias, DType dtype);
  /// Inside launched work: the biases, converted; undefined without any.
  Tensor ready(ThreadPool& pool) const;

 private:
  Tensor given_, converted_;
};

/// dbias[e] = Σ of w_r · dy[r] over the rows of e in order, float32, + beta · dbias[e]; w_r is the router weight of the
/// row's choice in `weights` [T, k], or 1.
void bias_grad(ThreadPool& pool, const ExpertRows& rows, const RowMatrix& dy, const Tensor& weights,
               const GradDest& dbias);

/// dst[t] = Σ_j w[t, j] · y[row[t, j]] + beta · dst[t], j in increasing order; w = 1 without weights; choices without a
/// row add nothing. y [R, n].
void combine_rows(ThreadPool& pool, const ExpertRows& rows, const Tensor& y, const Tensor& weights, GradDest dst);

}  // namespace hone::cpu
