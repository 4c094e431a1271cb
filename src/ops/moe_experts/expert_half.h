// One half of a layer's experts as tape nodes hold it: the stacked weight of gate and up, or of down, with its bias and
// its adapters.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/moe_experts/cuda/fp8_experts.h"
#include "ops/moe_experts/moe_experts.h"

namespace hone {

struct ExpertHalf {
  Weight* weight = nullptr;  ///< [E, out, in]; here [E / N, out, in] if N ranks share the experts
  Weight* bias = nullptr;    ///< [E, out], or null
  std::vector<ExpertAdapter> adapters;

  /// Asserts that the shapes agree, and that adapters with dropout have what it is drawn from.
  void check(bool training, const LoraDropoutContext& dropout) const {
    const Shape &all = weight->shape(), &here = weight->local_shape();
    HONE_ASSERT(bias == nullptr || bias->shape() == (Shape{all[0], all[1]}));
    HONE_ASSERT(bias == nullptr || bias->local_shape()[0] == here[0]);
    for (const ExpertAdapter& a : adapters) {
      const int64_t rank = a.adapter.lora_a->shape()[1];
      HONE_ASSERT(a.out_begin >= 0 && a.out_begin + a.out_count <= all[1]);
      HONE_ASSERT(a.adapter.lora_a->shape() == (Shape{all[0], rank, all[2]}));
      HONE_ASSERT(a.adapter.lora_b->shape() == (Shape{all[0], a.out_count, rank}));
      HONE_ASSERT(a.adapter.lora_a->local_shape()[0] == here[0] && a.adapter.lora_b->local_shape()[0] == here[0]);
      HONE_ASSERT(!training || a.adapter.dropout == 0.0f ||
                  (dropout.scalars != nullptr && dropout.sample_ids.defined() && dropout.positions.defined()));
    }
  }

  bool wants_grad() const {
    return weight->wants_grad() || (bias != nullptr && bias->wants_grad()) ||
           std::any_of(adapters.begin(), adapters.end(), [](const ExpertAdapter& a) { return a.adapter.wants_grad(); });
  }
  bool wants_lora_a() const {
    return std::any_of(adapters.begin(), adapters.end(),
                       [](const ExpertAdapter& a) { return a.adapter.lora_a->wants_grad(); });
  }
  bool wants_lora_b() const {
    return std::any_of(adapters.begin(), adapters.end(),
                       [](const ExpertAdapter& a) { return a.adapter.lora_b->wants_grad(); });
  }
  bool drops() const {
    return std::any_of(adapters.begin(), adapters.end(),
                       [](const ExpertAdapter& a) { return a.adapter.dropout != 0.0f; });
  }

  /// How this half's products read the weight: in 8-bit floats they read codes that they would otherwise unpack.
  WeightProduct product(const Context& context, const MlpActivation& function) const {
    const bool fp8 = weight->fp8().recipe != Fp8Recipe::kOff && adapters.empty() && bias == nullptr &&
                     cuda::experts_multiply_in_fp8(context, weight->local_shape(), function);
    return fp8 ? WeightProduct::kFp8Experts : WeightProduct::kExperts;
  }

  /// Multiply-adds of one row.
  int64_t products_of_a_row() const { return weight->shape()[1] * weight->shape()[2]; }
  /// Columns of x Aᵀ of all adapters.
  int64_t rank_columns() const {
    int64_t columns = 0;
    for (const ExpertAdapter& a : adapters) columns += expert_rank_columns(a.adapter.lora_a->shape()[1]);
    return columns;
  }

  Tensor bias_view() const { return bias ? bias->view().dense() : Tensor{}; }
  GradDest bias_grad() const { return bias ? bias->grad() : GradDest{}; }

  std::vector<ExpertAdapterView> adapter_views(bool training) const {
    std::vector<ExpertAdapterView> views;
    for (const ExpertAdapter& a : adapters) {
      views.push_back({.lora_a = a.adapter.lora_a->view().dense(),
                       .lora_b = a.adapter.lora_b->view().dense(),
                       .out_begin = a.out_begin,
                       .out_count = a.out_count,
                       .scaling = a.adapter.scaling,
                       .dropout = training ? a.adapter.dropout : 0.0f,
                       .stream_id = a.adapter.stream_id});
    }
    return views;
  }
  std::vector<ExpertAdapterGrad> adapter_grads() const {
    std::vector<ExpertAdapterGrad> grads;
    for (const ExpertAdapter& a : adapters) grads.push_back({a.adapter.lora_a->grad(), a.adapter.lora_b->grad()});
    return grads;
  }
};

}  // namespace hone
