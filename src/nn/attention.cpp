#include "nn/attention.h"

#include <fmt/format.h>

#include "ops/attention/cached/cached_attention.h"
#include "ops/clamp/clamp.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/sigmoid_gate/sigmoid_gate.h"
#include "ops/split_heads/split_heads.h"

namespace hone {

Var attend(Tape& tape, Var q, Var k, Var v, const AttentionOptions& options, const Forward& forward, int layer,
           Weight* sinks) {
  const PackedSequences sequences = forward.batch->sequences();
  if (forward.cache == nullptr) return attention(tape, q, k, v, options, sequences, sinks);
  const std::vector<Tensor>& kept = forward.cache->layers[static_cast<size_t>(layer)];
  return cached_attention(tape, q, k, v, options,
                          {.k = kept[0],
                           .v = kept[1],
                           .pages = forward.cache->pages[static_cast<size_t>(layer)],
                           .lengths = forward.cache->lengths,
                           .added = sequences},
                          sinks);
}

Attention::Attention(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype)
    : num_heads_(config.num_attention_heads),
      num_kv_heads_(config.kv_heads_of(config.layers[static_cast<size_t>(layer)])),
      head_dim_(config.head_dim_of(config.layers[static_cast<size_t>(layer)])),
      sliding_window_(config.layers[static_cast<size_t>(layer)].sliding_window),
      scale_(config.softmax_scale()),
      rms_norm_eps_(static_cast<float>(config.rms_norm_eps)),
      clip_(static_cast<float>(config.clip_qkv)),
      whole_norm_(config.qk_norm_whole),
      norm_last_(config.qk_norm_last),
      output_gate_(config.attention_output_gate),
      value_norm_(config.value_norm),
      rotates_(config.rotates),
      rope_interleave_(config.rope_interleave),
      norm_weighting_(config.norm_weighting),
      dtype_(dtype),
      layer_(layer) {
  HONE_ASSERT(rotates_ || !config.qk_norm, "norms of heads belong to RoPE");
  const std::string module = config.layer_module(layer) + config.names.attention + ".";
  const int64_t hidden = config.hidden_size, q_size = num_heads_ * head_dim_, kv_size = num_kv_heads_ * head_dim_;
  const auto make = [&](const char* name, int64_t out, int64_t in, bool bias) {
    return Linear(store, module + name, out, in, bias, ParameterKind::kAttention, layer, dtype);
  };
  q_proj_ = make("q_proj", (output_gate_ ? 2 : 1) * q_size, hidden, config.qkv_bias);
  k_proj_ = make("k_proj", kv_size, hidden, config.qkv_bias);
  if (!config.layers[static_cast<size_t>(layer)].values_are_keys) {
    v_proj_ = make("v_proj", kv_size, hidden, config.qkv_bias);
  }
  o_proj_ = make("o_proj", hidden, q_size, config.o_bias);
  if (config.qk_norm || whole_norm_) {
    const auto norm = [&](const std::string& name, int64_t size) {
      const Shape shape{whole_norm_ ? size : head_dim_};
      const InitialValues initial = config.initial_norm();
      return &store.add({module + name + ".weight", shape, ParameterKind::kNorm, layer, {}, FileOrder::kSame, initial},
                        dtype);
    };
    q_norm_ = norm(config.names.q_norm, q_size);
    k_norm_ = norm(config.names.k_norm, kv_size);
  }
  if (config.attention_sinks) {
    sinks_ = &store.add({module + "sinks", {num_heads_}, ParameterKind::kBias, layer, {}}, dtype);
  }
}

Var Attention::operator()(Tape& tape, Var x, const Forward& forward, const RopeTables& rope) const {
  const DeviceBatch& batch = *forward.batch;
  Var q = q_proj_(tape, x, forward);  // [T, Hq * D]; with gates [T, Hq * 2D], each head's query and gate
  Var gate;
  if (output_gate_) {
    const std::vector<Var> parts =
        split_heads(tape, q, {.heads = num_heads_, .list = {{head_dim_, 0}, {head_dim_, 1}}});
    q = parts[0];
    gate = parts[1];
  }
  Var k = k_proj_(tape, x, forward);  // [T, Hkv * D]
  Var v = v_proj_ ? (*v_proj_)(tape, x, forward) : k;
  if (whole_norm_) {
    q = rms_norm(tape, q, *q_norm_, rms_norm_eps_, norm_weighting_);
    k = rms_norm(tape, k, *k_norm_, rms_norm_eps_, norm_weighting_);
  }
  if (clip_ > 0) {
    for (Var* projected : {&q, &k, &v}) *projected = clamp(tape, *projected, clip_);
  }
  const auto step = [&](bool norms, const RopeTable& table) {
    const QkNorms weights = norms ? QkNorms{q_norm_, k_norm_} : QkNorms{};
    const QkVars turned = qk_norm_rope(tape, {q, k}, weights, rms_norm_eps_, table, batch.positions, head_dim_,
                                       {.interleaved = rope_interleave_}, norm_weighting_);
    q = turned[0];
    k = turned[1];
  };
  if (rotates_ && norm_last_) {
    step(false, rope.turned);
    step(true, rope.unturned);
  } else if (rotates_) {
    step(!whole_norm_, rope.turned);
  }
  if (value_norm_) v = rms_norm(tape, v, head_dim_, rms_norm_eps_);
  const AttentionOptions options{.num_heads = num_heads_,
                                 .num_kv_heads = num_kv_heads_,
                                 .head_dim = head_dim_,
                                 .v_head_dim = head_dim_,
                                 .scale = scale_,
                                 .sliding_window = sliding_window_};
  Var out = attend(tape, q, k, v, options, forward, layer_, sinks_);
  if (output_gate_) out = sigmoid_gate(tape, gate, out);
  return o_proj_(tape, out, forward);
}

std::vector<const Linear*> Attention::linears() const {
  if (!v_proj_) return {&q_proj_, &k_proj_, &o_proj_};
  return {&q_proj_, &k_proj_, &*v_proj_, &o_proj_};
}

std::vector<CacheTensor> Attention::cache() const {
  const CacheTensor rows{{kCachePage, num_kv_heads_ * head_dim_}, dtype_, sliding_window_};
  return {rows, rows};
}

double Attention::flops(const ForwardWork& work) const {
  double flops = 4 * work.pairs(sliding_window_) * static_cast<double>(num_heads_ * head_dim_);  // scores and values
  for (const Linear* linear : linears()) flops += linear->flops(work.tokens);
  return flops;
}

ModuleSummary Attention::summary() const {
  return {"attention", fmt::format("{} heads of {}, {} for keys{}", num_heads_, head_dim_, num_kv_heads_,
                                   v_proj_ ? " and values" : ", which are the values, too")};
}

void Attention::collect(std::vector<Parameter*>& group) const {
  for (const Linear* linear : linears()) linear->collect(group);
  for (Parameter* parameter : {q_norm_, k_norm_, sinks_}) {
    if (parameter) group.push_back(parameter);
  }
}

}  // namespace hone
