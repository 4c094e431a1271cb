// Qwen2 and Mistral: which layers have a window, which weights have a bias, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/text/json.h"
#include "models/registry.h"

namespace hone {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

Json dense(const char* architecture) {
  return {{"architectures", {architecture}}, {"vocab_size", 32},         {"hidden_size", 16},
          {"num_attention_heads", 4},        {"num_key_value_heads", 2}, {"num_hidden_layers", 3},
          {"intermediate_size", 24}};
}

DecoderConfig dense_decoder(const Json& json) { return read_decoder_config(HfConfig(json, "config.json")); }

std::vector<int64_t> dense_windows(const Json& json) {
  std::vector<int64_t> result;
  for (const LayerConfig& layer : dense_decoder(json).layers) result.push_back(layer.sliding_window);
  return result;
}

std::string dense_refusal(const Json& json) {
  try {
    dense_decoder(json);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Qwen2, HasBiasesOnQueriesKeysAndValuesOnly) {
  Json json = dense("Qwen2ForCausalLM");
  const DecoderConfig config = dense_decoder(json);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.o_bias || config.mlp_bias || config.qk_norm || config.tie_word_embeddings);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.layers[2].intermediate_size, 24);
  json["head_dim"] = 8;
  json["tie_word_embeddings"] = true;
  EXPECT_EQ(dense_decoder(json).head_dim, 8);
  EXPECT_TRUE(dense_decoder(json).tie_word_embeddings);
  json["qkv_bias"] = false;
  EXPECT_THAT(dense_refusal(json), testing::HasSubstr("qkv_bias: false is not supported"));
}

TEST(Qwen2, UsesAWindowOnlyWhereItIsSwitchedOn) {
  Json json = dense("Qwen2ForCausalLM");
  json["sliding_window"] = 9;
  json["max_window_layers"] = 1;
  EXPECT_THAT(dense_windows(json), Each(0));  // released models state a window and switch it off
  json["use_sliding_window"] = true;
  EXPECT_THAT(dense_windows(json), ElementsAre(0, 9, 9));
  json["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
  EXPECT_THAT(dense_windows(json), ElementsAre(9, 0, 0));
  json["use_sliding_window"] = false;
  EXPECT_THAT(dense_refusal(json), testing::HasSubstr("layer_types has sliding_attention"));
}

TEST(Mistral, HasOneWindowForAllLayersOrNone) {
  Json json = dense("MistralForCausalLM");
  EXPECT_THAT(dense_windows(json), Each(4096));  // the class's default
  json["sliding_window"] = 9;
  EXPECT_THAT(dense_windows(json), Each(9));
  json["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(dense_refusal(json), testing::HasSubstr("layer_types and sliding_window differ in layer 1"));
  json["sliding_window"] = nullptr;
  EXPECT_THAT(dense_refusal(json), testing::HasSubstr("layer_types and sliding_window differ in layer 0"));
  json.erase("layer_types");
  EXPECT_THAT(dense_windows(json), Each(0));
}

TEST(Mistral, HasNoBiases) {
  Json json = dense("MistralForCausalLM");
  json["head_dim"] = 6;  // as in Mistral-Nemo: not hidden_size / num_attention_heads
  const DecoderConfig config = dense_decoder(json);
  EXPECT_EQ(config.head_dim, 6);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.mlp_bias || config.qk_norm);
  json["attention_bias"] = true;
  EXPECT_THAT(dense_refusal(json), testing::HasSubstr("attention_bias: true is not supported"));
}

}  // namespace
}  // namespace hone
