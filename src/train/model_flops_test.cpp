#include "train/model_flops.h"
#include "core/thread_pool.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

/// The shape of Qwen3-30B-A3B.
DecoderConfig qwen3_30b() {
  DecoderConfig config;
  config.vocab_size = 151936;
  config.hidden_size = 2048;
  config.num_attention_heads = 32;
  config.num_key_value_heads = 4;
  config.head_dim = config.v_head_dim = 128;
  config.layers.assign(48, {.moe = true});
  config.moe.num_experts = 128;
  config.moe.num_experts_per_tok = 8;
  config.moe.moe_intermediate_size = 768;
  return config;
}

TEST(ModelFlops, AreThoseWorkedOutByHandForAReleasedModel) {
  // 18.874 M elements of attention, 0.262 M of the router and 37.749 M of eight experts in each of 48 layers, 311.16 M
  // of the head; 1.611 GFLOP of causal attention over 4096 tokens.
  const double tokens = 4096;
  const double flops = forward_flops(qwen3_30b(), {tokens, tokens, {tokens}});
  EXPECT_NEAR(flops / tokens / 1e9, 6.083 + 1.611, 0.002);
}

TEST(ModelFlops, OnlySupervisedTokensHaveLogits) {
  const double all = forward_flops(qwen3_30b(), {100, 100, {}}), half = forward_flops(qwen3_30b(), {100, 50, {}});
  EXPECT_DOUBLE_EQ(all - half, 2.0 * 50 * 2048 * 151936);
}

TEST(ModelFlops, LinearAttentionHasNoPairs) {
  DecoderConfig config = qwen3_30b();
  config.delta_net.heads = {.num_key_heads = 2, .num_value_heads = 4, .key_dim = 8, .value_dim = 16};
  for (LayerConfig& layer : config.layers) layer.mixer = MixerKind::kGatedDeltaNet;
  EXPECT_DOUBLE_EQ(forward_flops(config, {10, 10, {10}}), forward_flops(config, {10, 10, {3e3}}));
}

TEST(ModelFlops, DocumentsAttendToThemselvesOnly) {
  StepData data;
  data.micro_batches.resize(2);
  data.micro_batches[0].input_ids.resize(6);
  data.micro_batches[0].cu_seqlens = {0, 2, 6};
  data.micro_batches[0].rows = {0, 3, 4};
  data.micro_batches[1].input_ids.resize(3);
  data.micro_batches[1].cu_seqlens = {0, 3};
  const ForwardWork work = work_of(data);
  EXPECT_EQ(work.tokens, 9);
  EXPECT_EQ(work.supervised, 3);
  EXPECT_EQ(work.pairs(0), (4 + 16 + 9) / 2.0);
}

TEST(ModelFlops, AWindowBoundsThePairsOfItsLayers) {
  const ForwardWork work{100, 0, {4, 16}};
  EXPECT_EQ(work.pairs(0), (16 + 256) / 2.0);
  EXPECT_EQ(work.pairs(16), work.pairs(0));
  EXPECT_EQ(work.pairs(4), 16 / 2.0 + (256 - 144) / 2.0);
  DecoderConfig config = qwen3_30b();
  const double full = forward_flops(config, work);
  for (size_t i = 0; i < 24; ++i) config.layers[i].sliding_window = 4;
  EXPECT_DOUBLE_EQ(full - forward_flops(config, work), 2.0 * 24 * 32 * 256 * (work.pairs(0) - work.pairs(4)));
}

TEST(ModelFlops, AGpuIsKnownByWholeWordsOfItsName) {
  EXPECT_EQ(rate_of_gpu("NVIDIA H200")->bf16, 989.4);
  EXPECT_EQ(rate_of_gpu("NVIDIA H100 PCIe")->bf16, 756);
  EXPECT_EQ(rate_of_gpu("NVIDIA A100-SXM4-80GB")->bf16, 312);
  EXPECT_EQ(rate_of_gpu("NVIDIA A40")->bf16, 149.7);
  EXPECT_EQ(rate_of_gpu("NVIDIA L40S")->bf16, 362);
  EXPECT_EQ(rate_of_gpu("NVIDIA GeForce RTX 5090")->float32, 104.8);
  EXPECT_FALSE(rate_of_gpu("NVIDIA RTX A4000"));
  EXPECT_FALSE(rate_of_gpu("NVIDIA GeForce RTX 3060"));
}

TEST(ModelFlops, ACpuIsMeasured) {
  ThreadPool pool(1);
  const std::optional<double> rate = peak_flops({}, DType::kF32, pool);
  ASSERT_TRUE(rate);
  EXPECT_GT(*rate, 1e7);
  EXPECT_LT(*rate, 1e13);
}

}  // namespace
}  // namespace hone
