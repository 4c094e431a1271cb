// A float64 reference of moe_experts, and the cases that its tests share.
#pragma once

#include "kernels/op_testing.h"
#include "ops/moe_experts/moe_experts.h"

namespace hone::testing {

struct MoeSizes {
  int64_t tokens, hidden, intermediate, experts, k;
};

enum class MoeLora { kNone, kSplit, kShared, kDownOnly };

/// The options of a case, besides its sizes.
struct MoeOptions {
  MoeLora lora = MoeLora::kNone;
  int64_t rank = 2;
  float dropout = 0.0f;
  bool base_trained = true;
  /// Other than dense the base is frozen: in 8 bits with H and I multiples of 64; in tiles on AMX alone, for bfloat16.
  const WeightFormat* base_format = &dense_format();
  bool x_trained = true;
  bool router_weights_trained = true;
  bool biases = false, biases_trained = true;
  bool clamped = false;           ///< the activation is kClampedSwiglu, with a limit that some values pass
  std::vector<int32_t> ids = {};  ///< [T, k]; empty: k different experts for each token, from all of them
};

/// Inputs x [T, H] and router weights [T, k]; weights gate_up, down, then lora_a and lora_b of each adapter, then the
/// biases of gate_up and down.
OpCase moe_case(const MoeSizes& sizes, const MoeOptions& options);

/// The routing that a case has unless it gives its own.
std::vector<int32_t> spread_routing(const MoeSizes& sizes);

/// Device memory that lives as long as its last owner.
template <class T>
std::shared_ptr<Tensor> shared_tensor(Shape shape, const std::vector<T>& values) {
  auto buffer = std::make_shared<Buffer>(test_device(), values.size() * sizeof(T));
  auto tensor = std::make_shared<Tensor>(buffer->tensor(shape, DTypeOf<T>::value));
  copy_from_host(*tensor, values.data(), values.size() * sizeof(T));
  return {tensor.get(), [buffer, tensor](Tensor*) {}};
}

}  // namespace hone::testing
