#include "nn/latent_attention.h"

#include <fmt/format.h>

#include "nn/attention.h"
#include "ops/attention/cache_pages.h"
#include "ops/latent_heads/latent_heads.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/split_heads/split_heads.h"

namespace hone {

LatentAttention::LatentAttention(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype)
    : latent_(config.latent),
      num_heads_(config.num_attention_heads),
      scale_(config.softmax_scale()),
      layer_(layer),
      dtype_(dtype) {
  const std::string module = config.layer_module(layer) + "self_attn.";
  const int64_t hidden = config.hidden_size, q_width = num_heads_ * latent_.qk_head_dim();
  const auto make = [&](const char* name, int64_t out, int64_t in, bool bias) {
    return Linear(store, module + name, out, in, bias, ParameterKind::kAttention, layer, dtype);
  };
  const auto norm = [&](const char* name, int64_t size) {
    return &store.add({module + name + ".weight", {size}, ParameterKind::kNorm, layer, {}}, dtype);
  };
  if (latent_.q_lora_rank == 0) {
    q_proj_ = make("q_proj", q_width, hidden, false);
  } else {
    q_a_proj_ = make("q_a_proj", latent_.q_lora_rank, hidden, config.qkv_bias);
    q_a_norm_ = norm("q_a_layernorm", latent_.q_lora_rank);
    q_b_proj_ = make("q_b_proj", q_width, latent_.q_lora_rank, false);
  }
  kv_a_proj_ = make("kv_a_proj_with_mqa", latent_.kv_lora_rank + latent_.qk_rope_head_dim, hidden, config.qkv_bias);
  kv_a_norm_ = norm("kv_a_layernorm", latent_.kv_lora_rank);
  kv_b_proj_ =
      make("kv_b_proj", num_heads_ * (latent_.qk_nope_head_dim + latent_.v_head_dim), latent_.kv_lora_rank, false);
  o_proj_ = make("o_proj", hidden, num_heads_ * latent_.v_head_dim, config.o_bias);
}

/// The queries [T, H * (nope + rope)] before RoPE.
Var LatentAttention::queries(Tape& tape, Var x, const Forward& forward) const {
  if (q_a_norm_ == nullptr) return q_proj_(tape, x, forward);
  return q_b_proj_(tape, rms_norm(tape, q_a_proj_(tape, x, forward), *q_a_norm_, kLatentNormEps), forward);
}

Var LatentAttention::operator()(Tape& tape, Var x, const Forward& forward, const RopeTables& rope) const {
  const int64_t nope = latent_.qk_nope_head_dim, turned = latent_.qk_rope_head_dim;
  const Tensor& positions = forward.batch->positions;
  const bool scaled = latent_.query_scaling.beta != 0;
  const Var q =
      qk_norm_rope(tape, queries(tape, x, forward), nullptr, 0.0f, scaled ? rope.scaled_queries : rope.turned,
                   positions, nope + turned, {.offset = scaled ? 0 : nope, .interleaved = latent_.rope_interleave});
  const std::vector<Var> compressed =
      split_heads(tape, kv_a_proj_(tape, x, forward),
                  {.heads = 1, .list = {{.width = latent_.kv_lora_rank, .output = 0}, {.width = turned, .output = 1}}});
  const Var kv = kv_b_proj_(tape, rms_norm(tape, compressed[0], *kv_a_norm_, kLatentNormEps), forward);
  const Var shared = qk_norm_rope(tape, compressed[1], nullptr, 0.0f, rope.turned, positions, turned,
                                  {.interleaved = latent_.rope_interleave});
  const auto [k, v] = latent_heads(
      tape, kv, shared, {.heads = num_heads_, .nope_dim = nope, .rope_dim = turned, .v_dim = latent_.v_head_dim});
  const AttentionOptions options{.num_heads = num_heads_,
                                 .num_kv_heads = num_heads_,
                                 .head_dim = nope + turned,
                                 .v_head_dim = latent_.v_head_dim,
                                 .scale = scale_};
  return o_proj_(tape, attend(tape, q, k, v, options, forward, layer_), forward);
}

std::vector<CacheTensor> LatentAttention::cache() const {
  return {{{kCachePage, num_heads_ * latent_.qk_head_dim()}, dtype_, 0},
          {{kCachePage, num_heads_ * latent_.v_head_dim}, dtype_, 0}};
}

double LatentAttention::flops(const ForwardWork& work) const {
  const int64_t pair = num_heads_ * (latent_.qk_head_dim() + latent_.v_head_dim);  // a score and a weighted value
  double flops = 2 * work.pairs(0) * static_cast<double>(pair);
  for (const Linear* linear : {&kv_a_proj_, &kv_b_proj_, &o_proj_}) flops += linear->flops(work.tokens);
  if (q_a_norm_ == nullptr) return flops + q_proj_.flops(work.tokens);
  return flops + q_a_proj_.flops(work.tokens) + q_b_proj_.flops(work.tokens);
}

ModuleSummary LatentAttention::summary() const {
  return {"attention",
          fmt::format("{} heads of {} + {} (RoPE), values of {}, from a latent of {}", num_heads_,
                      latent_.qk_nope_head_dim, latent_.qk_rope_head_dim, latent_.v_head_dim, latent_.kv_lora_rank)};
}

void LatentAttention::collect(std::vector<Parameter*>& group) const {
  if (q_a_norm_ == nullptr) {
    q_proj_.collect(group);
  } else {
    q_a_proj_.collect(group);
    q_b_proj_.collect(group);
    group.push_back(q_a_norm_);
  }
  for (const Linear* linear : {&kv_a_proj_, &kv_b_proj_, &o_proj_}) linear->collect(group);
  group.push_back(kv_a_norm_);
}

}  // namespace hone
