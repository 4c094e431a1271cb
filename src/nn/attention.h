// Attention: grouped-query softmax attention with rotary positions, packed documents, an optional sliding window, and
// optional RMSNorm on queries and keys.
#pragma once

#include "nn/decoder_config.h"
#include "nn/linear.h"

namespace hone {

class Attention {
 public:
  Attention(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype);

  /// x [T, H], normalised -> [T, H]. `cache_index` is the layer's place in the KV cache.
  Var operator()(Tape& tape, Var x, const Forward& forward, const RopeTable& rope) const;

  void collect(std::vector<Parameter*>& group) const;

 private:
  int64_t num_heads_, num_kv_heads_, head_dim_, sliding_window_;
  float rms_norm_eps_;
  size_t layer_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  Parameter* q_norm_ = nullptr;
  Parameter* k_norm_ = nullptr;
};

}  // namespace hone
