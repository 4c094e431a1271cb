// A float64 reference of moe_experts, and cases shared by its tests.
#pragma once

#include "kernels/op_testing.h"
#include "ops/moe_experts/moe_experts.h"

namespace hone::testing {

inline constexpr auto kClamped = MlpActivation::Kind::kClampedSwiglu, kGeglu = MlpActivation::Kind::kGeglu,
                      kSquaredRelu = MlpActivation::Kind::kSquaredRelu;

struct MoeSizes {
  int64_t tokens, hidden, intermediate, experts, k;
};

enum class MoeLora { kNone, kSplit, kShared, kDownOnly };

/// The options of a case except its sizes.
struct MoeOptions {
  MoeLora lora = MoeLora::kNone;
  int64_t rank = 2;
  float dropout = 0.0f;
  bool base_trained = true;
  /// Except for dense the base is frozen: in 8 bits with H and I multiples of 64; in tiles on AMX only, for bfloat16;
  /// packed with H and I that fit, where the case's weights are the values that random ones are rounded to.
  const WeightFormat* base_format = &dense_format();
  Fp8Recipe fp8 = Fp8Recipe::kOff;  ///< what the formatted weights say
  bool x_trained = true;
  bool router_weights_trained = true;
  bool biases = false, biases_trained = true;
  MlpActivation::Kind activation = MlpActivation::Kind::kSwiglu;  ///< kClampedSwiglu: with a limit that some values
                                                                  ///< exceed
  std::vector<int32_t> ids = {};                                  ///< [T, k]; empty: k different experts per token
  int64_t token_tile = 0;
};

/// Inputs x [T, H] and router weights [T, k]; weights gate_up, down, then lora_a and lora_b of each adapter, then the
/// biases of gate_up and down.
OpCase moe_case(const MoeSizes& sizes, const MoeOptions& options);

/// The default routing of a case.
std::vector<int32_t> spread_routing(const MoeSizes& sizes);

/// Device memory that is freed with its last owner.
template <class T>
std::shared_ptr<Tensor> shared_tensor(Shape shape, const std::vector<T>& values) {
  auto buffer = std::make_shared<Buffer>(test_device(), values.size() * sizeof(T));
  auto tensor = std::make_shared<Tensor>(buffer->tensor(shape, DTypeOf<T>::value));
  copy_from_host(*tensor, values.data(), values.size() * sizeof(T));
  return {tensor.get(), [buffer, tensor](Tensor*) {}};
}

}  // namespace hone::testing
