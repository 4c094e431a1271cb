// Attention: grouped-query softmax attention with RoPE over packed documents, with an optional sliding window, optional
// RMSNorm on queries and keys, and an optional gate on the output.
#pragma once

#include <optional>
#include <vector>

#include "nn/mixer.h"
#include "ops/attention/attention.h"

namespace hone {

/// Attention over a pass's documents; in generation over the cache of layer `layer` (keys, then values), to which the
/// new keys and values are appended.
Var attend(Tape& tape, Var q, Var k, Var v, const AttentionOptions& options, const Forward& forward, int layer,
           Weight* sinks = nullptr);

class Attention : public Mixer {
 public:
  Attention(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype);

  Var operator()(Tape& tape, Var x, const Forward& forward, const RopeTables& rope) const override;
  void collect(std::vector<Parameter*>& group) const override;
  std::vector<CacheTensor> cache() const override;
  double flops(const ForwardWork& work) const override;
  ModuleSummary summary() const override;

 private:
  std::vector<const Linear*> linears() const;

  int64_t num_heads_, num_kv_heads_, head_dim_, sliding_window_;
  float scale_, rms_norm_eps_, clip_;
  bool whole_norm_, norm_last_, output_gate_, value_norm_, rotates_, rope_interleave_;
  NormWeighting norm_weighting_;
  DType dtype_;
  int layer_;
  Linear q_proj_, k_proj_, o_proj_;
  std::optional<Linear> v_proj_;  // none: keys are the values, before their norm and RoPE
  Parameter* q_norm_ = nullptr;
  Parameter* k_norm_ = nullptr;
  Parameter* sinks_ = nullptr;
};

}  // namespace hone
