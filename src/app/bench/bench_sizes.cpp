#include "app/bench/bench_sizes.h"

#include <algorithm>

namespace hone {

BenchSizes bench_sizes(const DecoderConfig& config, int64_t tokens, int64_t seq, DType dtype, DeviceKind device) {
  BenchSizes sizes;
  sizes.tokens = tokens;
  sizes.seq = seq;
  sizes.dtype = dtype;
  sizes.device = device;
  sizes.hidden = config.hidden_size;
  sizes.vocab = config.vocab_size;
  sizes.heads = config.num_attention_heads;
  // Attention is that of a layer without a window, if there is one.
  const auto full = std::ranges::find(config.layers, 0, &LayerConfig::sliding_window);
  const LayerConfig& layer = full == config.layers.end() ? config.layers.front() : *full;
  sizes.kv_heads = config.kv_heads_of(layer);
  sizes.head_dim = config.head_dim_of(layer);
  sizes.v_head_dim = layer.head_dim > 0 ? layer.head_dim : config.v_head_dim;
  sizes.rotary_dim = config.rotates ? config.rope_of(layer).rotary_dim : 0;
  sizes.qk_norm = config.qk_norm;
  sizes.intermediate = config.layers.front().intermediate_size;
  sizes.activation = config.activation;
  if (config.layers.front().mixer == MixerKind::kLatentAttention) {
    const LatentConfig& latent = config.latent;
    sizes.latent = {.q_rank = latent.q_lora_rank,
                    .kv_rank = latent.kv_lora_rank,
                    .nope_dim = latent.qk_nope_head_dim,
                    .rope_dim = latent.qk_rope_head_dim,
                    .interleaved = latent.rope_interleave};
  }
  const DeltaHeads& delta = config.delta_net.heads;
  sizes.delta = {.key_heads = delta.num_key_heads,
                 .value_heads = delta.num_value_heads,
                 .key_dim = delta.key_dim,
                 .value_dim = delta.value_dim};
  const SsdHeads& ssd = config.mamba.heads;
  sizes.ssd = {
      .heads = ssd.num_heads, .head_dim = ssd.head_dim, .groups = ssd.num_groups, .state_size = ssd.state_size};
  if (delta.num_value_heads > 0) sizes.conv = {.channels = delta.width(), .taps = config.delta_net.conv_taps};
  if (ssd.num_heads > 0) {
    sizes.conv = {.channels = ssd.width(), .taps = config.mamba.conv_taps, .bias = config.mamba.conv_bias};
  }
  if (config.num_moe_layers() > 0) {
    const MoeConfig& moe = config.moe;
    sizes.experts = {.count = moe.num_experts,
                     .chosen = moe.num_experts_per_tok,
                     .intermediate = moe.moe_intermediate_size,
                     .sigmoid = moe.router.scores == RouterScores::kSigmoid,
                     .normalise = moe.router.normalise,
                     .scale = moe.router.scale,
                     .groups = moe.router.groups,
                     .kept_groups = moe.router.kept_groups,
                     .groups_by_two = moe.router.group_score == GroupScore::kTopTwo};
  }
  return sizes;
}

}  // namespace hone
