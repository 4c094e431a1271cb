// LatentAttention: multi-head latent attention (MLA). Keys and values of all heads are projected from one low-rank
// latent per token; RoPE applies to separate dimensions, which the keys of all heads share.
// Source: DeepSeek-AI, "DeepSeek-V2" (arXiv:2405.04434), section 2.1.
#pragma once

#include "nn/mixer.h"

namespace hone {

/// Epsilon of the latents' norms: the released code uses the default of its norm class, not rms_norm_eps.
inline constexpr float kLatentNormEps = 1e-6f;

class LatentAttention : public Mixer {
 public:
  LatentAttention(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype);

  Var operator()(Tape& tape, Var x, const Forward& forward, const RopeTables& rope) const override;
  void collect(std::vector<Parameter*>& group) const override;
  std::vector<CacheTensor> cache() const override;
  double flops(const ForwardWork& work) const override;
  ModuleSummary summary() const override;

 private:
  Var queries(Tape& tape, Var x, const Forward& forward) const;

  LatentConfig latent_;
  int64_t num_heads_;
  float scale_;
  int layer_;
  DType dtype_;
  Linear q_proj_;               // if q_lora_rank is 0
  Linear q_a_proj_, q_b_proj_;  // else
  Linear kv_a_proj_, kv_b_proj_, o_proj_;
  Parameter* q_a_norm_ = nullptr;
  Parameter* kv_a_norm_;
};

}  // namespace hone
