// Nemotron-H with experts (Nemotron-3-Nano, Nemotron-3.5-Lightning): layers of one half each, a mixer (Mamba-2, or
// attention without RoPE) or a feed-forward (experts with a shared one, or an MLP), all MLPs with a squared ReLU and no
// gate, and DeepSeek-V3's sigmoid router. Files name the model "backbone".
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "core/text/json.h"
#include "models/mamba.h"
#include "models/registry.h"

namespace hone {

namespace {

constexpr MambaKeys kNemotronKeys{.heads = "mamba_num_heads",
                                  .head_dim = "mamba_head_dim",
                                  .groups = "n_groups",
                                  .state_size = "ssm_state_size",
                                  .conv_taps = "conv_kernel"};

constexpr const char* kExpertFields[] = {"moe_intermediate_size",
                                         "moe_shared_expert_intermediate_size",
                                         "n_group",
                                         "n_routed_experts",
                                         "n_shared_experts",
                                         "norm_topk_prob",
                                         "num_experts_per_tok",
                                         "routed_scaling_factor",
                                         "topk_group"};

enum class LayerKind { kMamba, kAttention, kMoe, kMlp };

/// The names of a kind: in lists, there also by an older name, and its letter in a pattern.
struct KindNames {
  LayerKind kind;
  const char *name, *older;
  char letter;
};

constexpr KindNames kLayerKinds[] = {{LayerKind::kMamba, "linear_attention", "mamba", 'M'},
                                     {LayerKind::kAttention, "full_attention", "attention", '*'},
                                     {LayerKind::kMoe, "moe", "moe", 'E'},
                                     {LayerKind::kMlp, "mlp", "mlp", '-'}};

/// The kinds of a list of names, or of a pattern of letters.
std::vector<LayerKind> kinds_of(const HfConfig& config, const char* key) {
  const Json& value = config.json().at(key);
  if (!value.is_string() && !value.is_array()) config.refuse(fmt::format("{} does not list layers", key));
  std::vector<LayerKind> kinds;
  const auto add = [&](const Json& given, const auto& is_named) {
    const auto found = std::find_if(std::begin(kLayerKinds), std::end(kLayerKinds), is_named);
    if (found == std::end(kLayerKinds)) config.refuse(fmt::format("{}: {} is not supported", key, given.dump()));
    kinds.push_back(found->kind);
  };
  if (value.is_string()) {
    for (const char letter : value.get<std::string>()) {
      add(std::string(1, letter), [&](const KindNames& names) { return names.letter == letter; });
    }
  } else {
    for (const Json& given : value) {
      add(given, [&](const KindNames& names) { return given == names.name || given == names.older; });
    }
  }
  return kinds;
}

/// The layers, from any of the fields that state them.
std::vector<LayerKind> read_layers(const HfConfig& config) {
  std::vector<LayerKind> kinds;
  std::string stated;
  for (const char* key : {"layers_block_type", "layer_types", "hybrid_override_pattern"}) {
    if (!config.has(key)) continue;
    std::vector<LayerKind> read = kinds_of(config, key);
    if (!stated.empty() && read != kinds) config.refuse(fmt::format("{} and {} list different layers", stated, key));
    stated = key;
    kinds = std::move(read);
  }
  if (kinds.empty()) config.refuse("layers_block_type and hybrid_override_pattern are missing from the model's config");
  const auto count = static_cast<int64_t>(kinds.size());
  if (config.integer_or("num_hidden_layers", count) != count) {
    config.refuse(fmt::format("num_hidden_layers: {} lists {}", stated, count));
  }
  return kinds;
}

Mamba2Config read_nemotron_mamba(const HfConfig& config) {
  // A field with the older name counts.
  const auto key_of = [&](const char* key, const char* older) { return config.has(older) ? older : key; };
  Mamba2Config mamba;
  SsdHeads& heads = mamba.heads;
  heads.num_heads = read_mamba_size(config, kNemotronKeys.heads, 128);
  heads.head_dim = read_mamba_size(config, kNemotronKeys.head_dim, 64);
  heads.num_groups = read_mamba_size(config, key_of(kNemotronKeys.groups, "mamba_n_groups"), 8);
  heads.state_size = read_mamba_size(config, kNemotronKeys.state_size, 128);
  mamba.conv_taps = read_mamba_size(config, key_of(kNemotronKeys.conv_taps, "mamba_d_conv"), 4);
  mamba.conv_bias = config.boolean_or(key_of("use_conv_bias", "mamba_conv_bias"), true);
  mamba.proj_bias = config.boolean_or("use_bias", false);
  config.require("mamba_proj_bias", false);
  config.require("mamba_hidden_act", "silu");
  // The class bounds steps by time_step_min alone, which is meant for initial values, and not by time_step_limit.
  const double least = config.number_or(key_of("time_step_min", "mamba_dt_min"), 0.001);
  if (!(least >= 0 && std::isfinite(least))) config.refuse(fmt::format("time_step_min: {} is negative", least));
  heads.min_step = static_cast<float>(least);
  if (read_time_step_limit(config) != std::pair(0.0f, std::numeric_limits<float>::infinity())) {
    config.refuse(fmt::format("time_step_limit: {} is not supported (only 0 to infinity)",
                              config.json().at("time_step_limit").dump()));
  }
  check_mamba(config, kNemotronKeys, mamba);
  return mamba;
}

}  // namespace

DecoderConfig read_nemotron_h(const HfConfig& config) {
  const std::vector<LayerKind> kinds = read_layers(config);
  const double eps = config.number_or("layer_norm_epsilon", 1e-5);
  if (config.number_or("norm_eps", eps) != eps) config.refuse("norm_eps and layer_norm_epsilon differ");
  // No auxiliary loss: a selection bias balances the experts, which fine-tuning does not change.
  const ClassDefaults defaults = {.num_key_value_heads = 8,
                                  .head_dim = 128,
                                  .max_position_embeddings = 4096,
                                  .rms_norm_eps = eps,
                                  .router_aux_loss_coef = 0,
                                  .num_hidden_layers = static_cast<int64_t>(kinds.size())};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.rotates = false;
  decoder.pad_token_id = -1;  // its row is trained
  decoder.norm_weighting = NormWeighting::kOnce;
  config.require("mlp_hidden_act", "relu2");
  decoder.activation = {MlpActivation::Kind::kSquaredRelu};
  config.require("tie_word_embeddings", false);  // the class has two tensors in any case
  config.require("attention_bias", false);
  config.require("mlp_bias", false);
  config.require("residual_in_fp32", false);
  config.require("hidden_dropout", 0.0);
  config.require("sliding_window", nullptr);
  decoder.names = {.file_parts = {{"model.", "backbone."}},
                   .embedding = "embeddings",
                   .final_norm = "norm_f",
                   .mixer_norm = "norm",
                   .feed_forward_norm = "norm",
                   .attention = "mixer",
                   .mamba = "mixer",
                   .moe = "mixer",
                   .file_moe = "mixer",
                   .fused_gate_up = "experts.up_proj",
                   .mlp = "mixer",
                   .shared_expert = "mixer.shared_experts"};
  const auto any = [&](LayerKind kind) { return std::ranges::count(kinds, kind) > 0; };
  if (const Mamba2Config mamba = read_nemotron_mamba(config); any(LayerKind::kMamba)) decoder.mamba = mamba;
  config.require("moe_latent_size", nullptr);
  if (!any(LayerKind::kMoe)) {
    for (const char* key : kExpertFields) config.has(key);  // read, without effect
  } else {
    MoeConfig& moe = decoder.moe = config.read_moe("moe_intermediate_size", defaults);
    moe.router.scores = RouterScores::kSigmoid;
    moe.router.normalise = config.boolean_or("norm_topk_prob", true);
    moe.router.scale = static_cast<float>(config.number_or("routed_scaling_factor", 1.0));
    config.read_expert_groups(GroupScore::kTopTwo, config.integer_or("n_group", 1), config.integer_or("topk_group", 1),
                              moe);
    moe.selection_bias = true;
    config.require("n_shared_experts", 1);
    moe.shared_expert_intermediate_size = config.integer("moe_shared_expert_intermediate_size");
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    LayerConfig& layer = decoder.layers[i];
    layer.mixer = kinds[i] == LayerKind::kMamba       ? MixerKind::kMamba2
                  : kinds[i] == LayerKind::kAttention ? MixerKind::kAttention
                                                      : MixerKind::kNone;
    layer.moe = kinds[i] == LayerKind::kMoe;
    if (kinds[i] == LayerKind::kMlp) layer.intermediate_size = config.integer("intermediate_size");
    if (!layer.has_mixer() && !layer.has_feed_forward()) config.refuse("intermediate_size: 0 is out of range");
  }
  return decoder;
}

}  // namespace hone
