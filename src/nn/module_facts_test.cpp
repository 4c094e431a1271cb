#include "nn/module_facts.h"

#include <gtest/gtest.h>

#include <map>

#include "core/cpu/thread_pool.h"
#include "core/stream/profiler.h"
#include "nn/decoder.h"
#include "params/random_weights.h"

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

/// A decoder whose parameters have no memory.
struct Shapes {
  explicit Shapes(const DecoderConfig& config) : decoder(config, store, placement, DType::kBF16) {}

  ParameterStore store;
  Placement placement;
  Decoder decoder;
};

double flops_of(const DecoderConfig& config, const ForwardWork& work) { return Shapes(config).decoder.flops(work); }

TEST(ModelFlops, AreThoseWorkedOutByHandForAReleasedModel) {
  // 18.874 M elements of attention, 0.262 M of the router and 37.749 M of eight experts in each of 48 layers, 311.16 M
  // of the head; 1.611 GFLOP of causal attention over 4096 tokens.
  const double tokens = 4096;
  const double flops = flops_of(qwen3_30b(), {tokens, tokens, {tokens}});
  EXPECT_NEAR(flops / tokens / 1e9, 6.083 + 1.611, 0.002);
}

TEST(ModelFlops, OnlySupervisedTokensHaveLogits) {
  const Shapes model(qwen3_30b());
  const double all = model.decoder.flops({100, 100, {}}), half = model.decoder.flops({100, 50, {}});
  EXPECT_DOUBLE_EQ(all - half, 2.0 * 50 * 2048 * 151936);
}

TEST(ModelFlops, ALayerMayHaveHeadsOfItsOwn) {
  DecoderConfig config = qwen3_30b();
  const double all_alike = flops_of(config, {100, 0, {100}});
  LayerConfig& layer = config.layers.front();
  layer.head_dim = 256;
  layer.num_key_value_heads = 2;
  layer.values_are_keys = true;
  // q and o 32 x 128 wider; k as wide as before, and no v; twice the pairs' products.
  const double projections = 2.0 * 100 * 2048 * (2 * 32 * 128 - 4 * 128), pairs = 4.0 * 5000 * 32 * 128;
  EXPECT_DOUBLE_EQ(flops_of(config, {100, 0, {100}}) - all_alike, projections + pairs);
}

TEST(ModelFlops, LinearAttentionHasNoPairs) {
  DecoderConfig config = qwen3_30b();
  config.delta_net.heads = {.num_key_heads = 2, .num_value_heads = 4, .key_dim = 8, .value_dim = 16};
  for (LayerConfig& layer : config.layers) layer.mixer = MixerKind::kGatedDeltaNet;
  EXPECT_DOUBLE_EQ(flops_of(config, {10, 10, {10}}), flops_of(config, {10, 10, {3e3}}));
}

TEST(ModelFlops, AWindowBoundsThePairsOfItsLayers) {
  const ForwardWork work{100, 0, {4, 16}};
  EXPECT_EQ(work.pairs(0), (16 + 256) / 2.0);
  EXPECT_EQ(work.pairs(16), work.pairs(0));
  EXPECT_EQ(work.pairs(4), 16 / 2.0 + (256 - 144) / 2.0);
  DecoderConfig config = qwen3_30b();
  const double full = flops_of(config, work);
  for (size_t i = 0; i < 24; ++i) config.layers[i].sliding_window = 4;
  EXPECT_DOUBLE_EQ(full - flops_of(config, work), 2.0 * 24 * 32 * 256 * (work.pairs(0) - work.pairs(4)));
}

/// Two layers that the models below modify: one with a dense MLP, one with experts and a shared expert.
DecoderConfig small() {
  DecoderConfig config;
  config.vocab_size = 48;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = config.v_head_dim = 16;
  config.rope = {.rotary_dim = 16, .max_position_embeddings = 64};
  config.layers = {{.intermediate_size = 24}, {.moe = true}};
  config.moe.num_experts = 6;
  config.moe.num_experts_per_tok = 2;
  config.moe.moe_intermediate_size = 16;
  config.moe.shared_expert_intermediate_size = 40;
  return config;
}

DecoderConfig with_mixer(MixerKind mixer) {
  DecoderConfig config = small();
  for (LayerConfig& layer : config.layers) layer.mixer = mixer;
  return config;
}

std::map<std::string, DecoderConfig> architectures() {
  std::map<std::string, DecoderConfig> all = {{"attention", small()}, {"windows", small()}, {"gates", small()}};
  for (LayerConfig& layer : all["windows"].layers) layer.sliding_window = 4;
  all["gates"].attention_output_gate = true;
  all["gates"].names.shared_expert_fused = true;
  for (const int64_t q_rank : {0, 12}) {
    DecoderConfig& latent = all["latent, " + std::to_string(q_rank)] = with_mixer(MixerKind::kLatentAttention);
    latent.num_key_value_heads = 4;
    latent.latent = {.q_lora_rank = q_rank,
                     .kv_lora_rank = 20,
                     .qk_nope_head_dim = 8,
                     .qk_rope_head_dim = 4,
                     .v_head_dim = 10,
                     .query_scaling = {}};
    latent.head_dim = 12;
    latent.v_head_dim = 10;
    latent.rope.rotary_dim = 4;
  }
  for (const bool fused : {false, true}) {
    DecoderConfig& delta = all[fused ? "delta, fused" : "delta"] = with_mixer(MixerKind::kGatedDeltaNet);
    delta.delta_net = {.heads = {.num_key_heads = 2, .num_value_heads = 4, .key_dim = 8, .value_dim = 16},
                       .fused_projections = fused};
  }
  DecoderConfig& mamba = all["state space"] = with_mixer(MixerKind::kMamba2);
  mamba.mamba = {.heads = {.num_heads = 6, .head_dim = 16, .num_groups = 2, .state_size = 8}, .proj_bias = true};
  DecoderConfig& halves = all["layers of one half"] = small();
  halves.activation = {MlpActivation::Kind::kSquaredRelu};
  halves.layers = {{.mixer = MixerKind::kAttention},
                   {.mixer = MixerKind::kNone, .intermediate_size = 24},
                   {.mixer = MixerKind::kNone, .moe = true}};
  return all;
}

/// The sum of the nodes' flops() in a forward pass over two documents of eight tokens, five of them supervised.
double flops_of_nodes(const DecoderConfig& config) {
  const Device device;
  ThreadPool pool(1);
  Stream stream(device, pool);
  Shapes model(config);
  model.store.allocate(device, true);
  model.decoder.prepare(stream, 8);
  TapeMemory memory(device);
  const Context context(stream, memory.scratch);
  {
    Arena scratch(device, "initialise");
    scratch.reserve(0);
    initialise_weights(Context(stream, scratch), model.store, 0.02, 1);
  }
  std::vector<Buffer> buffers;
  const auto upload = [&]<class T>(std::vector<T> values) {
    const auto count = static_cast<int64_t>(values.size());
    buffers.emplace_back(device, values.size() * sizeof(T));
    const Tensor tensor = buffers.back().tensor({count}, DTypeOf<T>::value);
    stream.upload(tensor, std::move(values));
    return tensor;
  };
  std::vector<int32_t> ids(16, 7), positions(16);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i % 8);
  DeviceBatch batch;
  batch.tokens = 16;
  batch.documents = 2;
  batch.supervised = 5;
  batch.max_seqlen = 8;
  batch.input_ids = upload(ids);
  batch.positions = upload(positions);
  batch.cu_seqlens = upload(std::vector<int32_t>{0, 8, 16});
  batch.rows = upload(std::vector<int32_t>{1, 2, 3, 9, 12});
  batch.targets = upload(std::vector<int32_t>(5, 3));
  batch.loss_weights = upload(std::vector<float>(5, 1.0f));
  batch.present = upload(std::vector<int32_t>{5});
  StepScalars scalars;
  LossTotals totals;
  Forward forward;
  forward.batch = &batch;
  forward.step = {.scalars = &scalars, .totals = &totals};
  TapePlan plan;
  const auto pass = [&] {
    Tape tape(context, memory, plan, {});
    model.decoder.loss(tape, forward);
  };
  for (int dry = 0; dry < 2; ++dry) {
    memory.begin_dry();
    pass();
  }
  memory.reserve();
  Profiler profiler(stream);
  pass();
  double flops = 0;
  for (const ProfileSpan& span : profiler.take().spans) flops += span.flops;
  return flops;
}

TEST(ModelFlops, AreThoseOfTheNodesOfAForwardPass) {
  for (const auto& [name, config] : architectures()) {
    EXPECT_DOUBLE_EQ(flops_of(config, {16, 5, {8, 8}}), flops_of_nodes(config)) << name;
  }
}

TEST(ModelSummary, SaysEachKindOfModuleOnce) {
  DecoderConfig config = architectures()["delta"];
  config.layers.push_back({.moe = true});
  const std::vector<ModuleSummary> expected = {
      {"linear attention", "2 key heads of 8, 4 value heads of 16"},
      {"attention", "4 heads of 16, 2 for keys and values"},
      {"MLP", "of width 24"},
      {"experts", "6 per layer of width 16, 2 per token, and a shared one of width 40"}};
  EXPECT_EQ(Shapes(config).decoder.summary(), expected);
}

}  // namespace
}  // namespace hone
