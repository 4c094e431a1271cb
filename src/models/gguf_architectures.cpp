// The table of architectures of GGUF files, with their own settings and names, and the row for a model or a file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/text/json.h"
#include "models/gguf.h"

namespace hone {

namespace {

// Settings that architectures share.

/// Layers before the first one with experts.
int64_t leading_dense(const DecoderConfig& model) {
  const auto sparse =
      std::find_if(model.layers.begin(), model.layers.end(), [](const LayerConfig& l) { return l.moe; });
  return sparse - model.layers.begin();
}

int64_t first_width(const DecoderConfig& model) { return model.layers.front().intermediate_size; }
int64_t shared_width(const DecoderConfig& model) { return model.moe.shared_expert_intermediate_size; }
int64_t expert_width(const DecoderConfig& model) { return model.moe.moe_intermediate_size; }

GgufSetting shared_width_as(std::string_view field) {
  return {.key = "expert_shared_feed_forward_length", .field = field, .value = shared_width};
}

GgufSetting shared_count_as(std::string_view field) {
  return {.key = "expert_shared_count", .field = field, .value = [](const DecoderConfig& model) {
            return shared_width(model) / expert_width(model);
          }};
}

GgufSetting leading_dense_as(std::string_view field) {
  return {.key = "leading_dense_block_count", .field = field, .value = leading_dense, .absent = "0"};
}

/// For rows in which feed_forward_length says it, too.
GgufSetting own_width() { return {.key = "expert_feed_forward_length", .field = "", .value = expert_width}; }

/// The numbers of llama.cpp's functions of a router's logits.
constexpr int64_t kGatingSoftmax = 1, kGatingSigmoid = 2;

GgufSetting gating() {
  return {.key = "expert_gating_func", .field = "", .value = [](const DecoderConfig& model) {
            return model.moe.router.scores == RouterScores::kSigmoid ? kGatingSigmoid : kGatingSoftmax;
          }};
}

using Settings = std::vector<GgufSetting>;
using Names = std::vector<GgufName>;

template <class Row>
std::vector<Row> operator+(std::vector<Row> a, const std::vector<Row>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

GgufSetting weights_scale_as(std::string_view field) {
  return {.key = "expert_weights_scale",
          .field = field,
          .value = [](const DecoderConfig& model) { return static_cast<double>(model.moe.router.scale); },
          .absent = "1.0"};
}

GgufSetting weights_norm_as(std::string_view field) {
  return {.key = "expert_weights_norm",
          .field = field,
          .value = [](const DecoderConfig& model) { return model.moe.router.normalise; },
          .absent = "false"};
}

Settings deepseek_experts() {
  return {leading_dense_as("first_k_dense_replace"), shared_count_as("n_shared_experts"), gating(),
          weights_scale_as("routed_scaling_factor"), weights_norm_as("norm_topk_prob")};
}

/// llama.cpp scores a group by its two best.
Settings groups() {
  return {{.key = "expert_group_count",
           .field = "n_group",
           .value = [](const DecoderConfig& model) { return model.moe.router.groups; },
           .absent = "1"},
          {.key = "expert_group_used_count",
           .field = "topk_group",
           .value = [](const DecoderConfig& model) { return model.moe.router.kept_groups; },
           .absent = "1"}};
}

/// llama.cpp multiplies by the weights of latents without an adapter's product.
Names latent_names() {
  using enum GgufPart;
  const std::string_view kv_b = "layers.%.self_attn.kv_b_proj.weight";
  return {{"layers.%.self_attn.q_proj.weight", "blk.%.attn_q.weight", kAll, false},
          {"layers.%.self_attn.q_a_proj.weight", "blk.%.attn_q_a.weight", kAll, false},
          {"layers.%.self_attn.q_b_proj.weight", "blk.%.attn_q_b.weight", kAll, false},
          {"layers.%.self_attn.kv_a_proj_with_mqa.weight", "blk.%.attn_kv_a_mqa.weight", kAll, false},
          {kv_b, "blk.%.attn_k_b.weight", kLatentKeys, false},
          {kv_b, "blk.%.attn_v_b.weight", kLatentValues, false}};
}

/// For models that score groups otherwise.
Settings one_group() {
  const auto one = [](const DecoderConfig&) { return int64_t{1}; };
  return {{.key = "expert_group_count", .field = "", .value = one},
          {.key = "expert_group_used_count", .field = "", .value = one}};
}

GgufSetting number(std::string_view key, std::string_view field, double DecoderConfig::*member,
                   std::string_view absent = "") {
  return {.key = key,
          .field = field,
          .value = [member](const DecoderConfig& model) { return model.*member; },
          .absent = absent};
}

Settings granite() {
  return {number("attention.scale", "attention_multiplier", &DecoderConfig::attention_scale),
          number("embedding_scale", "embedding_multiplier", &DecoderConfig::embedding_multiplier, "1.0"),
          number("residual_scale", "residual_multiplier", &DecoderConfig::residual_multiplier, "1.0"),
          number("logit_scale", "logits_scaling", &DecoderConfig::logits_scaling)};
}

/// The sizes of linear attention. llama.cpp has no values of another width than keys.
Settings delta_net() {
  const auto size = [](std::string_view key, std::string_view field, int64_t DeltaHeads::*member) {
    return GgufSetting{.key = key, .field = field, .value = [member](const DecoderConfig& model) {
                         return model.delta_net.heads.*member;
                       }};
  };
  return {size("ssm.state_size", "linear_key_head_dim", &DeltaHeads::key_dim),
          size("ssm.state_size", "linear_value_head_dim", &DeltaHeads::key_dim),
          size("ssm.group_count", "linear_num_key_heads", &DeltaHeads::num_key_heads),
          size("ssm.time_step_rank", "linear_num_value_heads", &DeltaHeads::num_value_heads),
          {.key = "ssm.inner_size",
           .field = "",
           .value =
               [](const DecoderConfig& model) {
                 return model.delta_net.heads.num_value_heads * model.delta_net.heads.value_dim;
               }},
          {.key = "ssm.conv_kernel",
           .field = "linear_conv_kernel_dim",
           .value = [](const DecoderConfig& model) { return model.delta_net.conv_taps; }},
          {.key = "full_attention_interval",
           .field = "full_attention_interval",
           .value =
               [](const DecoderConfig& model) {
                 int64_t linear = 0;
                 for (const LayerConfig& layer : model.layers) {
                   if (layer.mixer == MixerKind::kAttention) break;
                   ++linear;
                 }
                 return linear + 1;
               },
           .absent = "4"},
          {.key = "attention.recurrent_layers", .field = "", .value = [](const DecoderConfig& model) {
             std::vector<bool> recurrent;
             for (const LayerConfig& layer : model.layers) recurrent.push_back(is_recurrent(layer.mixer));
             return recurrent;
           }}};
}

Settings mamba() {
  const auto size = [](std::string_view key, std::string_view field, int64_t SsdHeads::*member) {
    return GgufSetting{.key = key, .field = field, .value = [member](const DecoderConfig& model) {
                         return model.mamba.heads.*member;
                       }};
  };
  return {size("ssm.state_size", "mamba_d_state", &SsdHeads::state_size),
          size("ssm.group_count", "mamba_n_groups", &SsdHeads::num_groups),
          size("ssm.time_step_rank", "mamba_n_heads", &SsdHeads::num_heads),
          {.key = "ssm.inner_size",
           .field = "",
           .value = [](const DecoderConfig& model) { return model.mamba.heads.inner(); }},
          {.key = "ssm.conv_kernel", .field = "mamba_d_conv", .value = [](const DecoderConfig& model) {
             return model.mamba.conv_taps;
           }}};
}

/// Sizes of Mamba-2 that config.json states one by one.
Settings nemotron_h() {
  const auto size = [](std::string_view key, std::string_view field, int64_t SsdHeads::*member) {
    return GgufSetting{.key = key, .field = field, .value = [member](const DecoderConfig& model) {
                         return model.mamba.heads.*member;
                       }};
  };
  return {size("ssm.state_size", "ssm_state_size", &SsdHeads::state_size),
          size("ssm.group_count", "n_groups", &SsdHeads::num_groups),
          size("ssm.time_step_rank", "mamba_num_heads", &SsdHeads::num_heads),
          {.key = "ssm.inner_size",
           .field = "mamba_head_dim",
           .value = [](const DecoderConfig& model) { return model.mamba.heads.inner(); },
           .unit = "mamba_num_heads"},
          {.key = "ssm.conv_kernel",
           .field = "conv_kernel",
           .value = [](const DecoderConfig& model) { return model.mamba.conv_taps; }},
          number("attention.layer_norm_epsilon", "layer_norm_epsilon", &DecoderConfig::rms_norm_eps)};
}

/// How queries are scaled by their position. llama.cpp's converter leaves it out, and the class has this factor.
Settings query_scaling() {
  return {{.key = "attention.temperature_scale",
           .field = "rope_parameters/llama_4_scaling_beta",
           .value = [](const DecoderConfig& model) { return model.latent.query_scaling.beta; },
           .absent = "0.1"},
          {.key = "attention.temperature_length", .field = "", .value = [](const DecoderConfig& model) {
             return model.latent.query_scaling.length;
           }}};
}

Settings gemma4() {
  const auto none = [](const DecoderConfig&) { return int64_t{0}; };
  return {{.key = "attention.sliding_window",
           .field = "sliding_window",
           .value =
               [](const DecoderConfig& model) {
                 int64_t window = 0;
                 for (const LayerConfig& layer : model.layers) window = std::max(window, layer.sliding_window);
                 return window;
               }},
          {.key = "attention.shared_kv_layers", .field = "", .value = none},
          {.key = "embedding_length_per_layer_input", .field = "", .value = none},
          number("final_logit_softcapping", "final_logit_softcapping", &DecoderConfig::logits_soft_cap, "30.0")};
}

/// What llama.cpp's converter says of Mamba-2 in models without it.
Settings unused_mamba() {
  Settings settings;
  for (const std::string_view key :
       {"ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size", "ssm.conv_kernel"}) {
    settings.push_back({.key = key, .field = "", .value = {}, .free = true});
  }
  return settings;
}

/// Layers without experts, whose MLP has the shared one's name.
Settings dense_shared_mlp() {
  return {{.key = "feed_forward_length", .field = "shared_intermediate_size", .value = first_width},
          {.key = "expert_shared_feed_forward_length", .field = "", .value = first_width}};
}

constexpr GgufName kPostAttentionNorm = {"layers.%.post_attention_layernorm.weight",
                                         "blk.%.post_attention_norm.weight"};

/// Linear attention of Qwen3-Next, whose projections are fused, and Qwen3.5, whose value heads are tiled.
Names delta_net_names() {
  using enum GgufPart;
  return {kPostAttentionNorm,
          {"layers.%.linear_attn.in_proj_qkvz.weight", "blk.%.attn_qkv.weight", kFusedQkv},
          {"layers.%.linear_attn.in_proj_qkvz.weight", "blk.%.attn_gate.weight", kFusedGates},
          {"layers.%.linear_attn.in_proj_ba.weight", "blk.%.ssm_ba.weight"},
          {"layers.%.linear_attn.in_proj_qkv.weight", "blk.%.attn_qkv.weight", kTiledQkv},
          {"layers.%.linear_attn.in_proj_z.weight", "blk.%.attn_gate.weight", kTiledValues},
          {"layers.%.linear_attn.in_proj_b.weight", "blk.%.ssm_beta.weight", kTiledHeads},
          {"layers.%.linear_attn.in_proj_a.weight", "blk.%.ssm_alpha.weight", kTiledHeads},
          {"layers.%.linear_attn.conv1d.weight", "blk.%.ssm_conv1d.weight", kTiledQkv},
          {"layers.%.linear_attn.dt_bias", "blk.%.ssm_dt.bias", kTiledHeads},
          {"layers.%.linear_attn.A_log", "blk.%.ssm_a", kTiledHeads},
          {"layers.%.linear_attn.norm.weight", "blk.%.ssm_norm.weight"},
          {"layers.%.linear_attn.out_proj.weight", "blk.%.ssm_out.weight", kTiledColumns}};
}

Names mamba_names() {
  using enum GgufPart;
  return {{"layers.%.mamba.in_proj.weight", "blk.%.ssm_in.weight"},
          {"layers.%.mamba.conv1d.weight", "blk.%.ssm_conv1d.weight"},
          {"layers.%.mamba.conv1d.bias", "blk.%.ssm_conv1d.bias"},
          {"layers.%.mamba.dt_bias", "blk.%.ssm_dt.bias"},
          {"layers.%.mamba.A_log", "blk.%.ssm_a", kColumn},
          {"layers.%.mamba.D", "blk.%.ssm_d", kColumn},
          {"layers.%.mamba.norm.weight", "blk.%.ssm_norm.weight", kGroups},
          {"layers.%.mamba.out_proj.weight", "blk.%.ssm_out.weight"}};
}

/// A layer's only half is its "mixer".
Names nemotron_h_names() {
  using enum GgufPart;
  return {{"embeddings.weight", "token_embd.weight"},
          {"norm_f.weight", "output_norm.weight"},
          {"layers.%.norm.weight", "blk.%.attn_norm.weight"},
          {"layers.%.mixer.in_proj.weight", "blk.%.ssm_in.weight"},
          {"layers.%.mixer.conv1d.weight", "blk.%.ssm_conv1d.weight"},
          {"layers.%.mixer.conv1d.bias", "blk.%.ssm_conv1d.bias"},
          {"layers.%.mixer.dt_bias", "blk.%.ssm_dt.bias"},
          {"layers.%.mixer.A_log", "blk.%.ssm_a", kColumn},
          {"layers.%.mixer.D", "blk.%.ssm_d", kColumn},
          {"layers.%.mixer.norm.weight", "blk.%.ssm_norm.weight", kGroups},
          {"layers.%.mixer.out_proj.weight", "blk.%.ssm_out.weight"},
          {"layers.%.mixer.q_proj.weight", "blk.%.attn_q.weight"},
          {"layers.%.mixer.k_proj.weight", "blk.%.attn_k.weight"},
          {"layers.%.mixer.v_proj.weight", "blk.%.attn_v.weight"},
          {"layers.%.mixer.o_proj.weight", "blk.%.attn_output.weight"},
          {"layers.%.mixer.up_proj.weight", "blk.%.ffn_up.weight"},
          {"layers.%.mixer.down_proj.weight", "blk.%.ffn_down.weight"},
          {"layers.%.mixer.gate.weight", "blk.%.ffn_gate_inp.weight"},
          {"layers.%.mixer.gate.e_score_correction_bias", "blk.%.exp_probs_b.bias"},
          {"layers.%.mixer.experts.up_proj", "blk.%.ffn_up_exps.weight"},
          {"layers.%.mixer.experts.down_proj", "blk.%.ffn_down_exps.weight"},
          {"layers.%.mixer.shared_experts.up_proj.weight", "blk.%.ffn_up_shexp.weight"},
          {"layers.%.mixer.shared_experts.down_proj.weight", "blk.%.ffn_down_shexp.weight"}};
}

/// llama.cpp adds an adapter's product to what experts' factors have multiplied already.
Names gemma4_names() {
  return {kPostAttentionNorm,
          {"layers.%.pre_feedforward_layernorm.weight", "blk.%.ffn_norm.weight"},
          {"layers.%.post_feedforward_layernorm.weight", "blk.%.post_ffw_norm.weight"},
          {"layers.%.post_feedforward_layernorm_1.weight", "blk.%.post_ffw_norm_1.weight"},
          {"layers.%.pre_feedforward_layernorm_2.weight", "blk.%.pre_ffw_norm_2.weight"},
          {"layers.%.post_feedforward_layernorm_2.weight", "blk.%.post_ffw_norm_2.weight"},
          {"layers.%.router.proj.weight", "blk.%.ffn_gate_inp.weight"},
          {"layers.%.router.scale", "blk.%.ffn_gate_inp.scale"},
          {"layers.%.router.per_expert_scale", "blk.%.ffn_down_exps.scale"},
          {"layers.%.experts.gate_up_proj", "blk.%.ffn_gate_up_exps.weight"},
          {"layers.%.experts.down_proj", "blk.%.ffn_down_exps.weight", GgufPart::kAll, false},
          {"layers.%.layer_scalar", "blk.%.layer_output_scale.weight"}};
}

/// A fused MLP in layers without experts.
Names dense_names() {
  using enum GgufPart;
  return {{"layers.%.shared_mlp.input_linear.weight", "blk.%.ffn_gate.weight", kGate},
          {"layers.%.shared_mlp.input_linear.weight", "blk.%.ffn_up.weight", kUp},
          {"layers.%.shared_mlp.output_linear.weight", "blk.%.ffn_down.weight"}};
}

}  // namespace

const std::vector<GgufArchitecture>& gguf_architectures() {
  static const std::vector<GgufArchitecture> table = {
      {.name = "llama",
       .hf_class = "LlamaForCausalLM",
       .model_type = "llama",
       .also = {"MistralForCausalLM"},
       .turns_neighbours = true,
       .takes_factors = true,
       .biases = GgufBiases::kAll},
      {.name = "llama",
       .hf_class = "MixtralForCausalLM",
       .model_type = "mixtral",
       .also = {},
       .experts = true,
       .turns_neighbours = true,
       .takes_factors = true,
       .count_field = "num_local_experts",
       .width_field = "intermediate_size",
       .width_is_dense = true,
       .fields = R"({"sliding_window": null})"},
      {.name = "qwen2", .hf_class = "Qwen2ForCausalLM", .model_type = "qwen2", .also = {}, .wide_heads = false},
      {.name = "qwen3", .hf_class = "Qwen3ForCausalLM", .model_type = "qwen3", .also = {}},
      {.name = "qwen2moe",
       .hf_class = "Qwen2MoeForCausalLM",
       .model_type = "qwen2_moe",
       .also = {},
       .experts = true,
       .may_tie = false,
       .wide_heads = false,
       .fields = R"({"norm_topk_prob": false})",
       .settings = {shared_width_as("shared_expert_intermediate_size")}},
      {.name = "qwen3moe",
       .hf_class = "Qwen3MoeForCausalLM",
       .model_type = "qwen3_moe",
       .also = {"Qwen3VLMoeForConditionalGeneration"},
       .experts = true,
       .fields = R"({"norm_topk_prob": true})"},
      {.name = "olmoe",
       .hf_class = "OlmoeForCausalLM",
       .model_type = "olmoe",
       .also = {},
       .experts = true,
       .may_tie = false,
       .wide_heads = false,
       .shared_heads = false,
       .width_field = "intermediate_size",
       .width_is_dense = true,
       .fields = R"({"norm_topk_prob": false})"},
      {.name = "gpt-oss",
       .hf_class = "GptOssForCausalLM",
       .model_type = "gpt_oss",
       .also = {},
       .experts = true,
       .may_tie = false,
       .windows = true,
       .yarn_between = true,
       .count_field = "num_local_experts",
       .width_field = "intermediate_size",
       .width_is_dense = true,
       .fields = R"({"attention_bias": true})",
       .settings = {own_width(),
                    {.key = "attention.sliding_window",
                     .field = "sliding_window",
                     .value = [](const DecoderConfig& model) { return model.layers.front().sliding_window; }}},
       .names = {kPostAttentionNorm}},
      {.name = "deepseek2",
       .hf_class = "DeepseekV3ForCausalLM",
       .model_type = "deepseek_v3",
       .also = {"KimiK25ForConditionalGeneration", "Glm4MoeLiteForCausalLM"},
       .experts = true,
       .gating = kGatingSigmoid,
       .latent = true,
       .count_field = "n_routed_experts",
       .fields = R"({"scoring_func": "sigmoid", "topk_method": "noaux_tc"})",
       .settings = deepseek_experts() + groups(),
       .names = latent_names()},
      {.name = "deepseek2",
       .hf_class = "DeepseekV2ForCausalLM",
       .model_type = "deepseek_v2",
       .also = {},
       .experts = true,
       .gating = kGatingSoftmax,
       .latent = true,
       .count_field = "n_routed_experts",
       .fields = R"({"scoring_func": "softmax", "topk_method": "greedy"})",
       .settings = deepseek_experts() + one_group(),
       .names = latent_names()},
      {.name = "mistral4",
       .hf_class = "Mistral4ForCausalLM",
       .model_type = "mistral4",
       .also = {"Mistral3ForConditionalGeneration"},
       .experts = true,
       .latent = true,
       .own_rope = true,
       .count_field = "n_routed_experts",
       .settings = deepseek_experts() + groups() + query_scaling(),
       .names = latent_names()},
      {.name = "glm4moe",
       .hf_class = "Glm4MoeForCausalLM",
       .model_type = "glm4_moe",
       .also = {"SolarOpenForCausalLM"},
       .experts = true,
       .biases = GgufBiases::kQueries,
       .rotary_field = "partial_rotary_factor",
       .qk_norm_field = "use_qk_norm",
       .count_field = "n_routed_experts",
       .settings = deepseek_experts() + groups(),
       .names = {kPostAttentionNorm}},
      {.name = "ernie4_5-moe",
       .hf_class = "Ernie4_5_MoeForCausalLM",
       .model_type = "ernie4_5_moe",
       .also = {},
       .experts = true,
       .count_field = "moe_num_experts",
       .used_field = "moe_k",
       .settings = {leading_dense_as("moe_layer_start_index"),
                    shared_count_as("moe_num_shared_experts"),
                    shared_width_as(""),
                    {.key = "interleave_moe_layer_step",
                     .field = "moe_layer_interval",
                     .value = [](const DecoderConfig&) { return int64_t{1}; }}}},
      {.name = "dots1",
       .hf_class = "Dots1ForCausalLM",
       .model_type = "dots1",
       .also = {},
       .experts = true,
       .may_tie = false,
       .shared_heads = false,
       .count_field = "n_routed_experts",
       .fields = R"({"sliding_window": null})",
       .settings = deepseek_experts() + groups()},
      {.name = "hy_v3",
       .hf_class = "HYV3ForCausalLM",
       .model_type = "hy_v3",
       .also = {},
       .experts = true,
       .settings = {{.key = "expert_shared_feed_forward_length",
                     .field = "num_shared_experts",
                     .value = shared_width,
                     .unit = "moe_intermediate_size"},
                    gating(),
                    weights_scale_as("router_scaling_factor"),
                    weights_norm_as("")},
       .names = {{"layers.%.mlp.e_score_correction_bias", "blk.%.exp_probs_b"}}},
      {.name = "hunyuan-moe",
       .hf_class = "HunYuanMoEV1ForCausalLM",
       .model_type = "hunyuan_v1_moe",
       .also = {},
       .experts = true,
       .used_field = "moe_topk",
       .width_field = "intermediate_size",
       .width_is_dense = true,
       .settings = {own_width(), shared_width_as(""), shared_count_as("")}},
      {.name = "minimax-m2",
       .hf_class = "MiniMaxM2ForCausalLM",
       .model_type = "minimax_m2",
       .also = {},
       .experts = true,
       .may_tie = false,
       .rotary_field = "rotary_dim",
       .count_field = "num_local_experts",
       .width_field = "intermediate_size",
       .width_is_dense = true,
       .settings = {own_width(), gating()}},
      {.name = "granitemoe",
       .hf_class = "GraniteMoeForCausalLM",
       .model_type = "granitemoe",
       .also = {},
       .experts = true,
       .shared = false,
       .turns_neighbours = true,
       .biases = GgufBiases::kAll,
       .count_field = "num_local_experts",
       .width_field = "intermediate_size",
       .width_is_dense = true,
       .settings = granite()},
      {.name = "granitemoe",
       .hf_class = "GraniteMoeSharedForCausalLM",
       .model_type = "granitemoeshared",
       .also = {"GraniteMoeHybridForCausalLM"},
       .experts = true,
       .shared = true,
       .turns_neighbours = true,
       .biases = GgufBiases::kAll,
       .count_field = "num_local_experts",
       .width_field = "intermediate_size",
       .width_is_dense = true,
       .settings = granite() + unused_mamba() + Settings{shared_width_as("shared_intermediate_size")}},
      {.name = "granitehybrid",
       .hf_class = "GraniteMoeHybridForCausalLM",
       .model_type = "granitemoehybrid",
       .also = {},
       .experts = true,
       .mamba = true,
       .optional_rope = true,
       .turns_neighbours = true,
       .biases = GgufBiases::kAll,
       .count_field = "num_local_experts",
       .width_field = "intermediate_size",
       .width_is_dense = true,
       .settings = granite() + mamba() + Settings{shared_width_as("shared_intermediate_size")},
       .names = mamba_names()},
      {.name = "granitehybrid",
       .hf_class = "GraniteMoeHybridForCausalLM",
       .model_type = "granitemoehybrid",
       .also = {},
       .mamba = true,
       .optional_rope = true,
       .turns_neighbours = true,
       .biases = GgufBiases::kAll,
       .fields = R"({"num_local_experts": 0, "num_experts_per_tok": 0})",
       .settings = granite() + mamba() + dense_shared_mlp(),
       .names = mamba_names() + dense_names()},
      {.name = "granite",
       .hf_class = "GraniteMoeHybridForCausalLM",
       .model_type = "granitemoehybrid",
       .also = {},
       .optional_rope = true,
       .turns_neighbours = true,
       .biases = GgufBiases::kAll,
       .fields = R"({"num_local_experts": 0, "num_experts_per_tok": 0})",
       .settings = granite() + dense_shared_mlp() + unused_mamba(),
       .names = dense_names()},
      {.name = "nemotron_h_moe",
       .hf_class = "NemotronHForCausalLM",
       .model_type = "nemotron_h",
       .also = {},
       .experts = true,
       .mamba = true,
       .halves = true,
       .may_tie = false,
       .count_field = "n_routed_experts",
       .fields = R"({"mlp_hidden_act": "relu2"})",
       .settings = nemotron_h() + groups() +
                   Settings{shared_width_as("moe_shared_expert_intermediate_size"),
                            {.key = "expert_shared_count",
                             .field = "n_shared_experts",
                             .value = [](const DecoderConfig&) { return int64_t{1}; },
                             .absent = "1"},
                            weights_scale_as("routed_scaling_factor"),
                            weights_norm_as("norm_topk_prob")},
       .names = nemotron_h_names()},
      {.name = "nemotron_h",
       .hf_class = "NemotronHForCausalLM",
       .model_type = "nemotron_h",
       .also = {},
       .mamba = true,
       .halves = true,
       .may_tie = false,
       .fields = R"({"mlp_hidden_act": "relu2"})",
       .settings = nemotron_h(),
       .names = nemotron_h_names()},
      {.name = "gemma4",
       .hf_class = "Gemma4ForCausalLM",
       .model_type = "gemma4_text",
       .also = {"Gemma4ForConditionalGeneration"},
       .experts = true,
       .two_heads = true,
       .windows = true,
       .used_field = "top_k_experts",
       .fields = R"({"hidden_activation": "gelu_pytorch_tanh", "enable_moe_block": true, "num_kv_shared_layers": 0,
                     "hidden_size_per_layer_input": 0, "use_bidirectional_attention": null})",
       .settings = gemma4(),
       .names = gemma4_names()},
      {.name = "gemma4",
       .hf_class = "Gemma4ForCausalLM",
       .model_type = "gemma4_text",
       .also = {"Gemma4ForConditionalGeneration"},
       .two_heads = true,
       .windows = true,
       .fields = R"({"hidden_activation": "gelu_pytorch_tanh", "enable_moe_block": false, "num_kv_shared_layers": 0,
                     "hidden_size_per_layer_input": 0, "use_bidirectional_attention": null})",
       .settings = gemma4(),
       .names = gemma4_names()},
      {.name = "qwen3next",
       .hf_class = "Qwen3NextForCausalLM",
       .model_type = "qwen3_next",
       .also = {},
       .experts = true,
       .rotary_field = "partial_rotary_factor",
       .fields = R"({"norm_topk_prob": true})",
       .settings = delta_net() + Settings{shared_width_as("shared_expert_intermediate_size")},
       .names = delta_net_names()},
      {.name = "qwen35moe",
       .hf_class = "Qwen3_5MoeForCausalLM",
       .model_type = "qwen3_5_moe_text",
       .also = {"Qwen3_5MoeForConditionalGeneration"},
       .experts = true,
       .rotary_field = "partial_rotary_factor",
       .settings =
           delta_net() + Settings{shared_width_as("shared_expert_intermediate_size"),
                                  {.key = "rope.dimension_sections",
                                   .field = "",
                                   .value =
                                       [](const DecoderConfig&) {
                                         return std::vector<int64_t>{11, 11, 10, 0};  // parts of images' positions
                                       },
                                   .free = true}},
       .names = delta_net_names()},
  };
  return table;
}

namespace {

std::string names_of_table() {
  std::set<std::string_view> names;
  for (const GgufArchitecture& row : gguf_architectures()) {
    names.insert(row.hf_class);
    names.insert(row.also.begin(), row.also.end());
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

const GgufArchitecture& gguf_architecture_of(const HfConfig& config, const DecoderConfig& model) {
  const std::string name = config.architecture();
  const bool mamba = std::any_of(model.layers.begin(), model.layers.end(),
                                 [](const LayerConfig& layer) { return layer.mixer == MixerKind::kMamba2; });
  for (const GgufArchitecture& row : gguf_architectures()) {
    const bool named = row.hf_class == name || std::find(row.also.begin(), row.also.end(), name) != row.also.end();
    if (named && row.experts == (model.moe.num_experts > 0) && row.mamba == mamba) return row;
  }
  throw UserError(fmt::format("{} is not written as GGUF", name), config.file(),
                  fmt::format("export safetensors, for convert_hf_to_gguf.py of llama.cpp; GGUF is written of {}",
                              names_of_table()));
}

const GgufArchitecture& gguf_architecture_of(const GgufMetadata& metadata) {
  const std::optional<std::string> name = metadata.text("general.architecture");
  if (!name)
    throw UserError("the file does not say its architecture", metadata.file, "general.architecture is missing");
  const auto integer = [&](const char* key, int64_t absent) {
    return metadata.integer(fmt::format("{}.{}", *name, key)).value_or(absent);
  };
  const bool experts = integer("expert_count", 0) > 0;
  const bool shared = integer("expert_shared_feed_forward_length", 0) > 0;
  const int64_t gating = integer("expert_gating_func", kGatingSoftmax);
  for (const GgufArchitecture& row : gguf_architectures()) {
    if (row.name == *name && row.experts == experts && row.gating.value_or(gating) == gating &&
        row.shared.value_or(shared) == shared) {
      return row;
    }
  }
  std::set<std::string_view> names;
  for (const GgufArchitecture& row : gguf_architectures()) names.insert(row.name);
  throw UserError(fmt::format("the GGUF architecture '{}' is not read", *name), metadata.file,
                  fmt::format("use the model's safetensors (hone download ORG/NAME); of GGUF, {} are read",
                              fmt::join(names, ", ")));
}

}  // namespace hone
