// Products of rows with the experts' base weights on a CPU: with the engine of tile_products_cpu.h if that applies,
// else with weights in place or, for 8 bits and packed ones, dequantised for some experts at a time.
//
// Dequantised weights of 8 bits are float32: scale · q, rounded once. Packed ones have the dtype of the model, as
// ops/unpack_weights unpacks them.
#pragma once

#include <optional>

#include "ops/moe_experts/cpu/expert_rows_cpu.h"

namespace hone::cpu {

class BaseExperts {
 public:
  /// If weights [E, N, K] of 8 bits or packed ones must be dequantised, allocates scratch for some experts (64 MiB, or
  /// one), at most for as many as can have rows.
  BaseExperts(ArenaScope& scratch, const WeightView& weight, int64_t rows, DType activations);

  /// c[rows of e] = a[rows of e] · W_e for every expert: [R, N] x [N, K] -> float32 [R, K].
  void product(ThreadPool& pool, const ExpertRows& rows, const RowMatrix& a, const Tensor& c) const;
  /// c[rows of e] = a[rows of e] · W_eᵀ + bias[e] + beta · c for every expert: [R, K] x [K, N] -> [R, N], rounded once.
  /// bias [E, N] has c's dtype or is undefined. For dense or dequantised weights; if tiles apply, tile_gate_up() and
  /// tile_down() do more in one pass.
  void transposed_product(ThreadPool& pool, const ExpertRows& rows, const RowMatrix& a, const Tensor& bias,
                          const RowMatrix& c, float beta) const;

 private:
  /// Calls multiply(experts, w) for lists of experts until all with rows are done; w(i) is the weight of experts[i].
  /// A list has experts of all NUMA nodes, so that none waits while the weights of others are dequantised.
  template <class Multiply>
  void for_experts(ThreadPool& pool, const ExpertRows& rows, Multiply multiply) const;
  void dequantize(ThreadPool& pool, std::span<const int64_t> experts) const;

  WeightView weight_;
  bool tiles_;
  Tensor wide_;  // [experts at a time, N, K] if weights are dequantised
};

}  // namespace hone::cpu
