// Mamba2: a state-space mixer with one projection of everything, a short convolution, the scan and a gated norm.
// Source: Dao and Gu, "Transformers are SSMs" (arXiv:2405.21060); as in Granite 4 and Nemotron 3.
#pragma once

#include "nn/mixer.h"
#include "ops/ssd_scan/ssd_scan.h"

namespace hone {

/// in_proj gives a gate z, then x, B and C, which pass the convolution, then steps dt:
///   out_proj(RMSNorm(scan(x, B, C, dt) · silu(z)))   with a norm for each group of heads
class Mamba2 : public Mixer {
 public:
  Mamba2(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype);

  Var operator()(Tape& tape, Var x, const Forward& forward, const RopeTables& rope) const override;
  void collect(std::vector<Parameter*>& group) const override;
  std::vector<CacheTensor> cache() const override;
  double flops(const ForwardWork& work) const override;
  ModuleSummary summary() const override;

 private:
  SsdHeads heads_;
  float rms_norm_eps_;
  int layer_;
  DType dtype_;
  Linear in_proj_, out_proj_;
  Parameter *conv_, *a_log_, *dt_bias_, *d_, *norm_;
  Parameter* conv_bias_ = nullptr;
};

}  // namespace hone
