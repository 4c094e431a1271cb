#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "infer/generator.h"
#include "ops/attention/cache_pages.h"
#include "params/lora.h"

namespace hone {
namespace {

using testing::HasSubstr;
using Tokens = std::vector<int32_t>;

/// A mixture of experts with 3 layers, the second one dense, and 8 experts, 2 per token.
DecoderConfig tiny_moe() {
  DecoderConfig config;
  config.vocab_size = 97;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = config.v_head_dim = 8;
  config.qk_norm = true;
  config.rope = {.rope_theta = 10000.0, .rotary_dim = 8, .max_position_embeddings = 256};
  config.layers = {{.moe = true}, {.intermediate_size = 48}, {.moe = true}};
  config.moe = {.num_experts = 8, .num_experts_per_tok = 2, .moe_intermediate_size = 24, .router = {}};
  return config;
}

DecoderConfig with_window(DecoderConfig config, int64_t window) {
  for (LayerConfig& layer : config.layers) layer.sliding_window = window;
  return config;
}

/// Linear attention in the first two layers, gated full attention in the third.
DecoderConfig with_linear_attention(DecoderConfig config) {
  config.layers[0].mixer = config.layers[1].mixer = MixerKind::kGatedDeltaNet;
  config.delta_net.heads = {.num_key_heads = 2, .num_value_heads = 4, .key_dim = 8, .value_dim = 16};
  config.attention_output_gate = true;
  config.norm_weighting = NormWeighting::kFromOne;
  return config;
}

/// Mamba-2 in the first two layers, attention without RoPE in the third.
DecoderConfig with_state_spaces(DecoderConfig config) {
  config.layers[0].mixer = config.layers[1].mixer = MixerKind::kMamba2;
  config.mamba.heads = {.num_heads = 6, .head_dim = 8, .num_groups = 2, .state_size = 12};
  config.rotates = config.qk_norm = false;
  return config;
}

/// The same mixers and feed-forwards, each a layer of its own, without gates.
DecoderConfig with_layers_of_one_half(DecoderConfig config) {
  config = with_state_spaces(std::move(config));
  config.layers = {{.mixer = MixerKind::kMamba2},
                   {.mixer = MixerKind::kNone, .moe = true},
                   {.mixer = MixerKind::kAttention},
                   {.mixer = MixerKind::kNone, .intermediate_size = 48}};
  config.activation = {MlpActivation::Kind::kSquaredRelu};
  return config;
}

constexpr int64_t kMaxLength = 120, kLongest = 400;

/// A decoder with random weights.
class TestModel {
 public:
  explicit TestModel(const DecoderConfig& config, DType dtype = DType::kF32, int threads = 2)
      : pool_(threads), stream_(Device{}, pool_), decoder_(config, store_, placement_, dtype) {}

  /// Adds adapters to attention and experts; call before fill().
  void attach(ExpertLora kind) {
    LoraOptions lora;
    lora.r = 4;
    lora.dropout = kind == ExpertLora::kSplit ? 0.5 : 0.0;  // has no effect outside training
    lora.expert_lora = kind;
    lora.target_modules = {"attention", "all-experts"};
    attach_lora(store_, lora);
  }

  void fill() {
    store_.allocate(Device{}, true);
    uint64_t key = 1;
    for (Parameter& parameter : store_.all()) {
      PhiloxSequence random(mix_key(17, key++));
      std::vector<float> values(static_cast<size_t>(parameter.shape().numel()));
      const bool norm = parameter.spec().kind == ParameterKind::kNorm;
      const float scale = parameter.spec().kind == ParameterKind::kEmbedding ? 1.0f : 0.3f;
      for (float& value : values) value = norm ? 1.0f + 0.1f * random.normal() : scale * random.normal();
      write_values(parameter, 0, values.data(), static_cast<int64_t>(values.size()));
    }
    decoder_.prepare(stream_, kLongest);
  }

  /// After fill().
  PassCompanions& companions() {
    if (!companions_) companions_.emplace(decoder_, store_, stream_);
    return *companions_;
  }
  Decoder& decoder() { return decoder_; }
  Stream& stream() { return stream_; }

  /// The token with the largest logit after `ids`, from a forward over all of them without a cache.
  int32_t next_of_full_forward(const Tokens& ids) {
    const auto tokens = static_cast<int64_t>(ids.size());
    const Buffer buffer(Device{}, 4096 + 3 * ids.size() * sizeof(int32_t));
    const auto upload = [&](Tokens values, size_t offset) {
      const Tensor tensor = buffer.tensor({static_cast<int64_t>(values.size())}, DType::kI32, offset);
      stream_.upload(tensor, std::move(values));
      return tensor;
    };
    Tokens positions(ids.size());
    std::iota(positions.begin(), positions.end(), 0);
    const size_t stride = (ids.size() + 16) * sizeof(int32_t);
    DeviceBatch batch;
    batch.tokens = batch.max_seqlen = tokens;
    batch.documents = 1;
    batch.input_ids = upload(ids, 0);
    batch.positions = upload(positions, stride);
    batch.cu_seqlens = upload({0, static_cast<int32_t>(tokens)}, 2 * stride);
    batch.rows = upload({static_cast<int32_t>(tokens) - 1}, 2 * stride + 16);
    Forward forward;
    forward.batch = &batch;
    TapeMemory memory(Device{});
    TapePlan plan;
    const Context context(stream_, memory.scratch);
    for (int pass = 0; pass < 2; ++pass) {
      memory.begin_dry();
      Tape tape(context, memory, plan, {});
      decoder_.logits(tape, forward, batch.rows);
    }
    memory.reserve();
    Tape tape(context, memory, plan, {});
    const Tensor logits = tape.data(decoder_.logits(tape, forward, batch.rows));
    return dispatch_float(logits.dtype, [&](auto element) {
      const auto values = stream_.download<decltype(element)>(logits);
      const auto less = [](auto a, auto b) { return static_cast<float>(a) < static_cast<float>(b); };
      return static_cast<int32_t>(std::max_element(values.begin(), values.end(), less) - values.begin());
    });
  }

  Tokens greedy_without_cache(Tokens ids, int64_t count) {
    const size_t prompt = ids.size();
    for (int64_t i = 0; i < count; ++i) ids.push_back(next_of_full_forward(ids));
    return {ids.begin() + static_cast<std::ptrdiff_t>(prompt), ids.end()};
  }

 private:
  ThreadPool pool_;
  Stream stream_;
  ParameterStore store_;
  Placement placement_;
  Decoder decoder_;
  std::optional<PassCompanions> companions_;
};

std::vector<Tokens> random_prompts(const std::vector<int64_t>& lengths, int64_t vocab_size = 97) {
  PhiloxSequence random(5);
  std::vector<Tokens> prompts;
  for (const int64_t length : lengths) {
    Tokens& prompt = prompts.emplace_back();
    for (int64_t i = 0; i < length; ++i) {
      prompt.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size))));
    }
  }
  return prompts;
}

std::vector<Tokens> generate(TestModel& model, const GeneratorOptions& options, const GenerationRequest& request) {
  Generator generator(model.companions(), options);
  std::vector<Tokens> ids;
  for (GeneratedSequence& sequence : generator.generate(request)) ids.push_back(std::move(sequence.ids));
  return ids;
}

GenerationRequest greedy(std::vector<Tokens> prompts, int64_t max_new_tokens) {
  GenerationRequest request;
  request.prompts = std::move(prompts);
  request.sampling.max_new_tokens = max_new_tokens;
  return request;
}

/// More prompts than slots, lengths around the size of a chunk.
const std::vector<int64_t> kLengths = {1, 7, 40, 8, 9, 2, 33, 16};

void expect_same_as_full_forward(TestModel& model) {
  const std::vector<Tokens> prompts = random_prompts(kLengths);
  const auto ids =
      generate(model, {.max_sequences = 3, .max_length = kMaxLength, .max_prefill_tokens = 8}, greedy(prompts, 12));
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(ids[i], model.greedy_without_cache(prompts[i], 12)) << "prompt " << i;
  }
}

TEST(Generator, GreedyEqualsFullForwardsWithoutCache) {
  TestModel model(tiny_moe());
  model.fill();
  expect_same_as_full_forward(model);
}

TEST(Generator, GreedyEqualsFullForwardsWithASlidingWindow) {
  TestModel model(with_window(tiny_moe(), 6));
  model.fill();
  expect_same_as_full_forward(model);
}

TEST(Generator, GreedyEqualsFullForwardsWithRecurrentStates) {
  for (const DecoderConfig& config :
       {with_linear_attention(tiny_moe()), with_state_spaces(tiny_moe()), with_layers_of_one_half(tiny_moe())}) {
    TestModel model(config);
    model.fill();
    expect_same_as_full_forward(model);
  }
}

DecoderConfig with_windows(DecoderConfig config, const std::vector<int64_t>& windows) {
  for (size_t i = 0; i < windows.size(); ++i) config.layers[i].sliding_window = windows[i];
  return config;
}

TEST(Generator, GreedyEqualsFullForwardsOverPages) {
  TestModel model(with_windows(tiny_moe(), {140, 0, 6}));
  model.fill();
  const std::vector<Tokens> prompts = random_prompts({290, 126, 3, 255, 130});
  Generator generator(model.companions(),
                      {.max_sequences = 3, .max_length = kLongest, .cache_tokens = 512, .max_prefill_tokens = 100});
  std::vector<std::pair<int64_t, int64_t>> groups;
  for (const PageGroup& group : generator.cache().groups) groups.emplace_back(group.window, group.pages);
  // No more than without a window; at most 3 pages of 3 sequences, and one for the tokens of a pass.
  EXPECT_EQ(groups, (std::vector<std::pair<int64_t, int64_t>>{{0, 4}, {6, 4}, {140, 4}}));
  const std::vector<GeneratedSequence> sequences = generator.generate(greedy(prompts, 8));
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(sequences[i].ids, model.greedy_without_cache(prompts[i], 8)) << "prompt " << i;
  }
  EXPECT_EQ(generator.schedule().used_pages(0), 0);
}

/// Sequences that grow beyond the cache's room give up their pages and come back.
void expect_room_changes_nothing(const DecoderConfig& config, DType dtype, const SamplingOptions& sampling) {
  TestModel model(config, dtype);
  model.fill();
  GenerationRequest request = greedy(random_prompts({300, 100, 90, 20, 200, 127, 128}), 0);
  request.sampling = sampling;
  const GeneratorOptions roomy{.max_sequences = 5, .max_length = kLongest, .max_prefill_tokens = 64};
  GeneratorOptions narrow = roomy;
  narrow.cache_tokens = 512;
  Generator first(model.companions(), roomy);
  const std::vector<GeneratedSequence> want = first.generate(request);
  EXPECT_EQ(first.schedule().times_put_back(), 0);
  Generator second(model.companions(), narrow);
  std::vector<Tokens> told(want.size());
  request.on_token = [&](size_t sequence, int32_t id) { told[sequence].push_back(id); };
  const std::vector<GeneratedSequence> got = second.generate(request);
  EXPECT_GT(second.schedule().times_put_back(), 0);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].ids, want[i].ids) << "prompt " << i;
    EXPECT_EQ(told[i], want[i].ids) << "each token once";
  }
  EXPECT_LT(second.bytes(), first.bytes());
}

TEST(Generator, TheRoomOfTheCacheChangesNoToken) {
  SamplingOptions sampling;
  sampling.max_new_tokens = 45;
  expect_room_changes_nothing(tiny_moe(), DType::kF32, sampling);
  expect_room_changes_nothing(tiny_moe(), DType::kBF16, sampling);
  expect_room_changes_nothing(with_windows(tiny_moe(), {0, 0, 30}), DType::kF32, sampling);
  expect_room_changes_nothing(with_linear_attention(tiny_moe()), DType::kF32, sampling);
  expect_room_changes_nothing(with_state_spaces(tiny_moe()), DType::kF32, sampling);
  sampling.do_sample = true;
  sampling.temperature = 1.5;
  sampling.repetition_penalty = 1.1;
  expect_room_changes_nothing(tiny_moe(), DType::kF32, sampling);
}

/// Prompts of one beginning of 270 tokens, two at a time; how many tokens the later ones find.
void expect_found(const DecoderConfig& config, DType dtype, int64_t found) {
  TestModel model(config, dtype);
  model.fill();
  std::vector<Tokens> prompts = random_prompts({1, 20, 7, 100, 2});
  const Tokens beginning = random_prompts({270})[0];
  for (Tokens& prompt : prompts) prompt.insert(prompt.begin(), beginning.begin(), beginning.end());
  prompts.push_back(Tokens(beginning.begin(), beginning.begin() + 256));  // its last token is computed
  Generator generator(model.companions(), {.max_sequences = 2, .max_length = kLongest, .max_prefill_tokens = 100});
  for (const int64_t before : {int64_t{0}, found}) {
    const std::vector<GeneratedSequence> sequences = generator.generate(greedy(prompts, 8));
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(sequences[i].ids, model.greedy_without_cache(prompts[i], 8)) << "prompt " << i;
      const int64_t most = static_cast<int64_t>(prompts[i].size() - 1) / kCachePage * kCachePage;
      EXPECT_LE(sequences[i].found, most);
      EXPECT_GE(sequences[i].found, std::min(most, i < 2 ? before : found)) << "prompt " << i;
    }
    EXPECT_EQ(generator.schedule().used_pages(generator.cache().largest()), 0);
  }
}

TEST(Generator, SequencesThatBeginAlikeShareTheirPages) {
  expect_found(tiny_moe(), DType::kF32, 256);
  expect_found(tiny_moe(), DType::kBF16, 256);
}

TEST(Generator, WhereAWindowOrAStateIsKeptNothingIsShared) {
  for (const DecoderConfig& config : {with_windows(tiny_moe(), {0, 0, 30}), with_linear_attention(tiny_moe())}) {
    TestModel model(config);
    model.fill();
    const std::vector<Tokens> prompts = {random_prompts({300})[0]};
    Generator generator(model.companions(), {.max_sequences = 2, .max_length = kLongest});
    for (int round = 0; round < 2; ++round) {
      const GeneratedSequence sequence = generator.generate(greedy(prompts, 8))[0];
      EXPECT_EQ(sequence.found, 0);
      EXPECT_EQ(sequence.ids, model.greedy_without_cache(prompts[0], 8));
    }
  }
}

TEST(Generator, AnEndedSequenceLeavesItsPages) {
  TestModel model(tiny_moe());
  model.fill();
  Generator generator(model.companions(), {.max_sequences = 4, .max_length = kLongest, .cache_tokens = kLongest});
  std::vector<size_t> numbers;
  for (const Tokens& prompt : random_prompts({200, 100, 100})) {
    numbers.push_back(generator.begin({.prompt = prompt, .sampling = {.max_new_tokens = 100}}));
  }
  generator.run_pass();
  EXPECT_EQ(generator.schedule().running(), 2);  // two pages and one, and a further one that the first may need
  EXPECT_EQ(generator.schedule().used_pages(0), 3);
  generator.end(numbers[2]);  // it waits
  generator.end(numbers[0]);
  EXPECT_EQ(generator.schedule().used_pages(0), 1);
  while (generator.run_pass()) continue;
  EXPECT_EQ(generator.schedule().used_pages(0), 0);
}

TEST(Generator, AdaptersWorkAsInTraining) {
  const Tokens prompt = random_prompts({9})[0];
  TestModel base(tiny_moe());
  base.fill();
  const Tokens plain = generate(base, {.max_length = 40}, greedy({prompt}, 12))[0];
  for (const ExpertLora kind : {ExpertLora::kSplit, ExpertLora::kShared}) {
    TestModel model(tiny_moe());
    model.attach(kind);
    model.fill();
    expect_same_as_full_forward(model);
    EXPECT_NE(generate(model, {.max_length = 40}, greedy({prompt}, 12))[0], plain);
  }
}

void expect_independence(const DecoderConfig& config, DType dtype, const SamplingOptions& sampling) {
  TestModel model(config, dtype);
  model.fill();
  GenerationRequest request = greedy(random_prompts(kLengths), 0);
  request.sampling = sampling;
  const GeneratorOptions options{.max_sequences = 5, .max_length = kMaxLength, .max_prefill_tokens = 8};
  const auto together = generate(model, options, request);
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    // Each other prompt is replaced by one token, so this one keeps its index.
    GenerationRequest alone = request;
    for (size_t j = 0; j < request.prompts.size(); ++j) {
      if (j != i) alone.prompts[j] = {3};
    }
    GeneratorOptions fewer = options;
    fewer.max_sequences = 1;
    EXPECT_EQ(generate(model, fewer, alone)[i], together[i]) << "prompt " << i;
  }
}

TEST(Generator, NeighboursInTheBatchChangeNothing) {
  SamplingOptions sampling;
  sampling.max_new_tokens = 16;
  expect_independence(tiny_moe(), DType::kF32, sampling);
  expect_independence(tiny_moe(), DType::kBF16, sampling);
  expect_independence(with_window(tiny_moe(), 5), DType::kF32, sampling);
  expect_independence(with_linear_attention(tiny_moe()), DType::kF32, sampling);
  expect_independence(with_state_spaces(tiny_moe()), DType::kF32, sampling);
}

TEST(Generator, NeighboursInTheBatchChangeNothingWhenDrawing) {
  SamplingOptions sampling;
  sampling.max_new_tokens = 16;
  sampling.do_sample = true;
  sampling.temperature = 1.5;
  sampling.top_p = 0.95;
  sampling.repetition_penalty = 1.1;
  expect_independence(tiny_moe(), DType::kF32, sampling);
}

TEST(Generator, ThreadsChangeNothing) {
  const GenerationRequest request = greedy(random_prompts(kLengths), 16);
  TestModel one(tiny_moe(), DType::kF32, 1), three(tiny_moe(), DType::kF32, 3);
  one.fill();
  three.fill();
  const GeneratorOptions options{.max_sequences = 4, .max_length = kMaxLength, .max_prefill_tokens = 32};
  EXPECT_EQ(generate(one, options, request), generate(three, options, request));
}

TEST(Generator, TheSeedDecidesWhatIsDrawn) {
  TestModel model(tiny_moe());
  model.fill();
  GenerationRequest request = greedy(random_prompts({5, 5}), 20);
  request.prompts[1] = request.prompts[0];
  request.sampling.do_sample = true;
  request.sampling.temperature = 2.0;
  const GeneratorOptions options{.max_sequences = 2, .max_length = kMaxLength};
  const auto first = generate(model, options, request);
  EXPECT_EQ(generate(model, options, request), first);
  EXPECT_NE(first[0], first[1]);  // equal prompts have their own random numbers
  request.sampling.seed = 43;
  EXPECT_NE(generate(model, options, request)[0], first[0]);
}

TEST(Generator, StopsAtStopTokensAndLimits) {
  TestModel model(tiny_moe());
  model.fill();
  const Tokens prompt = random_prompts({6})[0];
  Generator generator(model.companions(), {.max_sequences = 2, .max_length = 20});
  const Tokens free = generator.generate(greedy({prompt}, 8))[0].ids;
  EXPECT_EQ(free.size(), 8u);
  GenerationRequest stopped = greedy({prompt}, 8);
  stopped.stop_ids = {96, free[3]};
  const GeneratedSequence sequence = generator.generate(stopped)[0];
  const size_t end = static_cast<size_t>(std::find(free.begin(), free.end(), free[3]) - free.begin()) + 1;
  EXPECT_EQ(sequence.ids, Tokens(free.begin(), free.begin() + static_cast<std::ptrdiff_t>(end)));
  EXPECT_EQ(sequence.finish, FinishReason::kStop);
  EXPECT_EQ(sequence.answer().size(), end - 1);
  const GeneratedSequence full = generator.generate(greedy({prompt}, 500))[0];
  EXPECT_EQ(full.ids.size(), 14u);  // 6 + 14 = max_length
  EXPECT_EQ(full.finish, FinishReason::kLength);
}

TEST(Generator, ReportsTokensAsTheyCome) {
  TestModel model(tiny_moe());
  model.fill();
  GenerationRequest request = greedy(random_prompts({4, 9, 2}), 5);
  std::vector<Tokens> seen(3);
  request.on_token = [&](size_t sequence, int32_t id) { seen[sequence].push_back(id); };
  EXPECT_EQ(generate(model, {.max_sequences = 2, .max_length = 40}, request), seen);
}

TEST(Generator, PenaltyCountsPromptAndAnswer) {
  TestModel model(tiny_moe());
  model.fill();
  GenerationRequest request = greedy(random_prompts({30}), 20);
  request.sampling.repetition_penalty = 1e6;  // effectively a ban
  const Tokens ids = generate(model, {.max_sequences = 1, .max_length = kMaxLength}, request)[0];
  Tokens all = request.prompts[0];
  std::sort(all.begin(), all.end());
  const size_t distinct_prompt = static_cast<size_t>(std::unique(all.begin(), all.end()) - all.begin());
  all.resize(distinct_prompt);
  all.insert(all.end(), ids.begin(), ids.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(static_cast<size_t>(std::unique(all.begin(), all.end()) - all.begin()), distinct_prompt + ids.size());
}

TEST(Generator, SequencesThatComeAndGoAreThoseOfARequest) {
  TestModel model(tiny_moe());
  model.fill();
  const std::vector<Tokens> prompts = random_prompts(kLengths);
  const GeneratorOptions options{.max_sequences = 3, .max_length = kMaxLength, .max_prefill_tokens = 8};
  const std::vector<Tokens> together = generate(model, options, greedy(prompts, 16));
  Generator generator(model.companions(), options);
  std::vector<GeneratedSequence> ended(prompts.size());
  std::vector<size_t> numbers;
  for (size_t i = 0; i < prompts.size(); ++i) {
    SequenceRequest request{.prompt = prompts[i], .sampling = {.max_new_tokens = 16}};
    if (i % 2 == 1) request.likely = 2;  // by logits instead of argmax
    request.on_end = [&ended, i](const GeneratedSequence& sequence) { ended[i] = sequence; };
    numbers.push_back(generator.begin(std::move(request)));
    generator.run_pass();
  }
  generator.end(numbers[2]);
  generator.end(numbers[2]);  // it has ended
  while (generator.run_pass()) continue;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (i == 2) {
      EXPECT_TRUE(std::equal(ended[i].ids.begin(), ended[i].ids.end(), together[i].begin()));
    } else {
      EXPECT_EQ(ended[i].ids, together[i]) << i;
    }
  }
  EXPECT_THROW(generator.begin({.prompt = {}, .sampling = {}}), UserError);
  EXPECT_FALSE(generator.run_pass());
}

TEST(Generator, TellsHowLikelyTokensAre) {
  TestModel model(tiny_moe());
  model.fill();
  Generator generator(model.companions(), {.max_sequences = 1, .max_length = kMaxLength});
  SequenceRequest request{.prompt = {5, 6, 7}, .sampling = {.max_new_tokens = 5}};
  request.likely = 96;
  int tokens = 0;
  request.on_token = [&](const GeneratedToken& token) {
    ++tokens;
    EXPECT_EQ(token.likely.size(), 96u);
    EXPECT_EQ(token.likely.front().id, token.id);  // greedy
    EXPECT_EQ(token.likely.front().value, token.log_probability);
    double sum = 0;
    for (const TokenLogit& likely : token.likely) sum += std::exp(likely.value);
    EXPECT_GT(sum, 0.98);  // the least likely of 97 tokens is missing
    EXPECT_LE(sum, 1 + 1e-12);
    EXPECT_TRUE(std::is_sorted(token.likely.begin(), token.likely.end(),
                               [](const TokenLogit& a, const TokenLogit& b) { return a.value > b.value; }));
    return tokens < 4;
  };
  generator.begin(std::move(request));
  while (generator.run_pass()) continue;
  EXPECT_EQ(tokens, 4);  // five were allowed
}

/// Turns of a conversation: each prompt continues the previous one and its answer, or differs early.
void expect_turns_as_if_alone(const DecoderConfig& config, bool recurrent, int64_t begin = 9) {
  TestModel model(config);
  model.fill();
  const GeneratorOptions options{
      .max_sequences = 1, .max_length = kLongest, .max_prefill_tokens = 8, .keep_cache = true};
  Generator generator(model.companions(), options);
  Tokens prompt = random_prompts({begin})[0];
  for (int turn = 0; turn < 4; ++turn) {
    const Tokens answer = generator.generate(greedy({prompt}, 6))[0].ids;
    EXPECT_EQ(answer, model.greedy_without_cache(prompt, 6)) << "turn " << turn;
    // All but the answer's last token, which no pass has read.
    EXPECT_EQ(generator.reused_tokens(), turn > 0 ? static_cast<int64_t>(prompt.size()) - 6 : 0);
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    for (const int32_t id : {5, 6, 7, 8, 9}) prompt.push_back(id + turn);
  }
  // The same prompt again, and one that differs early: the recurrent state starts again.
  Tokens other = prompt;
  generator.generate(greedy({other}, 6));
  EXPECT_EQ(generator.generate(greedy({other}, 6))[0].ids, model.greedy_without_cache(other, 6));
  EXPECT_EQ(generator.reused_tokens(), recurrent ? 0 : static_cast<int64_t>(other.size()) - 1);
  other[4] ^= 1;
  EXPECT_EQ(generator.generate(greedy({other}, 6))[0].ids, model.greedy_without_cache(other, 6));
  EXPECT_EQ(generator.reused_tokens(), recurrent ? 0 : 4);
}

TEST(Generator, TurnsReuseTheCacheOfEqualTokens) {
  expect_turns_as_if_alone(tiny_moe(), false);
  expect_turns_as_if_alone(tiny_moe(), false, 245);  // over pages
  expect_turns_as_if_alone(with_window(tiny_moe(), 6), false);
  expect_turns_as_if_alone(with_window(tiny_moe(), 6), false, 245);
  expect_turns_as_if_alone(with_linear_attention(tiny_moe()), true);
  expect_turns_as_if_alone(with_state_spaces(tiny_moe()), true);
  expect_turns_as_if_alone(with_layers_of_one_half(tiny_moe()), true);
}

TEST(Generator, StopsWhenAsked) {
  TestModel model(tiny_moe());
  model.fill();
  Generator generator(model.companions(), {.max_sequences = 1, .max_length = kMaxLength, .keep_cache = true});
  const Tokens prompt = random_prompts({9})[0];
  GenerationRequest request = greedy({prompt}, 20);
  int64_t tokens = 0;
  request.on_token = [&](size_t, int32_t) { ++tokens; };
  request.stop = [&] { return tokens == 3; };
  const GeneratedSequence stopped = generator.generate(request).front();
  EXPECT_EQ(stopped.finish, FinishReason::kStopped);
  EXPECT_EQ(stopped.ids, model.greedy_without_cache(prompt, 3));
  // The next turn reuses the cached tokens.
  Tokens next = prompt;
  next.insert(next.end(), stopped.ids.begin(), stopped.ids.end());
  EXPECT_EQ(generator.generate(greedy({next}, 6))[0].ids, model.greedy_without_cache(next, 6));
  EXPECT_EQ(generator.reused_tokens(), 11);
  request.stop = [] { return true; };
  EXPECT_TRUE(generator.generate(request).front().ids.empty());
}

TEST(Generator, ASequenceEndsWhereTheCallerSays) {
  TestModel model(tiny_moe());
  model.fill();
  const std::vector<Tokens> prompts = random_prompts({9, 4, 20});
  Generator generator(model.companions(), {.max_sequences = 2, .max_length = kMaxLength});
  GenerationRequest request = greedy(prompts, 8);
  std::vector<int64_t> tokens(3);
  request.ends = [&](size_t sequence, int32_t) { return ++tokens[sequence] == 3 && sequence != 1; };
  std::vector<size_t> ended;
  request.on_end = [&](size_t sequence, const GeneratedSequence& result) {
    ended.push_back(sequence);
    EXPECT_EQ(result.ids.size(), sequence == 1 ? 8u : 3u);
  };
  const std::vector<GeneratedSequence> sequences = generator.generate(request);
  EXPECT_EQ(sequences[0].finish, FinishReason::kStopped);
  EXPECT_EQ(sequences[0].ids, model.greedy_without_cache(prompts[0], 3));
  EXPECT_EQ(sequences[0].answer().size(), 3u);
  EXPECT_EQ(sequences[1].finish, FinishReason::kLength);
  EXPECT_EQ(sequences[1].ids, model.greedy_without_cache(prompts[1], 8));
  EXPECT_EQ(sequences[2].ids, model.greedy_without_cache(prompts[2], 3));
  EXPECT_EQ(ended, (std::vector<size_t>{0, 2, 1}));
}

TEST(Generator, APartOfARequestDrawsAsTheWholeDoes) {
  TestModel model(tiny_moe());
  model.fill();
  const std::vector<Tokens> prompts = random_prompts({9, 4, 20, 6});
  GenerationRequest whole = greedy(prompts, 12);
  whole.sampling.do_sample = true;
  Generator generator(model.companions(), {.max_sequences = 2, .max_length = kMaxLength});
  const std::vector<GeneratedSequence> all = generator.generate(whole);
  GenerationRequest part = whole;
  part.prompts = {prompts[2], prompts[3]};
  part.first_sequence = 2;
  const std::vector<GeneratedSequence> rest = generator.generate(part);
  EXPECT_EQ(rest[0].ids, all[2].ids);
  EXPECT_EQ(rest[1].ids, all[3].ids);
  part.first_sequence = 0;
  EXPECT_NE(generator.generate(part)[0].ids, all[2].ids);
}

TEST(Generator, RefusesPromptsItCannotContinue) {
  TestModel model(tiny_moe());
  model.fill();
  Generator generator(model.companions(), {.max_sequences = 2, .max_length = 10});
  const auto problem = [&](Tokens prompt) -> std::string {
    try {
      generator.generate(greedy({{1}, std::move(prompt)}, 4));
    } catch (const UserError& error) {
      EXPECT_EQ(error.where(), "prompt 2");
      return error.message();
    }
    return "none";
  };
  EXPECT_EQ(problem({}), "the prompt is empty");
  EXPECT_THAT(problem(Tokens(10, 1)), HasSubstr("the prompt has 10 tokens"));
  EXPECT_EQ(problem(Tokens(9, 1)), "none");
  EXPECT_THAT(problem({5, 97}), HasSubstr("token id 97 is outside the model's vocabulary of 97"));
  EXPECT_THAT(problem({-1}), HasSubstr("token id -1"));
}

}  // namespace
}  // namespace hone
