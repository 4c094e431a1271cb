// Compares LoRA gradients of a document of 8192 tokens in bfloat16, with attention in tiles and the head in chunks of
// rows, with those of the general kernels in float32, which have other tiles and chunks.
#include <gtest/gtest.h>

#include <cmath>

#include "app/verify/replay.h"
#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "core/stream/transfer.h"
#include "device_main.h"
#include "session/device_facts.h"
#include "train/step/engine.h"

namespace hone {
namespace {

constexpr int64_t kTokens = 8192, kTopK = 2;

/// On a GPU the size of the vocabulary makes the head use two chunks in bfloat16 and four in float32.
DecoderConfig config() {
  DecoderConfig config;
  config.vocab_size = on_gpu() ? 151936 : 1000;
  config.hidden_size = 64;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 64;
  config.qk_norm = true;
  config.rope = {.rope_theta = 10000.0, .rotary_dim = 64, .max_position_embeddings = kTokens};
  config.layers = {{.moe = true}, {.intermediate_size = 96}};
  config.moe = {.num_experts = 8, .num_experts_per_tok = kTopK, .moe_intermediate_size = 64, .router = {}};
  return config;
}

std::vector<float> random_values(const Parameter& parameter) {
  PhiloxSequence random(mix_key(5, std::hash<std::string>()(parameter.name())));
  std::vector<float> values(static_cast<size_t>(parameter.shape().numel()));
  const bool norm = parameter.spec().kind == ParameterKind::kNorm;
  // An adapter's output is a tenth of its weight's, as in training. If it were much larger, activations far from 1
  // would amplify errors in the gate's exponential.
  const float adapter =
      parameter.name().ends_with("lora_B.weight") || parameter.name().ends_with("lora_B") ? 0.025f : 1.0f;
  const auto scale = adapter / std::sqrt(static_cast<float>(parameter.shape()[-1]));
  for (float& value : values) {
    // Both runs use the same values, rounded to bfloat16.
    value = static_cast<float>(BFloat16(norm ? 1.0f + 0.1f * random.normal() : scale * random.normal()));
  }
  return values;
}

MicroBatch one_document(int64_t vocab_size) {
  PhiloxSequence random(11);
  LabelledDocument document;
  for (int64_t i = 0; i < kTokens; ++i) {
    document.input_ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size))));
  }
  document.labels = document.input_ids;
  return pack_documents({document});
}

/// Fixed choices of experts: with nearly equal probabilities, rounding would change the choice.
std::vector<int32_t> expert_choices() {
  PhiloxSequence random(12);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kTokens; ++i) {
    const auto first = static_cast<int32_t>(random.below(8));
    ids.insert(ids.end(), {first, static_cast<int32_t>((first + 1 + static_cast<int32_t>(random.below(7))) % 8)});
  }
  return ids;
}

struct Gradient {
  std::string name;
  std::vector<float> values;
};

struct StepOutcome {
  double loss = 0;
  std::vector<Gradient> gradients;
};

StepOutcome run_step(DType dtype, bool general_kernels) {
  ThreadPool pool(0);
  Stream stream(choose_device(test_run().device), pool);
  stream.use_general_kernels(general_kernels);
  ParameterStore store;
  Placement placement;
  Decoder decoder(config(), store, placement, dtype);
  LoraOptions lora;
  lora.r = 8;
  lora.target_modules = {"attention", "all-linear", "all-experts"};
  attach_lora(store, lora);
  store.allocate(stream.device());
  for (Parameter& parameter : store.all()) {
    const std::vector<float> values = random_values(parameter);
    write_values(parameter, 0, values.data(), static_cast<int64_t>(values.size()));
  }
  decoder.prepare(stream, kTokens);
  EngineOptions options;
  options.capacity = {.max_tokens = kTokens, .max_documents = 1, .max_supervised = kTokens, .max_seqlen = kTokens};
  Engine engine(decoder, store, stream, options);
  engine.reserve();
  const Buffer ids(stream.device(), static_cast<size_t>(kTokens * kTopK) * sizeof(int32_t));
  const Tensor forced = ids.tensor({kTokens, kTopK}, DType::kI32);
  const std::vector<int32_t> choices = expert_choices();
  copy_from_host(forced, choices.data(), forced.bytes());
  engine.force_experts({forced});

  StepData data;
  data.micro_batches = {one_document(config().vocab_size)};
  data.samples = 1;
  engine.accumulate(data, 0);
  StepOutcome outcome{.loss = engine.measure().loss.loss, .gradients = {}};
  for (const Parameter* parameter : store.trainable()) {
    Gradient gradient{parameter->name(), std::vector<float>(static_cast<size_t>(parameter->shape().numel()))};
    copy_to_host(gradient.values.data(), parameter->gradient().whole());
    outcome.gradients.push_back(std::move(gradient));
  }
  return outcome;
}

/// ‖a − b‖ / ‖b‖.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double x = a[i], y = b[i];
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(difference / norm);
}

TEST(LongDocument, LoraGradientsInTilesAndChunksAreThoseOfFloat32) {
  const StepOutcome exact = run_step(DType::kF32, true), rounded = run_step(DType::kBF16, false);
  // Rounding to bfloat16 is an error of at most 2^-9 of a value, 2^-9 / √3 root mean square. On its way through the two
  // layers a gradient meets about 12 stored values a layer in forward, 12 in backward and 3 in the head: 51 independent
  // errors, 2^-9 / √3 · √51 = 0.8 % of its norm. The tolerance of three times that allows for roundings inside kernels
  // (probabilities, the intermediate of low-rank products). A tile of 64 of the 8192 rows that is omitted or counted
  // twice is an error of √(64 / 8192) = 9 %, a chunk of the head 70 %.
  constexpr double kTolerance = 0.024;
  EXPECT_NEAR(rounded.loss, exact.loss, 0x1p-9 * exact.loss);
  ASSERT_EQ(rounded.gradients.size(), exact.gradients.size());
  ASSERT_EQ(exact.gradients.size(), 2u * (2 * 4 + 3 + 3))
      << "attention of both layers, experts of one, MLP of the other";
  for (size_t i = 0; i < exact.gradients.size(); ++i) {
    const Gradient &got = rounded.gradients[i], &want = exact.gradients[i];
    ASSERT_EQ(got.name, want.name);
    const double error = distance(got.values, want.values);
    EXPECT_LE(error, kTolerance) << want.name;
    RecordProperty(want.name, std::to_string(error));
  }
}

}  // namespace
}  // namespace hone
