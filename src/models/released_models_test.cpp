// What released config.json files say of their models, and what classes of this autumn's architectures refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "models/models_testing.h"
#include "weights/quantization.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
using testing::read;
using testing::refusal;
using testing::sparse;
using testing::windows;

/// The config.json of a released model (tests/fixtures/config/released).
HfConfig released(const std::string& name) {
  return HfConfig::read_file(std::string(HONE_SOURCE_DIR) + "/tests/fixtures/config/released/" + name + ".json");
}

TEST(Released, Glm47FlashHasLatentHeadsOf256) {
  const HfConfig file = released("glm-4.7-flash");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.v_head_dim, 256);
  EXPECT_EQ(config.latent.q_lora_rank, 768);
  EXPECT_EQ(config.rope.rotary_dim, 64);
  EXPECT_TRUE(config.latent.rope_interleave && config.moe.selection_bias);
  EXPECT_EQ(config.moe.router.scale, 1.8f);
  EXPECT_EQ(config.num_moe_layers(), 46);
}

TEST(Released, Gemma4HasExpertsBesideMlpsAndWiderHeadsWithoutAWindow) {
  const HfConfig file = released("gemma-4-26b-a4b");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
  EXPECT_TRUE(config.tie_word_embeddings && config.qk_norm && config.value_norm &&
              !config.names.norm_after_mixer.empty());
  EXPECT_TRUE(config.layer_scalar && config.scaled_embedding && !config.qkv_bias);
  EXPECT_EQ(config.softmax_scale(), 1.0f);
  EXPECT_EQ(config.logits_soft_cap, 30.0);
  EXPECT_EQ(config.pad_token_id, 0);
  EXPECT_NEAR(config.embedding_multiplier, std::sqrt(2816.0), 1e-12);
  EXPECT_EQ(config.activation.kind, MlpActivation::Kind::kGeglu);
  EXPECT_EQ(config.num_moe_layers(), 30);
  EXPECT_EQ(config.moe.num_experts_per_tok, 8);
  EXPECT_EQ(config.moe.shared_expert_intermediate_size, 2112);
  EXPECT_TRUE(config.moe.reads_residual && config.moe.expert_scale && config.moe.router.normalise);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    const bool global = i % 6 == 5;
    EXPECT_EQ(layer.sliding_window, global ? 0 : 1024) << i;
    EXPECT_EQ(config.head_dim_of(layer), global ? 512 : 256) << i;
    EXPECT_EQ(config.kv_heads_of(layer), global ? 2 : 8) << i;
    EXPECT_EQ(layer.values_are_keys, global) << i;
    const RopeParameters& rope = config.rope_of(layer);
    EXPECT_EQ(rope.rotary_dim, global ? 512 : 256) << i;
    EXPECT_EQ(rope.scaling.type, global ? RopeType::kProportional : RopeType::kDefault) << i;
    EXPECT_EQ(rope.scaling.proportion, global ? 0.25 : 1.0) << i;
    EXPECT_EQ(rope.rope_theta, global ? 1e6 : 1e4) << i;
  }
  for (const char* kept : {"model.vision_tower.encoder.layers.0.mlp.up_proj.linear.weight",
                           "model.embed_vision.embedding_projection.weight"}) {
    EXPECT_TRUE(config.carried.contain(kept)) << kept;
  }
  EXPECT_FALSE(config.carried.contain("model.language_model.norm.weight"));
}

TEST(Gemma4, TransformersWritesSizesOfHeadsByLayer) {
  const HfConfig file = released("gemma-4-26b-a4b");
  Json json = file.json();
  Json& text = json["text_config"];
  for (const char* key : {"global_head_dim", "num_global_key_value_heads"}) text.erase(key);
  for (int layer = 5; layer < 30; layer += 6) {
    text["per_layer_config"][fmt::format("{:02}", layer)] = {{"head_dim", 512}, {"num_key_value_heads", 2}};
  }
  const HfConfig by_layer(json, "config.json");
  EXPECT_TRUE(read_decoder_config(by_layer) == read_decoder_config(file));
  EXPECT_THAT(by_layer.unread(), ::testing::IsEmpty());
  text["per_layer_config"]["05"]["head_dim"] = 256;
  EXPECT_THAT(refusal(json), HasSubstr("head_dim differs between layers of the same type"));
  text["per_layer_config"]["05"] = {{"intermediate_size", 64}};
  EXPECT_THAT(refusal(json), HasSubstr("intermediate_size of one layer is not supported"));
  for (const char* key : {"5", "30", "full_attention"}) {  // there is "05"
    Json other = json;
    other["text_config"]["per_layer_config"][key] = {{"head_dim", 512}};
    EXPECT_THAT(refusal(other), HasSubstr("is not the number of a layer")) << key;
  }
}

TEST(Gemma4, WhatIsNotComputedIsRefusedByName) {
  const Json text = released("gemma-4-26b-a4b").json().at("text_config");
  const auto changed = [&](const Json& fields) {
    Json json = text;
    json.update(fields);
    return json;
  };
  EXPECT_EQ(read(changed({{"enable_moe_block", false}})).layers.front().intermediate_size, 2112) << "a dense model";
  EXPECT_EQ(windows(read(changed({{"num_hidden_layers", 3}, {"layer_types", nullptr}}))),
            (std::vector<int64_t>{1024, 1024, 0}))
      << "the last layer has no window";
  EXPECT_THAT(refusal(changed({{"hidden_size_per_layer_input", 256}})), HasSubstr("E2B and E4B"));
  Json absent = text;
  absent.erase("hidden_size_per_layer_input");
  EXPECT_THAT(refusal(absent), HasSubstr("hidden_size_per_layer_input: 256")) << "the class's default";
  EXPECT_THAT(refusal(changed({{"num_kv_shared_layers", 20}})), HasSubstr("num_kv_shared_layers: 20"));
  EXPECT_THAT(refusal(changed({{"use_bidirectional_attention", "all"}})), HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(refusal(changed({{"hidden_activation", "silu"}})), HasSubstr("hidden_activation"));
  EXPECT_THAT(refusal(changed({{"num_global_key_value_heads", 3}})), HasSubstr("cannot share 3"));
  EXPECT_THAT(refusal(changed({{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}})),
              HasSubstr("rope_parameters.sliding_attention is missing"));
}

TEST(Released, MiniMaxM25IsSparseInEveryLayer) {
  const HfConfig file = released("minimax-m2.5");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
  EXPECT_EQ(config.rope.rotary_dim, 64);
  EXPECT_EQ(config.moe.num_experts, 256);
  EXPECT_EQ(config.num_moe_layers(), 62);
}

TEST(Released, GraniteFourMixesMambaAndAttentionWithoutRope) {
  const HfConfig file = released("granite-4.0-h-tiny");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
  const SsdHeads heads{.num_heads = 48, .head_dim = 64, .num_groups = 1, .state_size = 128};
  EXPECT_TRUE(config.mamba.heads == heads && config.mamba.conv_bias && !config.mamba.proj_bias);
  EXPECT_FALSE(config.rotates);
  EXPECT_EQ(config.layers[4].mixer, MixerKind::kMamba2);
  EXPECT_EQ(config.layers[5].mixer, MixerKind::kAttention);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.attention_scale, 0.0078125);
  EXPECT_EQ(config.num_moe_layers(), 40);
  EXPECT_EQ(config.moe.shared_expert_intermediate_size, 1024);
}

TEST(Released, Qwen36IsQwen35sTextModel) {
  const HfConfig file = released("qwen3.6-35b-a3b");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
  EXPECT_EQ(config.moe.num_experts, 256);
  EXPECT_EQ(config.layers[2].mixer, MixerKind::kGatedDeltaNet);
  EXPECT_EQ(config.layers[3].mixer, MixerKind::kAttention);
  EXPECT_EQ(config.rope.rotary_dim, 64);
  EXPECT_TRUE(config.carried.contain("mtp.layers.0.input_layernorm.weight"));
  EXPECT_TRUE(config.carried.contain("model.visual.blocks.0.norm1.weight"));
}

TEST(Released, KimiK26IsDeepseekV3WithExpertsIn4Bits) {
  const HfConfig file = released("kimi-k2.6");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
  EXPECT_EQ(config.moe.num_experts, 384);
  EXPECT_EQ(config.num_moe_layers(), 60);
  EXPECT_EQ(config.latent.q_lora_rank, 1536);
  EXPECT_EQ(config.moe.router.scale, 2.827f);
  EXPECT_TRUE(config.carried.contain("vision_tower.encoder.final_layernorm.weight"));
  EXPECT_EQ(config.carried.layers, "language_model.model.layers.");
  const auto quantization = read_quantization(file.json(), "config.json");
  ASSERT_TRUE(quantization);
  EXPECT_EQ(quantization->packed_format("model.language_model.layers.1.mlp.experts.down_proj", true), &int4_format(32));
  EXPECT_EQ(quantization->packed_format("model.language_model.layers.1.mlp.shared_experts.up_proj.weight", false),
            nullptr);
  Json json = file.json();
  json["text_config"]["model_type"] = "kimi_linear";
  EXPECT_THAT(refusal(json), HasSubstr("kimi_linear"));
}

TEST(Released, AConfigOfKimiK2WithoutArchitecturesIsDeepseekV3) {
  Json json = released("kimi-k2.6").json()["text_config"];
  json.erase("architectures");
  EXPECT_EQ(read(json).moe.num_experts, 384);
}

TEST(Released, SolarOpenIsSparseInEveryLayer) {
  const HfConfig file = released("solar-open-100b");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
  EXPECT_EQ(config.num_moe_layers(), 48);
  EXPECT_TRUE(config.moe.selection_bias && config.moe.router.normalise && !config.qk_norm);
  EXPECT_EQ(config.moe.shared_expert_intermediate_size, 1280);
  EXPECT_EQ(config.rope.rotary_dim, 128);
  Json json = file.json();
  json["first_k_dense_replace"] = 3;
  EXPECT_THAT(refusal(json), HasSubstr("first_k_dense_replace"));
}

TEST(Released, Hy3RoutesBySigmoidsWithABias) {
  const HfConfig file = released("hy3-preview");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
  EXPECT_TRUE(config.qk_norm && config.moe.selection_bias);
  EXPECT_EQ(config.moe.router.scale, 2.826f);
  EXPECT_EQ(config.num_moe_layers(), 79);
  EXPECT_EQ(config.layers[0].intermediate_size, 13312);
  Json json = file.json();
  json["first_k_dense_replace"] = 3;
  EXPECT_THAT(refusal(json), HasSubstr("first_k_dense_replace contradicts mlp_layer_types"));
  json["expert_hidden_dim"] = 1;
  EXPECT_THAT(refusal(json), HasSubstr("expert_hidden_dim"));
}

TEST(Released, NemotronThreeHasLayersOfOneHalf) {
  const HfConfig file = released("nemotron-3-nano-30b-a3b");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
  const SsdHeads heads{.num_heads = 64, .head_dim = 64, .num_groups = 8, .state_size = 128, .min_step = 0.001f};
  EXPECT_TRUE(config.mamba.heads == heads && config.mamba.conv_bias && !config.mamba.proj_bias);
  EXPECT_FALSE(config.rotates);
  EXPECT_EQ(config.activation.kind, MlpActivation::Kind::kSquaredRelu);
  ASSERT_EQ(config.layers.size(), 52u);
  std::map<MixerKind, int> mixers;
  for (const LayerConfig& layer : config.layers) {
    ++mixers[layer.mixer];
    EXPECT_NE(layer.has_mixer(), layer.has_feed_forward());
  }
  EXPECT_EQ(mixers,
            (std::map<MixerKind, int>{{MixerKind::kNone, 23}, {MixerKind::kMamba2, 23}, {MixerKind::kAttention, 6}}));
  EXPECT_EQ(config.layers[5].mixer, MixerKind::kAttention);
  EXPECT_EQ(config.num_moe_layers(), 23);
  EXPECT_EQ(config.moe.shared_expert_intermediate_size, 3712);
  EXPECT_EQ(config.moe.router.scale, 2.5f);
  EXPECT_EQ(config.pad_token_id, -1) << "its row of the embedding is trained";
}

Json nemotron(const Json& fields) {
  Json json = released("nemotron-3-nano-30b-a3b").json();
  json["hybrid_override_pattern"] = "ME*-";
  json["num_hidden_layers"] = 4;
  json.update(fields);
  return json;
}

TEST(NemotronH, ReadsLayersFromAPatternOrAList) {
  const DecoderConfig pattern = read(nemotron(Json::object()));
  EXPECT_EQ(pattern.layers[3].intermediate_size, 1856);
  EXPECT_TRUE(pattern.layers[1].moe);
  Json list = nemotron({{"layers_block_type", {"mamba", "moe", "full_attention", "mlp"}}});
  EXPECT_EQ(read(list).layers, pattern.layers);
  list.erase("hybrid_override_pattern");
  list.erase("num_hidden_layers");
  EXPECT_EQ(read(list).layers, pattern.layers);
  list["layers_block_type"] = {"mamba", "rnn"};
  EXPECT_THAT(refusal(list), HasSubstr("layers_block_type: \"rnn\""));
  EXPECT_THAT(refusal(nemotron({{"layers_block_type", {"mamba"}}})),
              HasSubstr("layers_block_type and hybrid_override_pattern list different layers"));
  EXPECT_THAT(refusal(nemotron({{"num_hidden_layers", 3}})), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(refusal(nemotron({{"hybrid_override_pattern", nullptr}})), HasSubstr("hybrid_override_pattern"));
  EXPECT_THAT(refusal(nemotron({{"hybrid_override_pattern", "MO"}})), HasSubstr("\"O\""));
}

TEST(NemotronH, IsReadWithoutExperts) {
  const DecoderConfig config = read(nemotron({{"hybrid_override_pattern", "M-*-"}}));
  EXPECT_EQ(config.num_moe_layers(), 0);
  EXPECT_EQ(config.moe.num_experts, 0);
}

TEST(NemotronH, RefusesByNameWhatItDoesNotTrain) {
  const std::pair<const char*, Json> fields[] = {{"moe_latent_size", 1024},
                                                 {"tie_word_embeddings", true},
                                                 {"mlp_hidden_act", "silu"},
                                                 {"attention_bias", true},
                                                 {"mlp_bias", true},
                                                 {"residual_in_fp32", true},
                                                 {"time_step_limit", {0.0, 0.1}},
                                                 {"n_shared_experts", 2},
                                                 {"norm_eps", 1e-6},
                                                 {"sliding_window", 4096}};
  for (const auto& [field, value] : fields) EXPECT_THAT(refusal(nemotron({{field, value}})), HasSubstr(field));
}

TEST(Released, ErnieNamesTheFieldThatItsClassDoesNotRead) {
  const HfConfig file = released("ernie-4.5-21b-a3b");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::ElementsAre("moe_capacity"));
  EXPECT_EQ(config.moe.num_experts_per_tok, 6);
  EXPECT_EQ(config.moe.shared_expert_intermediate_size, 3072);
  EXPECT_EQ(config.num_moe_layers(), 27);
}

TEST(Released, DotsRoutesAsDeepseekV3DoesAndNormalisesHeads) {
  const HfConfig file = released("dots.llm1");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
  EXPECT_TRUE(config.qk_norm && config.moe.selection_bias && config.moe.router.normalise);
  EXPECT_EQ(config.moe.router.scores, RouterScores::kSigmoid);
  EXPECT_EQ(config.moe.shared_expert_intermediate_size, 2816);
  EXPECT_EQ(config.moe.router.groups, 1);
  EXPECT_EQ(config.num_moe_layers(), 61);
  EXPECT_EQ(windows(config), std::vector<int64_t>(62, 0));
  Json json = file.json();
  json["scoring_func"] = "softmax";
  EXPECT_THAT(refusal(json), HasSubstr("scoring_func"));
  json = file.json();
  json["num_hidden_layers"] = 3;
  json["max_window_layers"] = 1;
  EXPECT_EQ(windows(read(json)), (std::vector<int64_t>{0, 0, 0})) << "without a window";
  json["sliding_window"] = 512;
  EXPECT_EQ(windows(read(json)), (std::vector<int64_t>{0, 512, 512}));
  json["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
  EXPECT_EQ(windows(read(json)), (std::vector<int64_t>{512, 0, 0}));
  json["sliding_window"] = nullptr;
  EXPECT_THAT(refusal(json), HasSubstr("sliding_window is not set"));
}

TEST(Glm4MoeLite, TheClassReadsKindsOfLayersAndNotTheNumberOfDenseOnes) {
  const auto lite = [](const Json& fields) {
    Json json = released("glm-4.7-flash").json();
    json["num_hidden_layers"] = 4;
    json.update(fields);
    return json;
  };
  EXPECT_EQ(sparse(read(lite(Json::object()))), (std::vector<bool>{false, true, true, true}));
  Json kinds = lite({{"mlp_layer_types", {"sparse", "dense", "sparse", "dense"}}});
  EXPECT_THAT(refusal(kinds), HasSubstr("first_k_dense_replace contradicts mlp_layer_types"));
  kinds.erase("first_k_dense_replace");
  EXPECT_EQ(sparse(read(kinds)), (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(read(kinds).layers[1].intermediate_size, 10240);
  EXPECT_EQ(read(kinds).layers[0].intermediate_size, 0);
  EXPECT_THAT(refusal(lite({{"first_k_dense_replace", 3}})), HasSubstr("first_k_dense_replace"));
  kinds["mlp_layer_types"] = {"sparse", "wide", "sparse", "dense"};
  EXPECT_THAT(refusal(kinds), HasSubstr("mlp_layer_types: \"wide\""));
  kinds["mlp_layer_types"] = {"sparse"};
  EXPECT_THAT(refusal(kinds), HasSubstr("mlp_layer_types does not list every layer"));
  EXPECT_THAT(refusal(lite({{"head_dim", 128}})), HasSubstr("head_dim"));
}

Json granite_four(const Json& fields) {
  Json json = released("granite-4.0-h-tiny").json();
  json["num_hidden_layers"] = 3;
  json["layer_types"] = {"mamba", "full_attention", "linear_attention"};
  json.update(fields);
  return json;
}

TEST(GraniteMoeHybrid, WithoutExpertsTheSharedMlpIsTheOnlyOne) {
  const DecoderConfig config = read(granite_four({{"num_local_experts", 0}, {"num_experts_per_tok", 0}}));
  EXPECT_EQ(config.num_moe_layers(), 0);
  EXPECT_EQ(config.layers[0].intermediate_size, 1024);
  EXPECT_EQ(config.names.mlp, "shared_mlp");
  EXPECT_TRUE(config.names.mlp_fused);
}

TEST(GraniteMoeHybrid, ReadsKindsOfLayersPositionsAndBoundsOfSteps) {
  EXPECT_EQ(read(granite_four(Json::object())).layers[1].mixer, MixerKind::kAttention);
  EXPECT_EQ(read(granite_four({{"layer_types", nullptr}})).layers[1].mixer, MixerKind::kMamba2);
  EXPECT_TRUE(read(granite_four({{"position_embedding_type", "rope"}})).rotates);
  EXPECT_FALSE(read(granite_four({{"position_embedding_type", nullptr}})).rotates);
  EXPECT_THAT(refusal(granite_four({{"position_embedding_type", "alibi"}})), HasSubstr("position_embedding_type"));
  EXPECT_THAT(refusal(granite_four({{"layer_types", {"mamba"}}})), HasSubstr("layer_types does not list every layer"));
  EXPECT_THAT(refusal(granite_four({{"layers_block_type", {"mamba", "mamba", "mamba"}}})),
              HasSubstr("layer_types and layers_block_type"));
  EXPECT_THAT(refusal(granite_four({{"layer_types", {"mamba", "moe", "mamba"}}})), HasSubstr("layer_types: \"moe\""));
  const SsdHeads heads = read(granite_four({{"time_step_limit", {0.25, {{"__float__", "Infinity"}}}}})).mamba.heads;
  EXPECT_EQ(heads.min_step, 0.25f);
  EXPECT_TRUE(std::isinf(heads.max_step));
  for (const Json& limit : {Json{2.0, 1.0}, Json{-1.0, 1.0}, Json{1.0}, Json{"0", 1.0}}) {
    EXPECT_THAT(refusal(granite_four({{"time_step_limit", limit}})), HasSubstr("time_step_limit")) << limit;
  }
}

TEST(GraniteMoeHybrid, WithoutMambaItsSizesDoNotMatter) {
  const HfConfig file(granite_four({{"layer_types", {"attention", "attention", "attention"}}, {"mamba_d_state", 256}}),
                      "");
  EXPECT_TRUE(read_decoder_config(file).mamba == Mamba2Config{});
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
}

TEST(GraniteMoeHybrid, RefusesSizesThatDoNotFit) {
  EXPECT_EQ(read(granite_four({{"mamba_d_head", "auto"}})).mamba.heads.head_dim, 64);
  for (const auto& [key, value] : {std::pair{"mamba_n_groups", 5},
                                   {"mamba_d_head", 32},
                                   {"mamba_d_state", 256},
                                   {"mamba_d_conv", 5},
                                   {"mamba_n_heads", 0}}) {
    EXPECT_THAT(refusal(granite_four({{key, value}})), HasSubstr(key));
  }
}

TEST(Released, Qwen3VlIsQwen3MoeBesideAVisionTower) {
  const HfConfig file = released("qwen3-vl-30b-a3b");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
  EXPECT_TRUE(config.qk_norm && config.moe.router.normalise && !config.tie_word_embeddings);
  EXPECT_EQ(config.rope.rope_theta, 5e6);
  EXPECT_EQ(config.rope.scaling.type, RopeType::kDefault);
  EXPECT_EQ(config.num_moe_layers(), 48);
  EXPECT_EQ(config.layer_module(3), "model.language_model.layers.3.");
  EXPECT_TRUE(config.carried.contain("model.visual.patch_embed.proj.weight"));
  Json json = file.json();
  json["text_config"]["norm_topk_prob"] = false;
  EXPECT_THAT(refusal(json), HasSubstr("norm_topk_prob"));
  json = file.json();
  json["text_config"]["moe_intermediate_size"] = 1024;
  EXPECT_THAT(refusal(json), HasSubstr("moe_intermediate_size: half of hidden_size"));
  json["text_config"]["head_dim"] = 64;
  json["head_dim"] = 128;
  json["text_config"]["moe_intermediate_size"] = 768;
  const HfConfig two(json, "config.json");
  EXPECT_EQ(read_decoder_config(two).head_dim, 64);
  EXPECT_THAT(two.unread(), ::testing::ElementsAre("head_dim")) << "differs from the text model's";
}

TEST(Released, HunyuanNormalisesHeadsAfterRopeAndStretchesThetaOnce) {
  const HfConfig file = released("hunyuan-a13b");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
  EXPECT_TRUE(config.qk_norm && config.qk_norm_last && config.moe.router.normalise && config.tie_word_embeddings);
  EXPECT_EQ(config.rope.scaling.alpha, 1000.0);
  EXPECT_EQ(config.moe.num_experts_per_tok, 8);
  EXPECT_EQ(config.moe.shared_expert_intermediate_size, 3072);
  EXPECT_EQ(config.num_moe_layers(), 32);
  const auto refused = [&](const char* key, const Json& value) {
    Json json = file.json();
    json[key] = value;
    return refusal(json);
  };
  EXPECT_THAT(refused("moe_topk", {8, 4}), HasSubstr("moe_topk: [8,4] is not supported"));
  EXPECT_THAT(refused("moe_topk", Json(std::vector<int>(31, 8))), HasSubstr("moe_topk"));
  EXPECT_THAT(refused("num_shared_expert", 2), HasSubstr("num_shared_expert: only 1"));
  EXPECT_THAT(refused("moe_intermediate_size", 1024), HasSubstr("moe_intermediate_size: only 3072"));
  for (const char* key : {"use_cla", "use_mla", "moe_drop_tokens"}) EXPECT_THAT(refused(key, true), HasSubstr(key));
  EXPECT_THAT(refused("use_qk_norm", false), HasSubstr("use_qk_norm"));
  Json linear = file.json();
  linear["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}, {"alpha", 1000.0}};
  const HfConfig other(linear, "config.json");
  EXPECT_FALSE(read_decoder_config(other).rope.scaling.alpha);
  EXPECT_THAT(other.unread(), ::testing::ElementsAre("rope_scaling.alpha"));
}

TEST(Released, MistralSmall4ScalesQueriesByPositionAndKeepsItsVisionTower) {
  const HfConfig file = released("mistral-small-4");
  const DecoderConfig config = read_decoder_config(file);
  EXPECT_THAT(file.unread(), ::testing::IsEmpty());
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.rope.rotary_dim, 64);
  EXPECT_EQ(config.rope.scaling.type, RopeType::kYarn);
  EXPECT_EQ(config.latent.query_scaling, (QueryScaling{.beta = 0.1, .length = 8192}));
  EXPECT_NEAR(config.attention_scale, 0.194969494733, 1e-11);
  EXPECT_EQ(config.moe.router.scores, RouterScores::kSoftmax);
  EXPECT_TRUE(config.moe.router.normalise && !config.tie_word_embeddings && !config.moe.selection_bias);
  EXPECT_EQ(config.num_moe_layers(), 36);
  EXPECT_EQ(config.carried.layers, "language_model.model.layers.");
  for (const char* kept : {"vision_tower.ln_pre.weight", "multi_modal_projector.linear_1.weight"}) {
    EXPECT_TRUE(config.carried.contain(kept)) << kept;
  }
  EXPECT_FALSE(config.carried.contain("language_model.model.norm.weight"));
}

TEST(Mistral4, WhatTheClassDoesNotComputeIsRefusedByName) {
  const Json text = released("mistral-small-4").json().at("text_config");
  const auto changed = [&](const Json& fields) {
    Json json = text;
    json.update(fields);
    return json;
  };
  EXPECT_EQ(read(changed({{"rope_parameters", nullptr}})).attention_scale, read(text).attention_scale);
  EXPECT_EQ(read(changed({{"rope_parameters", nullptr}})).latent.query_scaling.length, 8192);
  EXPECT_THAT(refusal(changed({{"rope_parameters", nullptr}, {"rope_theta", 1e6}})), HasSubstr("rope_theta"));
  EXPECT_THAT(refusal(changed({{"rope_scaling", {{"type", "yarn"}, {"factor", 128.0}}}})), HasSubstr("rope_scaling"));
  EXPECT_THAT(refusal(changed({{"rope_interleave", false}})), HasSubstr("rope_interleave"));
  EXPECT_THAT(refusal(changed({{"n_group", nullptr}})), HasSubstr("n_group: null"));
  Json rope = text["rope_parameters"];
  const auto with_rope = [&](const char* key, const Json& value) {
    Json all = rope;
    value.is_null() ? (void)all.erase(key) : (void)(all[key] = value);
    return changed({{"rope_parameters", all}});
  };
  EXPECT_THAT(refusal(with_rope("llama_4_scaling_beta", nullptr)), HasSubstr("llama_4_scaling_beta is missing"));
  EXPECT_THAT(refusal(with_rope("partial_rotary_factor", 0.25)), HasSubstr("partial_rotary_factor contradicts"));
  EXPECT_EQ(read(with_rope("llama_4_scaling_beta", 0.0)).latent.query_scaling.beta, 0.0);
  rope["attention_factor"] = 1.0;
  EXPECT_NEAR(read(with_rope("mscale_all_dim", 0.0)).attention_scale, 0.0883883476483, 1e-11);
  Json dense = released("mistral-small-4").json();
  dense["text_config"]["model_type"] = "mistral";
  EXPECT_THAT(refusal(dense), HasSubstr("text_config.model_type: \"mistral\" is not supported"));
}

}  // namespace
}  // namespace hone
