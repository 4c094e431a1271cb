// Qwen2 and Mistral: which layers have a window, which weights have a bias, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/models_testing.h"

namespace hone {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::read;
using testing::refusal;
using testing::windows;

Json dense(const char* architecture) {
  return {{"architectures", {architecture}}, {"vocab_size", 32},         {"hidden_size", 16},
          {"num_attention_heads", 4},        {"num_key_value_heads", 2}, {"num_hidden_layers", 3},
          {"intermediate_size", 24}};
}

TEST(Qwen2, HasBiasesOnQueriesKeysAndValuesOnly) {
  Json json = dense("Qwen2ForCausalLM");
  const DecoderConfig config = read(json);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.o_bias || config.mlp_bias || config.qk_norm || config.tie_word_embeddings);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.layers[2].intermediate_size, 24);
  json["head_dim"] = 8;
  json["tie_word_embeddings"] = true;
  EXPECT_EQ(read(json).head_dim, 8);
  EXPECT_TRUE(read(json).tie_word_embeddings);
  json["qkv_bias"] = false;
  EXPECT_THAT(refusal(json), HasSubstr("qkv_bias: false is not supported"));
}

TEST(Qwen2, UsesAWindowOnlyWhereItIsSwitchedOn) {
  Json json = dense("Qwen2ForCausalLM");
  json["sliding_window"] = 9;
  json["max_window_layers"] = 1;
  EXPECT_THAT(windows(read(json)), Each(0));  // released models state a window and switch it off
  json["use_sliding_window"] = true;
  EXPECT_THAT(windows(read(json)), ElementsAre(0, 9, 9));
  json["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
  EXPECT_THAT(windows(read(json)), ElementsAre(9, 0, 0));
  json["use_sliding_window"] = false;
  EXPECT_THAT(refusal(json), HasSubstr("layer_types has sliding_attention"));
}

TEST(Mistral, HasOneWindowForAllLayersOrNone) {
  Json json = dense("MistralForCausalLM");
  EXPECT_THAT(windows(read(json)), Each(4096));  // the class's default
  json["sliding_window"] = 9;
  EXPECT_THAT(windows(read(json)), Each(9));
  json["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(refusal(json), HasSubstr("layer_types and sliding_window differ in layer 1"));
  json["sliding_window"] = nullptr;
  EXPECT_THAT(refusal(json), HasSubstr("layer_types and sliding_window differ in layer 0"));
  json.erase("layer_types");
  EXPECT_THAT(windows(read(json)), Each(0));
}

TEST(Mistral, HasNoBiases) {
  Json json = dense("MistralForCausalLM");
  json["head_dim"] = 6;  // as in Mistral-Nemo: not hidden_size / num_attention_heads
  const DecoderConfig config = read(json);
  EXPECT_EQ(config.head_dim, 6);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.mlp_bias || config.qk_norm);
  json["attention_bias"] = true;
  EXPECT_THAT(refusal(json), HasSubstr("attention_bias: true is not supported"));
}

}  // namespace
}  // namespace hone
