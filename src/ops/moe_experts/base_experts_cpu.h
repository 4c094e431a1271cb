// The experts' base weights as products of rows on a CPU read them: where they lie, or, of 8 bits, dequantised for some
// experts at a time.
//
// Dequantised weights are float32, scale · q rounded once; bfloat16 where activations are and the product may round
// what it multiplies (gemm.h: on AMX).
#pragma once

#include <optional>

#include "ops/moe_experts/expert_rows_cpu.h"

namespace hone::cpu {

class BaseExperts {
 public:
  /// For weights of 8 bits [E, N, K] takes scratch for some experts (64 MiB, or one), never for more than can have
  /// rows.
  BaseExperts(ArenaScope& scratch, const Tensor& weight, const Tensor& scales, int64_t rows, DType activations);

  /// c[rows of e] = a[rows of e] · W_e for every expert: [R, N] x [N, K] -> [R, K].
  void product(ThreadPool& pool, const ExpertRows& rows, const RowMatrix& a, const RowMatrix& c) const;
  /// c[rows of e] = a[rows of e] · W_eᵀ + beta · c for every expert: [R, K] x [K, N] -> [R, N].
  void transposed_product(ThreadPool& pool, const ExpertRows& rows, const RowMatrix& a, const RowMatrix& c,
                          float beta) const;

 private:
  /// multiply(experts, w) for one list of experts after the other, until all with rows have had their turn; w(i) is the
  /// weight of experts[i].
  template <class Multiply>
  void for_experts(ThreadPool& pool, const ExpertRows& rows, Multiply multiply) const;
  void dequantize(ThreadPool& pool, std::span<const int64_t> experts) const;

  Tensor weight_, scales_;
  Tensor wide_;  // [experts at once, N, K] where weights have 8 bits
};

}  // namespace hone::cpu
