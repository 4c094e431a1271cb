#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "models/registry.h"

namespace hone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The released config.json of DeepSeek-V2-Lite, as far as it describes the model.
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

/// The same of DeepSeek-V3, without its quantisation.
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

DecoderConfig read(const Json& json) { return read_decoder_config(HfConfig(json, "config.json")); }

std::string refusal(Json json, const char* key, const Json& value) {
  json[key] = value;
  try {
    read(json);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
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
  EXPECT_TRUE(config.carried_prefixes.empty());
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
  EXPECT_THAT(config.carried_prefixes, ElementsAre("model.layers.61."));
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
  EXPECT_TRUE(config.carried_prefixes.empty());
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
