// GatedDeltaNet: linear attention with projections, a short convolution, the gated delta rule and a gated norm.
// Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (arXiv:2412.06464); as in Qwen3-Next and Qwen3.5.
#pragma once

#include "nn/mixer.h"
#include "ops/gated_delta_rule/gated_delta_rule.h"

namespace hone {

class GatedDeltaNet : public Mixer {
 public:
  GatedDeltaNet(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype);

  Var operator()(Tape& tape, Var x, const Forward& forward, const RopeTables& rope) const override;
  void collect(std::vector<Parameter*>& group) const override;
  std::vector<CacheTensor> cache() const override;
  double flops(const ForwardWork& work) const override;
  ModuleSummary summary() const override;

 private:
  /// The projections of x.
  struct Projected {
    Var qkv, z, a, b;
  };
  Projected project(Tape& tape, Var x, const Forward& forward) const;
  std::vector<const Linear*> projections() const;

  DeltaHeads heads_;
  bool fused_projections_;
  float rms_norm_eps_;
  int layer_;
  DType dtype_;
  Linear in_proj_qkv_, in_proj_z_, in_proj_b_, in_proj_a_;  // Qwen3.5
  Linear in_proj_qkvz_, in_proj_ba_;                        // Qwen3-Next
  Linear out_proj_;
  Parameter *conv_, *a_log_, *dt_bias_, *norm_;
};

}  // namespace hone
