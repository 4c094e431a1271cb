#include "app/merge/probe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/philox.h"
#include "train/device_batch.h"

namespace hone {

namespace {

constexpr int64_t kPromptTokens = 32;
constexpr uint64_t kPromptSeed = 0x70726f6265;

const char* const kTexts[] = {
    "The river rises in the hills above the old town and reaches the sea after some forty miles.",
    "Question: a train leaves at 9:40 and arrives at 13:05. How long does the journey take?\nAnswer:",
    "def mean(values):\n    return sum(values) / len(values)\n\nprint(mean([1.5, 2.5, 6]))\n",
    "Der Zug nach Basel fährt heute von Gleis 7; il treno per Milano è in ritardo; 東京駅で乗り換えます。",
};

MicroBatch pack(const std::vector<std::vector<int32_t>>& prompts) {
  MicroBatch batch;
  batch.cu_seqlens = {0};
  for (const std::vector<int32_t>& prompt : prompts) {
    for (size_t i = 0; i < prompt.size(); ++i) batch.positions.push_back(static_cast<int32_t>(i));
    batch.sample_ids.insert(batch.sample_ids.end(), prompt.size(), batch.documents());
    batch.input_ids.insert(batch.input_ids.end(), prompt.begin(), prompt.end());
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.input_ids.size()));
    batch.max_seqlen = std::max(batch.max_seqlen, static_cast<int64_t>(prompt.size()));
  }
  return batch;
}

BatchCapacity capacity_of(const MicroBatch& batch) {
  return {.max_tokens = batch.tokens(),
          .max_documents = batch.documents(),
          .max_supervised = 0,
          .max_seqlen = batch.max_seqlen};
}

}  // namespace

std::vector<std::vector<int32_t>> probe_prompts(const Tokenizer* tokenizer, int64_t vocab_size) {
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t i = 0; i < std::size(kTexts); ++i) {
    std::vector<int32_t> prompt;
    if (tokenizer) {
      prompt = tokenizer->encode(kTexts[i], true);
      std::erase_if(prompt, [&](int32_t id) { return id >= vocab_size; });
    }
    PhiloxSequence random(mix_key(kPromptSeed, i));
    while (prompt.empty() || (!tokenizer && static_cast<int64_t>(prompt.size()) < kPromptTokens)) {
      prompt.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size))));
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

Probe::Probe(std::vector<std::vector<int32_t>> prompts, Stream& stream)
    : prompts_(std::move(prompts)), stream_(stream) {}

std::vector<float> Probe::logits(LoadedModel& model) {
  const Routing routing = recorded_ ? Routing::kForced : Routing::kRecord;
  recorded_ = true;
  return run(model, routing);
}

void Probe::allocate_choices(const DecoderConfig& config) {
  int64_t tokens = 0;
  for (const std::vector<int32_t>& prompt : prompts_) tokens += static_cast<int64_t>(prompt.size());
  const Shape shape{tokens, config.moe.num_experts_per_tok};
  const size_t bytes = static_cast<size_t>(shape.numel()) * sizeof(int32_t);
  const auto layers = static_cast<size_t>(config.num_moe_layers());
  if (layers == 0) return;
  choice_memory_ = Buffer(stream_.device(), layers * bytes);
  for (size_t i = 0; i < layers; ++i) choices_.push_back(choice_memory_.tensor(shape, DType::kI32, i * bytes));
}

std::vector<float> Probe::run(LoadedModel& model, Routing routing) {
  const MicroBatch host = pack(prompts_);
  DeviceBatchMemory batch_memory(stream_.device(), capacity_of(host));
  const DeviceBatch batch = batch_memory.upload(stream_, host);
  const Buffer row_memory(stream_.device(), static_cast<size_t>(batch.tokens) * sizeof(int32_t));
  const Tensor rows = row_memory.tensor({batch.tokens}, DType::kI32);
  std::vector<int32_t> every(static_cast<size_t>(batch.tokens));
  std::iota(every.begin(), every.end(), 0);
  stream_.upload(rows, std::move(every));
  model.decoder().prepare(stream_, batch.max_seqlen);
  Forward forward;
  forward.batch = &batch;
  if (routing == Routing::kRecord) allocate_choices(model.decoder().config());
  if (routing == Routing::kRecord) forward.recorded_expert_ids = choices_;
  if (routing == Routing::kForced) forward.forced_expert_ids = choices_;
  TapeMemory memory(stream_.device());
  TapePlan plan;
  const Context context(stream_, memory.scratch);
  // Two dry passes: the first records what is kept, the second measures the memory.
  for (int pass = 0; pass < 2; ++pass) {
    memory.begin_dry();
    Tape tape(context, memory, plan, {});
    model.decoder().logits(tape, forward, rows);
  }
  memory.reserve();
  Tape tape(context, memory, plan, {});
  const Tensor logits = tape.data(model.decoder().logits(tape, forward, rows));
  std::vector<float> result;
  dispatch_float(logits.dtype, [&](auto element) {
    const auto values = stream_.download<decltype(element)>(logits);
    result.assign(values.begin(), values.end());
  });
  return result;
}

double relative_difference(std::span<const float> a, std::span<const float> b) {
  HONE_ASSERT(a.size() == b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  const double result = std::sqrt(difference / std::max(norm, std::numeric_limits<double>::min()));
  return std::isfinite(result) ? result : std::numeric_limits<double>::infinity();
}

}  // namespace hone
