#include "nn/attention.h"

#include "ops/cached_attention/cached_attention.h"
#include "ops/clamp/clamp.h"
#include "ops/rms_norm/rms_norm.h"

namespace hone {

Var attend(Tape& tape, Var q, Var k, Var v, const AttentionOptions& options, const Forward& forward, int layer,
           Weight* sinks) {
  const DeviceBatch& batch = *forward.batch;
  const PackedSequences sequences{
      .cu_seqlens = batch.cu_seqlens, .num_documents = batch.documents, .max_seqlen = batch.max_seqlen};
  if (forward.cache == nullptr) return attention(tape, q, k, v, options, sequences, sinks);
  const auto index = static_cast<size_t>(layer);
  return cached_attention(tape, q, k, v, options,
                          {.k = forward.cache->keys[index],
                           .v = forward.cache->values[index],
                           .lengths = forward.cache->lengths,
                           .added = sequences},
                          sinks);
}

Attention::Attention(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype)
    : num_heads_(config.num_attention_heads),
      num_kv_heads_(config.num_key_value_heads),
      head_dim_(config.head_dim),
      sliding_window_(config.layers[static_cast<size_t>(layer)].sliding_window),
      scale_(config.softmax_scale()),
      rms_norm_eps_(static_cast<float>(config.rms_norm_eps)),
      clip_(static_cast<float>(config.clip_qkv)),
      whole_norm_(config.qk_norm_whole),
      layer_(layer) {
  const std::string module = config.layer_module(layer) + "self_attn.";
  const int64_t hidden = config.hidden_size, q_size = num_heads_ * head_dim_, kv_size = num_kv_heads_ * head_dim_;
  const auto make = [&](const char* name, int64_t out, int64_t in, bool bias) {
    return Linear(store, module + name, out, in, bias, ParameterKind::kAttention, layer, dtype);
  };
  q_proj_ = make("q_proj", q_size, hidden, config.qkv_bias);
  k_proj_ = make("k_proj", kv_size, hidden, config.qkv_bias);
  v_proj_ = make("v_proj", kv_size, hidden, config.qkv_bias);
  o_proj_ = make("o_proj", hidden, q_size, config.o_bias);
  if (config.qk_norm || whole_norm_) {
    const auto norm = [&](const char* name, int64_t size) {
      return &store.add({module + name, {whole_norm_ ? size : head_dim_}, ParameterKind::kNorm, layer, {}}, dtype);
    };
    q_norm_ = norm("q_norm.weight", q_size);
    k_norm_ = norm("k_norm.weight", kv_size);
  }
  if (config.attention_sinks) {
    sinks_ = &store.add({module + "sinks", {num_heads_}, ParameterKind::kBias, layer, {}}, dtype);
  }
}

Var Attention::operator()(Tape& tape, Var x, const Forward& forward, const RopeTable& rope) const {
  const DeviceBatch& batch = *forward.batch;
  Var q = q_proj_(tape, x, forward);  // [T, Hq * D]
  Var k = k_proj_(tape, x, forward);  // [T, Hkv * D]
  Var v = v_proj_(tape, x, forward);
  if (whole_norm_) {
    q = rms_norm(tape, q, *q_norm_, rms_norm_eps_);
    k = rms_norm(tape, k, *k_norm_, rms_norm_eps_);
  }
  if (clip_ > 0) {
    for (Var* projected : {&q, &k, &v}) *projected = clamp(tape, *projected, clip_);
  }
  q = qk_norm_rope(tape, q, whole_norm_ ? nullptr : q_norm_, rms_norm_eps_, rope, batch.positions, head_dim_);
  k = qk_norm_rope(tape, k, whole_norm_ ? nullptr : k_norm_, rms_norm_eps_, rope, batch.positions, head_dim_);
  const AttentionOptions options{.num_heads = num_heads_,
                                 .num_kv_heads = num_kv_heads_,
                                 .head_dim = head_dim_,
                                 .v_head_dim = head_dim_,
                                 .scale = scale_,
                                 .sliding_window = sliding_window_};
  return o_proj_(tape, attend(tape, q, k, v, options, forward, layer_, sinks_), forward);
}

void Attention::collect(std::vector<Parameter*>& group) const {
  for (const Linear* linear : {&q_proj_, &k_proj_, &v_proj_, &o_proj_}) linear->collect(group);
  for (Parameter* parameter : {q_norm_, k_norm_, sinks_}) {
    if (parameter) group.push_back(parameter);
  }
}

}  // namespace hone
