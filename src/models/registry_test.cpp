#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/models_testing.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
using testing::read;
using testing::refusal;
using testing::sparse;
using testing::windows;

Json base(const char* architecture) {
  return {{"architectures", {architecture}}, {"vocab_size", 32},         {"hidden_size", 16},
          {"num_attention_heads", 4},        {"num_key_value_heads", 2}, {"num_hidden_layers", 4},
          {"intermediate_size", 24},         {"rms_norm_eps", 1e-5}};
}

Json moe(const char* architecture, const char* experts_key) {
  Json json = base(architecture);
  json[experts_key] = 8;
  json["num_experts_per_tok"] = 2;
  json["moe_intermediate_size"] = 12;
  return json;
}

TEST(Registry, LlamaIsDenseWithFullAttention) {
  const DecoderConfig config = read(base("LlamaForCausalLM"));
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.rope.rope_theta, 10000.0);
  EXPECT_FALSE(config.qk_norm || config.qkv_bias || config.tie_word_embeddings);
  EXPECT_EQ(windows(config), (std::vector<int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(config.layers[3].intermediate_size, 24);
}

TEST(Registry, RopeThetaMayStandAtTheTopOrInRopeParameters) {
  Json json = base("LlamaForCausalLM");
  json["rope_theta"] = 500000.0;
  EXPECT_EQ(read(json).rope.rope_theta, 500000.0);
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_EQ(read(json).rope.rope_theta, 1e6);
}

TEST(Registry, TwoStatementsOfRopeThatDifferAreRefused) {
  Json json = base("LlamaForCausalLM");
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_THAT(refusal(json), HasSubstr("rope_scaling and rope_parameters are both there and differ"));
  json["rope_scaling"] = {{"type", "default"}};  // the same in another spelling
  EXPECT_EQ(read(json).rope.scaling.type, RopeType::kDefault);
  json["rope_scaling"] = Json::object();
  EXPECT_EQ(read(json).rope.scaling.type, RopeType::kDefault);
  json["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}}};
  EXPECT_THAT(refusal(json), HasSubstr("rope_parameters.full_attention is an object"));
}

TEST(Registry, AFactorMayLeaveAPartOfEachHeadUnturned) {
  Json json = base("LlamaForCausalLM");
  json["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(refusal(json), HasSubstr("partial_rotary_factor: 0.5 is not supported"));
  json = moe("Glm4MoeForCausalLM", "n_routed_experts");
  json["head_dim"] = 16;
  EXPECT_EQ(read(json).rope.rotary_dim, 8);
  json["partial_rotary_factor"] = 0.25;
  EXPECT_EQ(read(json).rope.rotary_dim, 4);
  json["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}};  // has precedence
  EXPECT_EQ(read(json).rope.rotary_dim, 8);
  for (const double wrong : {0.0, 1.5, 0.2}) {
    json["rope_parameters"]["partial_rotary_factor"] = wrong;
    EXPECT_THAT(refusal(json), HasSubstr("partial_rotary_factor")) << wrong;
  }
}

TEST(Registry, TheNumberOfExpertsHasTwoNames) {
  EXPECT_EQ(read(moe("Qwen3MoeForCausalLM", "num_experts")).moe.num_experts, 8);
  EXPECT_EQ(read(moe("Qwen3MoeForCausalLM", "num_local_experts")).moe.num_experts, 8);
  Json both = moe("Qwen3MoeForCausalLM", "num_experts");
  both["num_local_experts"] = 4;
  EXPECT_THAT(refusal(both), HasSubstr("differ"));
}

TEST(Registry, MixtralIsSparseEverywhereAndNamesItsFilesItsOwnWay) {
  Json json = moe("MixtralForCausalLM", "num_local_experts");
  json["sliding_window"] = 9;
  const DecoderConfig config = read(json);
  EXPECT_EQ(config.moe.moe_intermediate_size, 24);  // intermediate_size
  EXPECT_TRUE(config.moe.router.normalise);
  EXPECT_EQ(sparse(config), (std::vector<bool>{true, true, true, true}));
  EXPECT_EQ(windows(config), (std::vector<int64_t>{9, 9, 9, 9}));
  EXPECT_EQ(config.names.file_moe, "block_sparse_moe");
}

TEST(Registry, GptOssHasSinksBiasesAndAWindowInEverySecondLayer) {
  Json json = moe("GptOssForCausalLM", "num_local_experts");
  json.erase("layer_types");
  DecoderConfig config = read(json);
  EXPECT_EQ(windows(config), (std::vector<int64_t>{128, 0, 128, 0}));
  EXPECT_TRUE(config.attention_sinks && config.qkv_bias && config.o_bias);
  EXPECT_TRUE(config.moe.router_bias && config.moe.expert_bias && config.moe.router.normalise);
  EXPECT_EQ(config.activation.kind, MlpActivation::Kind::kClampedSwiglu);
  EXPECT_EQ(config.activation.limit, 7.0f);
  json["sliding_window"] = 16;
  json["swiglu_limit"] = 5;
  json["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  config = read(json);
  EXPECT_EQ(windows(config), (std::vector<int64_t>{0, 16, 0, 0}));
  EXPECT_EQ(config.activation.limit, 5.0f);
  json["swiglu_limit"] = -1;
  EXPECT_THAT(refusal(json), HasSubstr("swiglu_limit"));
}

TEST(Registry, Qwen3MoeMixesDenseAndSparseLayers) {
  Json json = moe("Qwen3MoeForCausalLM", "num_experts");
  EXPECT_EQ(sparse(read(json)), (std::vector<bool>{true, true, true, true}));
  json["decoder_sparse_step"] = 2;
  EXPECT_EQ(sparse(read(json)), (std::vector<bool>{false, true, false, true}));
  json["mlp_only_layers"] = {3};
  const DecoderConfig config = read(json);
  EXPECT_EQ(sparse(config), (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(config.layers[0].intermediate_size, 24);
  EXPECT_EQ(config.layers[1].intermediate_size, 0);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.moe.router.normalise);
  for (const Json& wrong : {Json(3), Json("0"), Json{{"a", 1}}, Json::array({"x"})}) {
    json["mlp_only_layers"] = wrong;
    EXPECT_THAT(refusal(json), HasSubstr("mlp_only_layers")) << wrong;
  }
}

TEST(Registry, Qwen2MoeHasAGatedSharedExpert) {
  Json json = moe("Qwen2MoeForCausalLM", "num_experts");
  EXPECT_THAT(refusal(json), HasSubstr("shared_expert_intermediate_size is missing"));
  json["shared_expert_intermediate_size"] = 20;
  json["mlp_only_layers"] = {1};
  const DecoderConfig config = read(json);
  EXPECT_EQ(config.moe.shared_expert_intermediate_size, 20);
  EXPECT_TRUE(config.moe.shared_expert_gate && config.qkv_bias);
  EXPECT_FALSE(config.moe.router.normalise || config.o_bias || config.qk_norm);
  EXPECT_EQ(sparse(config), (std::vector<bool>{true, false, true, true}));
  json["use_sliding_window"] = true;
  EXPECT_THAT(refusal(json), HasSubstr("use_sliding_window"));
}

TEST(Registry, OlmoeNormalisesAllHeadsTogetherAndMayClip) {
  Json json = moe("OlmoeForCausalLM", "num_experts");
  EXPECT_TRUE(read(json).qk_norm_whole);
  EXPECT_EQ(read(json).clip_qkv, 0.0);
  EXPECT_EQ(read(json).moe.moe_intermediate_size, 24);  // intermediate_size
  json["clip_qkv"] = 8.0;
  EXPECT_EQ(read(json).clip_qkv, 8.0);
  json["clip_qkv"] = -1.0;
  EXPECT_THAT(refusal(json), HasSubstr("clip_qkv"));
}

TEST(Registry, GraniteScalesWhatItsConfigSays) {
  Json json = moe("GraniteMoeForCausalLM", "num_local_experts");
  EXPECT_EQ(read(json).softmax_scale(), 1.0f);  // the default of attention_multiplier is 1
  json["attention_multiplier"] = 0.125;
  json["embedding_multiplier"] = 12.0;
  json["residual_multiplier"] = 0.22;
  json["logits_scaling"] = 6.0;
  const DecoderConfig config = read(json);
  EXPECT_EQ(config.softmax_scale(), 0.125f);
  EXPECT_EQ(config.embedding_multiplier, 12.0);
  EXPECT_EQ(config.residual_multiplier, 0.22);
  EXPECT_EQ(config.logits_scaling, 6.0);
  EXPECT_EQ(config.moe.shared_expert_intermediate_size, 0);
  json["logits_scaling"] = 0.0;
  EXPECT_THAT(refusal(json), HasSubstr("logits_scaling"));
  json["logits_scaling"] = 1.0;
  json["architectures"] = {"GraniteMoeSharedForCausalLM"};
  EXPECT_THAT(refusal(json), HasSubstr("shared_intermediate_size is missing"));
  json["shared_intermediate_size"] = 40;
  EXPECT_EQ(read(json).moe.shared_expert_intermediate_size, 40);
}

TEST(Registry, Glm4MoeRoutesAsDeepseekV3Does) {
  Json json = moe("Glm4MoeForCausalLM", "n_routed_experts");
  json["head_dim"] = 16;
  json["partial_rotary_factor"] = 0.5;
  json["n_shared_experts"] = 2;
  json["n_group"] = 4;
  json["topk_group"] = 2;
  json["routed_scaling_factor"] = 2.5;
  json["num_nextn_predict_layers"] = 1;
  const DecoderConfig config = read(json);
  EXPECT_EQ(config.rope.rotary_dim, 8);
  json.erase("partial_rotary_factor");
  EXPECT_EQ(read(json).rope.rotary_dim, 8);  // the default is half of a head
  EXPECT_EQ(config.moe.router.scores, RouterScores::kSigmoid);
  EXPECT_EQ(config.moe.router.group_score, GroupScore::kTopTwo);
  EXPECT_EQ(config.moe.router.groups, 4);
  EXPECT_EQ(config.moe.router.kept_groups, 2);
  EXPECT_EQ(config.moe.router.scale, 2.5f);
  EXPECT_TRUE(config.moe.router.normalise && config.moe.selection_bias);
  EXPECT_EQ(config.moe.shared_expert_intermediate_size, 24);
  EXPECT_EQ(sparse(config), (std::vector<bool>{false, true, true, true}));
  EXPECT_TRUE(config.carried.contain("model.layers.4.eh_proj.weight"));
  EXPECT_FALSE(config.carried.contain("model.layers.3.mlp.gate.weight"));
  for (const auto& [groups, kept] : {std::pair{3, 1}, {4, 5}, {8, 4}, {8, 1}, {0, 1}}) {
    json["n_group"] = groups;
    json["topk_group"] = kept;
    EXPECT_THAT(refusal(json), HasSubstr("_group")) << groups << ", " << kept;
  }
}

Json ernie() {
  Json json = moe("Ernie4_5_MoeForCausalLM", "moe_num_experts");
  json.erase("num_experts_per_tok");
  json["moe_k"] = 2;
  return json;
}

TEST(Registry, ErnieCorrectsASoftmaxAndRotatesNeighbours) {
  Json json = ernie();
  const DecoderConfig config = read(json);
  EXPECT_TRUE(config.rope_interleave && config.tie_word_embeddings && config.moe.selection_bias);
  EXPECT_EQ(config.moe.router.scores, RouterScores::kSoftmax);
  EXPECT_EQ(config.moe.router.least_sum, 1e-12f);
  EXPECT_TRUE(config.moe.router.normalise);
  EXPECT_EQ(config.moe.num_experts_per_tok, 2);
  EXPECT_EQ(config.moe.shared_expert_intermediate_size, 24);  // two of them, unless the file says otherwise
  EXPECT_EQ(config.moe.router_aux_loss_coef, 0.0);
  EXPECT_TRUE(config.carried.contain("model.mtp_block.0.mlp.gate.weight"));
  json["moe_num_shared_experts"] = 0;
  EXPECT_EQ(read(json).moe.shared_expert_intermediate_size, 0);
  json["num_experts_per_tok"] = 3;
  EXPECT_THAT(refusal(json), HasSubstr("moe_k"));
  json.erase("num_experts_per_tok");
  json["use_bias"] = true;
  EXPECT_THAT(refusal(json), HasSubstr("use_bias: true"));
  json["use_bias"] = false;
  json["moe_norm_min"] = -1;
  EXPECT_THAT(refusal(json), HasSubstr("moe_norm_min"));
  json.erase("moe_k");
  EXPECT_THAT(refusal(json), HasSubstr("num_experts_per_tok is missing"));
}

TEST(Registry, ErnieIsSparseBetweenTwoLayersAtAnInterval) {
  Json json = ernie();
  EXPECT_EQ(sparse(read(json)), (std::vector<bool>{false, true, true, true}));
  json["moe_layer_end_index"] = -1;
  EXPECT_EQ(sparse(read(json)), (std::vector<bool>{false, true, true, true}));
  json["moe_layer_end_index"] = 2;
  EXPECT_EQ(sparse(read(json)), (std::vector<bool>{false, true, true, false}));
  json["moe_layer_start_index"] = 0;
  json["moe_layer_interval"] = 2;
  EXPECT_EQ(sparse(read(json)), (std::vector<bool>{false, true, false, false}));
  json["moe_layer_interval"] = 0;
  EXPECT_THAT(refusal(json), HasSubstr("moe_layer_interval"));
}

TEST(Registry, MiniMaxM2NormalisesWholeRowsAndRotatesAPartOfEachHead) {
  Json json = moe("MiniMaxM2ForCausalLM", "num_local_experts");
  json["head_dim"] = 16;
  EXPECT_EQ(read(json).rope.rotary_dim, 16);
  json["rotary_dim"] = 6;
  const DecoderConfig config = read(json);
  EXPECT_EQ(config.rope.rotary_dim, 6);
  EXPECT_TRUE(config.qk_norm_whole && config.moe.selection_bias && config.moe.router.normalise);
  EXPECT_EQ(config.moe.router.scores, RouterScores::kSigmoid);
  EXPECT_EQ(config.moe.moe_intermediate_size, 24);  // intermediate_size
  EXPECT_EQ(config.moe.router_aux_loss_coef, 0.0);
  EXPECT_EQ(config.names.file_moe, "block_sparse_moe");
  EXPECT_EQ(config.names.file_selection_bias, "e_score_correction_bias");
  json["partial_rotary_factor"] = 0.5;  // has precedence
  EXPECT_EQ(read(json).rope.rotary_dim, 8);
  json["attn_type_list"] = {1, 1, 1, 1, 1, 1};  // a benchmark runs the first layers alone
  EXPECT_EQ(read(json).layers.size(), 4u);
  json["attn_type_list"] = {1, 0, 1, 1};
  EXPECT_THAT(refusal(json), HasSubstr("attn_type_list"));
  json.erase("attn_type_list");
  for (const auto& [key, value] : {std::pair<const char*, Json>{"use_qk_norm", false},
                                   {"qk_norm_type", "per_head"},
                                   {"scoring_func", "softmax"},
                                   {"use_routing_bias", false},
                                   {"shared_intermediate_size", 8},
                                   {"router_jitter_noise", 1.0}}) {
    Json other = json;
    other[key] = value;
    EXPECT_THAT(refusal(other), HasSubstr(key));
  }
}

TEST(Registry, NumbersThatWouldTakeAllMemoryAreRefusedByName) {
  Json json = moe("Glm4MoeForCausalLM", "n_routed_experts");
  for (const int64_t many : {int64_t{1} << 24, int64_t{1} << 40}) {
    json["n_routed_experts"] = many;
    EXPECT_THAT(refusal(json), HasSubstr("num_experts")) << many;
  }
  json = moe("Glm4MoeForCausalLM", "n_routed_experts");
  json["num_hidden_layers"] = 10000;
  json["n_routed_experts"] = 100000;
  EXPECT_THAT(refusal(json), HasSubstr("num_experts"));
  json = moe("Glm4MoeForCausalLM", "n_routed_experts");
  json["max_position_embeddings"] = 0;
  EXPECT_THAT(refusal(json), HasSubstr("max_position_embeddings"));
}

TEST(Registry, JitterIsAFractionOfOne) {
  Json json = moe("MixtralForCausalLM", "num_local_experts");
  json["router_jitter_noise"] = 0.01;
  EXPECT_EQ(read(json).moe.router_jitter_noise, 0.01);
  for (const double one : {1.0, 0.99999999999}) {  // in float32, in which the noise is drawn
    json["router_jitter_noise"] = one;
    EXPECT_THAT(refusal(json), HasSubstr("router_jitter_noise")) << one;
  }
}

TEST(Registry, Qwen3UsesAWindowOnlyWhereItIsSwitchedOn) {
  Json json = base("Qwen3ForCausalLM");
  json["sliding_window"] = 7;
  json["max_window_layers"] = 2;
  EXPECT_EQ(windows(read(json)), (std::vector<int64_t>{0, 0, 0, 0}));
  json["use_sliding_window"] = true;
  EXPECT_EQ(windows(read(json)), (std::vector<int64_t>{0, 0, 7, 7}));
  json["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(windows(read(json)), (std::vector<int64_t>{7, 0, 0, 7}));
  json["layer_types"] = {"sliding_attention"};
  EXPECT_THAT(refusal(json), HasSubstr("layer_types"));
}

/// A config of Qwen3-Next or, inside "text_config", of Qwen3.5.
Json gated_hybrid(const std::string& architecture) {
  Json json = moe(architecture.c_str(), "num_experts");
  json["shared_expert_intermediate_size"] = 20;
  json["head_dim"] = 8;
  return json;
}

std::vector<bool> linear(const DecoderConfig& config) {
  std::vector<bool> result;
  for (const LayerConfig& layer : config.layers) result.push_back(layer.mixer == MixerKind::kGatedDeltaNet);
  return result;
}

TEST(Registry, Qwen3NextMixesLinearAndFullAttention) {
  Json json = gated_hybrid("Qwen3NextForCausalLM");
  EXPECT_EQ(linear(read(json)), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(read(json).rope.rotary_dim, 2);  // the default is a quarter of a head
  json["full_attention_interval"] = 2;
  EXPECT_EQ(linear(read(json)), (std::vector<bool>{true, false, true, false}));
  json["layer_types"] = {"full_attention", "linear_attention", "linear_attention", "full_attention"};
  const DecoderConfig config = read(json);
  EXPECT_EQ(linear(config), (std::vector<bool>{false, true, true, false}));
  EXPECT_TRUE(config.delta_net.fused_projections && config.attention_output_gate && config.moe.shared_expert_gate);
  EXPECT_EQ(config.delta_net.heads.num_value_heads, 32);
  json["layer_types"][0] = "sliding_attention";
  EXPECT_THAT(refusal(json), HasSubstr("layer_types"));
  json["layer_types"] = {"full_attention"};
  EXPECT_THAT(refusal(json), HasSubstr("layer_types"));
}

TEST(Registry, Qwen35IsTheTextModelOfALargerOne) {
  Json json = base("Qwen3_5MoeForConditionalGeneration");
  EXPECT_THAT(refusal(json), HasSubstr("text_config"));
  json["text_config"] = gated_hybrid("");
  json["vision_config"] = {{"depth", 1}};
  const DecoderConfig config = read(json);
  EXPECT_EQ(config.names.prefix, "model.language_model.");
  EXPECT_THAT(config.carried.prefixes, ::testing::ElementsAre("model.visual.", "mtp."));
  EXPECT_FALSE(config.delta_net.fused_projections);
  EXPECT_EQ(sparse(config), (std::vector<bool>{true, true, true, true}));
  json["text_config"]["linear_num_key_heads"] = 5;
  EXPECT_THAT(refusal(json), HasSubstr("32 value heads cannot share 5 key heads"));
}

TEST(Registry, WhatIsNotSupportedIsRefusedByName) {
  EXPECT_THAT(refusal(base("GptNeoForCausalLM")), HasSubstr("'GptNeoForCausalLM' is not supported"));
  const auto with = [](const char* key, const Json& value) {
    Json json = base("LlamaForCausalLM");
    json[key] = value;
    return refusal(json);
  };
  EXPECT_THAT(with("hidden_act", "gelu"), HasSubstr("hidden_act: \"gelu\""));
  EXPECT_THAT(with("attention_dropout", 0.1), HasSubstr("attention_dropout"));
  EXPECT_THAT(with("quantization_config", Json{{"bits", 4}}), HasSubstr("quant_method"));
  EXPECT_THAT(with("num_attention_heads", 3), HasSubstr("3 attention heads"));
  EXPECT_THAT(with("vocab_size", "many"), HasSubstr("vocab_size"));
  EXPECT_THAT(with("hidden_size", -1), HasSubstr("hidden_size"));
  EXPECT_THAT(with("num_hidden_layers", 0), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(with("head_dim", 5), HasSubstr("head_dim"));
  Json missing = base("LlamaForCausalLM");
  missing.erase("vocab_size");
  EXPECT_THAT(refusal(missing), HasSubstr("vocab_size is missing"));
}

TEST(Registry, TheModelTypeNamesTheArchitectureWhereNothingElseDoes) {
  for (const Architecture& architecture : architectures()) {
    Json json = moe("", "num_experts");
    json["shared_expert_intermediate_size"] = json["shared_intermediate_size"] = 20;
    json["num_key_value_heads"] = 4;
    json["head_dim"] = 8;
    json["mamba_n_heads"] = json["mamba_d_state"] = 4;
    json["n_group"] = json["topk_group"] = json["n_shared_experts"] = 1;
    for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) json[key] = 8;
    if (architecture.name == "MiniMaxM2ForCausalLM")
      json.erase("shared_intermediate_size");  // there is no shared expert
    if (architecture.name == "HunYuanMoEV1ForCausalLM")
      json.erase("moe_intermediate_size");  // experts have intermediate_size
    if (architecture.name.starts_with("Mistral")) json["head_dim"] = 16;
    if (architecture.name.starts_with("Gemma4")) json["hidden_size_per_layer_input"] = 0;
    if (architecture.name == "NemotronHForCausalLM") {
      json["hybrid_override_pattern"] = std::string(json["num_hidden_layers"].get<size_t>(), 'E');
      json["moe_shared_expert_intermediate_size"] = 20;
    }
    json.erase("architectures");
    json["text_config"] = json;
    if (architecture.name.starts_with("Mistral3")) json["text_config"]["model_type"] = "mistral4";
    json["model_type"] = architecture.model_type;
    EXPECT_EQ(HfConfig(json, "").architecture(), architecture.name);
    EXPECT_NO_THROW(read(json));
  }
}

TEST(Registry, FieldsThatNobodyReadsAreNamed) {
  Json json = base("LlamaForCausalLM");
  json["transformers_version"] = "5.17.0";
  json["use_cache"] = true;
  json["rope_scaling"] = nullptr;
  json["is_llama_config"] = true;  // SmolLM2's own
  json["rope_interleaved"] = false;
  json["transformers.js_config"] = {{"kv_cache_dtype", {{"q4f16", "float16"}}}};
  json["_model_name_or_path"] = "elsewhere";
  json["_attn_implementation_autoset"] = true;
  json["new_gate"] = false;
  json["new_layers"] = Json::array();
  const HfConfig plain(json, "config.json");
  read_decoder_config(plain);
  EXPECT_THAT(plain.unread(), ::testing::IsEmpty());

  json["new_gate"] = true;
  json["logit_cap"] = 30.0;
  const HfConfig with_new(json, "config.json");
  read_decoder_config(with_new);
  EXPECT_THAT(with_new.unread(), ::testing::UnorderedElementsAre("new_gate", "logit_cap"));
}

TEST(Registry, FieldsOfAnObjectThatIsReadAreNamedWithIt) {
  const HfConfig config(Json{{"text_config", {{"known", 1}, {"unknown", 2}}}, {"vision_config", {{"depth", 3}}}}, "f");
  EXPECT_EQ(config.nested("text_config").integer("known"), 1);
  EXPECT_THAT(config.unread(), ::testing::ElementsAre("text_config.unknown"));
}

TEST(Registry, WhatRopeParametersHaveBesidesIsNamed) {
  Json json = base("LlamaForCausalLM");
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}, {"mrope_section", {1, 1}}, {"warp", 2}};
  const HfConfig config(json, "config.json");
  read_decoder_config(config);
  EXPECT_THAT(config.unread(), ::testing::ElementsAre("rope_parameters.warp"));
}

/// The fields of DeepSeek-V2-Lite's released config.json that describe the model.
Json v2_lite() {
  return Json::parse(R"({"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
    "attention_bias": false, "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "first_k_dense_replace": 1,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16,
    "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1,
    "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true,
    "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128,
    "vocab_size": 102400})");
}

/// The same for DeepSeek-V3, without its quantisation.
Json v3() {
  return Json::parse(R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "attention_bias": false, "attention_dropout": 0.0, "ep_size": 1, "first_k_dense_replace": 3,
    "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
    "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280})");
}

std::string refusal(Json json, const char* key, const Json& value) {
  json[key] = value;
  return refusal(json);
}

TEST(DeepseekV2, LiteProjectsQueriesInOneStepAndRoutesGreedily) {
  const DecoderConfig config = read(v2_lite());
  EXPECT_EQ(config.latent.q_lora_rank, 0);
  EXPECT_EQ(config.latent.kv_lora_rank, 512);
  EXPECT_EQ(config.head_dim, 192);
  EXPECT_EQ(config.v_head_dim, 128);
  EXPECT_EQ(config.rope.rotary_dim, 64);
  EXPECT_TRUE(config.latent.rope_interleave);
  EXPECT_FALSE(config.layers[0].moe);
  EXPECT_EQ(config.layers[0].intermediate_size, 10944);
  EXPECT_TRUE(config.layers[1].moe && config.layers[26].moe);
  EXPECT_EQ(config.layers[26].mixer, MixerKind::kLatentAttention);
  EXPECT_EQ(config.moe.num_experts, 64);
  EXPECT_EQ(config.moe.shared_expert_intermediate_size, 2 * 1408);
  EXPECT_FALSE(config.moe.shared_expert_gate || config.moe.selection_bias || config.moe.router.normalise);
  EXPECT_EQ(config.moe.router.scores, RouterScores::kSoftmax);
  EXPECT_EQ(config.moe.router.groups, 1);
  EXPECT_EQ(config.moe.router_aux_loss_coef, 0.0);
}

TEST(DeepseekV2, TheLargeOneLimitsGroupsByTheirBestExpert) {
  Json json = v2_lite();
  json.update(Json{{"q_lora_rank", 1536},
                   {"n_routed_experts", 160},
                   {"topk_method", "group_limited_greedy"},
                   {"n_group", 8},
                   {"topk_group", 3},
                   {"routed_scaling_factor", 16.0}});
  const DecoderConfig config = read(json);
  EXPECT_EQ(config.latent.q_lora_rank, 1536);
  EXPECT_EQ(config.moe.router.groups, 8);
  EXPECT_EQ(config.moe.router.kept_groups, 3);
  EXPECT_EQ(config.moe.router.group_score, GroupScore::kLargest);
  EXPECT_EQ(config.moe.router.scale, 16.0f);
}

TEST(DeepseekV3, RoutesBySigmoidsInGroupsWithABias) {
  const DecoderConfig config = read(v3());
  EXPECT_EQ(config.latent.q_lora_rank, 1536);
  EXPECT_EQ(config.moe.router.scores, RouterScores::kSigmoid);
  EXPECT_EQ(config.moe.router.group_score, GroupScore::kTopTwo);
  EXPECT_EQ(config.moe.router.groups, 8);
  EXPECT_EQ(config.moe.router.kept_groups, 4);
  EXPECT_EQ(config.moe.router.scale, 2.5f);
  EXPECT_TRUE(config.moe.router.normalise && config.moe.selection_bias);
  EXPECT_EQ(config.moe.shared_expert_intermediate_size, 2048);
  EXPECT_EQ(config.num_moe_layers(), 58);
  EXPECT_TRUE(config.carried.contain("model.layers.61.enorm.weight"));
}

/// scale = 192^-0.5 · (0.1 · mscale_all_dim · ln 40 + 1)²
TEST(DeepseekV3, YarnSharpensTheScores) {
  const auto scale = [](double mscale) {
    const double factor = 0.1 * mscale * std::log(40.0) + 1;
    return factor * factor / std::sqrt(192.0);
  };
  EXPECT_DOUBLE_EQ(read(v3()).attention_scale, scale(1.0));
  EXPECT_DOUBLE_EQ(read(v2_lite()).attention_scale, scale(0.707));
  Json plain = v3();
  plain.erase("rope_scaling");
  EXPECT_DOUBLE_EQ(read(plain).attention_scale, scale(0));
}

TEST(DeepseekV3, HalvesMayBePairedInstead) {
  Json json = v3();
  json["rope_interleave"] = false;
  EXPECT_FALSE(read(json).latent.rope_interleave);
}

TEST(DeepseekV3, KimiK2IsOneOfIt) {
  Json json = v3();
  json["model_type"] = "kimi_k2";
  json.update(Json{{"n_routed_experts", 384},
                   {"n_group", 1},
                   {"topk_group", 1},
                   {"num_attention_heads", 64},
                   {"num_key_value_heads", 64},
                   {"first_k_dense_replace", 1},
                   {"num_nextn_predict_layers", 0}});
  const DecoderConfig config = read(json);
  EXPECT_EQ(config.moe.num_experts, 384);
  EXPECT_EQ(config.moe.router.groups, 1);
  EXPECT_TRUE(config.layers[1].moe);
}

TEST(Deepseek, WhatIsNotSupportedIsRefusedByName) {
  EXPECT_THAT(refusal(v2_lite(), "topk_method", "noaux_tc"), HasSubstr("topk_method: \"noaux_tc\""));
  EXPECT_THAT(refusal(v2_lite(), "norm_topk_prob", true), HasSubstr("norm_topk_prob: true"));
  EXPECT_THAT(refusal(v2_lite(), "scoring_func", "sigmoid"), HasSubstr("scoring_func"));
  EXPECT_THAT(refusal(v2_lite(), "mlp_bias", true), HasSubstr("mlp_bias"));
  EXPECT_THAT(refusal(v3(), "scoring_func", "softmax"), HasSubstr("scoring_func"));
  EXPECT_THAT(refusal(v3(), "topk_method", "greedy"), HasSubstr("topk_method"));
  EXPECT_THAT(refusal(v3(), "num_key_value_heads", 64), HasSubstr("num_key_value_heads: 64"));
  EXPECT_THAT(refusal(v3(), "kv_lora_rank", nullptr), HasSubstr("kv_lora_rank is missing"));
  EXPECT_THAT(refusal(v3(), "kv_lora_rank", 0), HasSubstr("kv_lora_rank: 0"));
  EXPECT_THAT(refusal(v3(), "v_head_dim", "128"), HasSubstr("v_head_dim"));
  EXPECT_THAT(refusal(v3(), "qk_rope_head_dim", 63), HasSubstr("qk_rope_head_dim: 63"));
  EXPECT_THAT(refusal(v3(), "n_group", 7), HasSubstr("n_group: 256 experts cannot be cut into 7 groups"));
  EXPECT_THAT(refusal(v3(), "topk_group", 9), HasSubstr("topk_group: 9 of 8 groups"));
  EXPECT_THAT(refusal(v3(), "moe_layer_freq", 0), HasSubstr("moe_layer_freq"));
  EXPECT_THAT(refusal(v3(), "n_routed_experts", nullptr), HasSubstr("num_experts is missing"));
}

}  // namespace
}  // namespace hone
