// Tests that ranks over which the experts are spread (expert_parallel_size) train as one rank with all experts does.
// Ranks are threads here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "all_cases.h"
#include "config/run_options.h"
#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "device_main.h"
#include "dist/exchange/expert_exchange.h"
#include "dist/transport/thread_ranks.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/start_gradient.h"
#include "optim/muon_rule.h"
#include "params/placement.h"
#include "rank_jobs.h"
#include "session/loaded_model.h"
#include "session/pass_companions.h"
#include "test_communicators.h"
#include "train/step/device_batch.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

/// How many ranks, over how many of them the experts are spread, and what the ranks share beside.
struct Layout {
  int ranks, expert_ranks;
  ZeroStage stage = ZeroStage::kNone;
  int shard_size = 0;
};

std::string traced(const Layout& layout) {
  return traced(layout.ranks, layout.stage, layout.shard_size) + ", experts over " +
         std::to_string(layout.expert_ranks);
}

Outcome train_spread(Job job, const Layout& layout) {
  job.expert_ranks = layout.expert_ranks;
  job.shard_size = layout.shard_size;
  if (layout.ranks == 1) return train(job, nullptr, layout.stage);
  return train_by(layout.ranks, job, layout.stage);
}

void expect_spread_equals_one(const Job& job, const std::vector<Layout>& layouts) {
  const Outcome one = train(job, nullptr, ZeroStage::kNone);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(job.model + " " + job.adapter + ", " + traced(layout));
    expect_same_training(train_spread(job, layout), one, job);
  }
}

TEST(SpreadExperts, TrainAsOneRankInEveryStage) {
  const Job job{.steps = steps_of("qwen3_moe", {4, 1, 3})};  // ranks without tokens, and with two micro-batches
  std::vector<Layout> layouts = {{4, 4}, {4, 2, ZeroStage::kState, 2}, {4, 2, ZeroStage::kValues, 2}};
  for (const ZeroStage stage : kStages) layouts.push_back({2, 2, stage});
  for (const ZeroStage stage : kStages) layouts.push_back({4, 2, stage});
  expect_spread_equals_one(job, layouts);
}

TEST(SpreadExperts, TrainAdaptersAsOneRankDoes) {
  for (const char* adapter : {"lora_attention_init", "lora_experts_init"}) {
    expect_spread_equals_one({.adapter = adapter, .steps = steps_of("qwen3_moe", {3, 2})},
                             {{2, 2}, {4, 2, ZeroStage::kState}, {2, 2, ZeroStage::kValues}, {4, 4}});
  }
}

class CaseOfSpreadExperts : public ::testing::TestWithParam<std::string> {};

TEST_P(CaseOfSpreadExperts, TrainsAsOneRankDoes) {
  LoadedModel model(goldens() / GetParam() / "model", DType::kF32);
  const DecoderConfig& config = model.decoder().config();
  if (config.num_moe_layers() == 0) GTEST_SKIP() << "it has no experts";
  int ranks = 2;
  while (config.moe.num_experts % ranks != 0) ++ranks;
  const size_t some = ranks - 1;
  for (const char* adapter : {"", "lora_attention_init", "lora_experts_init"}) {
    if (!fs::exists(goldens() / GetParam() / adapter)) continue;
    // One micro-batch a rank, then a rank without tokens.
    expect_spread_equals_one({.model = GetParam(), .adapter = adapter, .steps = steps_of(GetParam(), {some + 1, some})},
                             {{ranks, ranks}});
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CaseOfSpreadExperts, ::testing::ValuesIn(all_cases()),
                         [](const auto& test) { return test.param; });

TEST(SpreadExperts, GiveTheSameBitsAgain) {
  const TrainingFormats narrow{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  for (const Job& job : {Job{.steps = steps_of("qwen3_moe", {4, 3})},
                         Job{.dtype = DType::kBF16, .formats = narrow, .steps = steps_of("qwen3_moe", {4, 3})},
                         Job{.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {3})}}) {
    const Layout layout{4, 2, ZeroStage::kState};
    expect_same_bits(train_spread(job, layout), train_spread(job, layout));
  }
}

TEST(SpreadExperts, GiveTheSameBitsWithRecomputation) {
  Job job{.steps = steps_of("qwen3_moe", {2, 1})};
  const Outcome kept = train_spread(job, {2, 2});
  job.recompute = true;
  expect_same_bits(train_spread(job, {2, 2}), kept);
}

TEST(SpreadExperts, TakeTheSameStepsInEveryStage) {
  // One micro-batch a rank: every sum has the same order in all stages. Without clipping, whose norm is summed apart.
  Job job{.max_grad_norm = 0, .steps = steps_of("qwen3_moe", {4, 4})};
  const Outcome state = train_spread(job, {4, 2, ZeroStage::kState});
  for (const ZeroStage stage : {ZeroStage::kGradients, ZeroStage::kValues}) {
    EXPECT_EQ(train_spread(job, {4, 2, stage}).bytes, state.bytes) << traced({4, 2, stage});
  }
  job.offload.optimizer = job.offload_activations = true;
  EXPECT_EQ(train_spread(job, {4, 2, ZeroStage::kState}).bytes, state.bytes) << "in host memory";
}

TEST(SpreadExperts, TrainInNarrowFormats) {
  // A bfloat16 partial sum is rounded once more for each rank that has experts of a token: by up to 2^-9 of its value,
  // in each layer and direction.
  const TrainingFormats narrow{.gradient = DType::kBF16};
  const Job job{.dtype = DType::kBF16, .formats = narrow, .steps = steps_of("qwen3_moe", {4, 2})};
  expect_same_numbers(train_spread(job, {2, 2}), train(job, nullptr, ZeroStage::kNone), job, 5e-3, 0.05);
}

TEST(SpreadExperts, TrainWithMuon) {
  if (on_gpu()) GTEST_SKIP() << "Muon runs on CPUs";
  expect_spread_equals_one({.rule = muon_rule({}), .steps = steps_of("qwen3_moe", {2, 2})},
                           {{2, 2, ZeroStage::kState}});
}

TEST(SpreadExperts, TrainBesidePackedWeights) {
  const Job packed{.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {2, 2}), .base = "nf4"};
  Job unpacked = packed;
  unpacked.unpacked = true;
  const Outcome one = train(unpacked, nullptr, ZeroStage::kNone);
  expect_same_training(train_spread(packed, {2, 2}), one, unpacked);
}

TEST(SpreadExperts, TakeNoStepWhereOneOfThemLosesNumbers) {
  Job job{.steps = steps_of("qwen3_moe", {4})};
  job.steps[0].micro_batches[3].loss_weights[0] = std::numeric_limits<float>::infinity();
  for (const ZeroStage stage : kStages) {
    const Outcome outcome = train_spread(job, {4, 2, stage});
    EXPECT_TRUE(outcome.steps[0].nonfinite);
    EXPECT_FALSE(outcome.steps[0].first_nonfinite.empty());
    const HostTensors initial = initial_values(job);
    for (const auto& [name, tensor] : outcome.values) EXPECT_EQ(tensor.values, initial.at(name).values) << name;
  }
}

TEST(SpreadExperts, GoOnFromWhatOtherLayoutsSaved) {
  const fs::path folder = fs::path(::testing::TempDir()) / "hone_spread_experts";
  for (const char* adapter : {"", "lora_experts_init"}) {
    const Job whole{.adapter = adapter, .steps = steps_of("qwen3_moe", {2, 2})};
    const Outcome one = train(whole, nullptr, ZeroStage::kNone);
    Job begin = whole, rest = whole;
    begin.steps.resize(1);
    begin.save_to = rest.resume_from = folder;
    rest.first = 1;
    const auto expect_goes_on = [&](const Layout& layout) {
      SCOPED_TRACE(traced(layout));
      expect_same_end(train_spread(rest, layout), one, whole);
    };
    fs::remove_all(folder);
    fs::create_directories(folder);
    train_spread(begin, {4, 2, ZeroStage::kState});
    EXPECT_EQ(train_spread(rest, {4, 2, ZeroStage::kState}).bytes, train_spread(whole, {4, 2, ZeroStage::kState}).bytes)
        << "bit for bit in the same layout";
    for (const Layout& layout : {Layout{1, 1}, Layout{4, 4}, Layout{2, 1, ZeroStage::kValues}}) expect_goes_on(layout);
    train_by(2, begin, ZeroStage::kValues);
    expect_goes_on({2, 2, ZeroStage::kValues});
  }
  fs::remove_all(folder);
}

TEST(SpreadExperts, KeepTheirShareOfTheExpertsAlone) {
  const auto bytes = [&](int expert_ranks) {
    LoadedModel model(goldens() / "qwen3_moe/model", DType::kBF16);
    TrainableOptions options;
    options.ranks = {.rank = 1, .ranks = 4, .expert_ranks = expert_ranks};
    model.set_trainable(options);
    int64_t experts = 0;
    for (const Parameter& p : model.store().all()) {
      if (p.spec().of_experts) experts += p.shape().numel();
    }
    return std::pair(model.store().bytes(), experts);
  };
  const auto [whole, experts] = bytes(1);
  const auto [spread, same] = bytes(4);
  // bfloat16 weights, float32 masters, gradients and two moments; tensors begin at multiples of 256 bytes.
  EXPECT_NEAR(static_cast<double>(whole.total() - spread.total()), 0.75 * 18 * static_cast<double>(experts),
              0.02 * static_cast<double>(whole.total()));
}

TEST(SpreadExperts, RefuseModelsThatDoNotDivide) {
  const auto refusal = [](const std::string& model, int64_t width, int ranks) -> std::string {
    Json json = HfConfig::read(goldens() / model / "model").json();
    if (width > 0) json["moe_intermediate_size"] = width;
    LoadedModel loaded(HfConfig(json, "config.json"), goldens() / model / "model", DType::kBF16);
    TrainableOptions options;
    options.formats = {.m = DType::kI8, .v = DType::kU8};
    options.ranks = {.ranks = ranks, .expert_ranks = ranks};
    try {
      loaded.set_trainable(options);
    } catch (const UserError& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_EQ(refusal("qwen3_moe", 0, 2), "");
  EXPECT_EQ(refusal("qwen3_moe", 0, 3), "8 experts do not spread evenly over 3 ranks");
  EXPECT_EQ(refusal("llama", 0, 2), "the model has no routed experts to spread over ranks");
  EXPECT_EQ(refusal("qwen3_moe", 25, 8),
            "a rank's experts of 'model.layers.0.mlp.experts.gate_up_proj' have 3200 elements, and moments of 8 bits "
            "take multiples of 256");
}

// Passes that ranks begin together.

/// A model whose experts are spread over two of `ranks` ranks; its weights are not read.
std::unique_ptr<LoadedModel> spread_model(int rank, int ranks) {
  auto model = std::make_unique<LoadedModel>(goldens() / "qwen3_moe/model", DType::kF32);
  TrainableOptions options = TrainableOptions::nothing();
  options.ranks = {.rank = rank, .ranks = ranks, .expert_ranks = 2};
  model->set_trainable(options);
  return model;
}

TEST(SpreadExperts, AreAnErrorInAPassThatNobodyHasBegun) {
  const std::unique_ptr<LoadedModel> loaded = spread_model(0, 2);
  LoadedModel& model = *loaded;
  model.store().allocate_dry(device_under_test());
  ThreadPool pool(1);
  Stream stream(device_under_test(), pool);
  constexpr int64_t kTokens = 8;
  model.decoder().prepare(stream, kTokens);
  PassCompanions companions(model.decoder(), model.store(), stream);
  PassRunner passes = companions.runner();
  const DeviceBatchMemory memory(device_under_test(), {kTokens, 1, kTokens, kTokens});
  const DeviceBatch batch = memory.largest();
  const auto plan = [&](TokenExchange* exchange) {
    Forward forward;
    forward.batch = &batch;
    forward.exchange = exchange;
    passes.begin_dry();
    TapePlan values;
    Tape tape = passes.tape(values);
    model.decoder().logits(tape, forward, batch.rows);
  };
  TokenExchange* exchange = nullptr;
  {
    const PassCompanions::Pass pass(companions, companions.largest(kTokens));
    exchange = pass.exchange();
    plan(exchange);
  }
  EXPECT_THROW(plan(exchange), std::logic_error) << "the pass has ended";
  EXPECT_THROW(plan(nullptr), std::logic_error) << "experts of other ranks are not here";
  EXPECT_THROW(PassCompanions::Pass(companions, {.work = PassWork::kPlanned}), std::logic_error) << "without tokens";
  const PassCompanions::Pass pass(companions, companions.largest(kTokens));
  plan(pass.exchange());
}

TEST(SpreadExperts, GetPassesThatAllRanksBeginTogether) {
  run_ranks(4, [](Communicator& ranks) {
    const int rank = ranks.rank();
    const std::unique_ptr<LoadedModel> model = spread_model(rank, 4);
    ThreadPool pool(1);
    Stream stream(Device{}, pool);
    const RankMesh mesh(ranks, {.rank = rank, .ranks = 4, .expert_ranks = 2});
    const PassCompanions companions(model->decoder(), model->store(), stream, {.ranks = PassRanks(&mesh)});
    using Counts = std::vector<int64_t>;
    const std::vector<RankPass> passes = companions.deal(Counts{5, 6, 7, 8, 9});
    ASSERT_EQ(passes.size(), 2u);
    EXPECT_EQ(passes[0].batch, static_cast<size_t>(rank));
    EXPECT_EQ(passes[1].batch, rank == 0 ? std::optional<size_t>(4) : std::nullopt);
    EXPECT_EQ(passes[0].tokens, rank < 2 ? (Counts{5, 6}) : (Counts{7, 8}));
    EXPECT_EQ(passes[1].tokens, rank < 2 ? (Counts{9, 0}) : (Counts{0, 0}));
    for (const RankPass& pass : passes) EXPECT_EQ(pass.work, PassWork::kComputed) << "for the tokens of others";

    const std::optional<RankPass> some = companions.agree(rank == 1 ? 3 : 0);
    ASSERT_TRUE(some.has_value());
    EXPECT_EQ(some->tokens, rank < 2 ? (Counts{1, 3}) : (Counts{1, 1}));
    EXPECT_EQ(some->work, PassWork::kComputed);
    EXPECT_FALSE(companions.agree(0).has_value());
  });
}

TEST(Ranks, WithoutAMicroBatchAreIdleWhileOthersHaveOne) {
  run_ranks(2, [](Communicator& ranks) {
    LoadedModel model(goldens() / "qwen3_moe/model", DType::kF32);
    ThreadPool pool(1);
    Stream stream(Device{}, pool);
    const PassCompanions companions(model.decoder(), model.store(), stream, {.ranks = PassRanks(&ranks)});
    const std::vector<RankPass> passes = companions.deal(std::vector<int64_t>{5, 6, 7});
    ASSERT_EQ(passes.size(), 2u);
    EXPECT_EQ(passes[0].work, PassWork::kComputed);
    EXPECT_EQ(passes[1].work, ranks.rank() == 0 ? PassWork::kComputed : PassWork::kIdle);
    EXPECT_TRUE(passes[1].tokens.empty());
    EXPECT_EQ(companions.agree(ranks.rank()).has_value(), ranks.rank() == 1) << "all weights are here";
  });
}

// The node itself, against all experts on one rank.

struct Sizes {
  int64_t hidden = 8, intermediate = 6, experts = 4, k = 2;
  float dropout = 0;  ///< in adapters, which there are only with it
  DType dtype = DType::kF32;
  int64_t round_tokens = 6;
  FetchWay way = FetchWay::kCollectives;  // how tokens travel
  MlpActivation function = {};
};

/// The results of a pass: out [T, H], gradients of x and router weights, and of each weight's experts in turn.
struct Passed {
  std::vector<float> out, dx, dweights;
  std::vector<std::vector<float>> of_weights;
};

std::vector<float> numbers(int64_t count, uint64_t key) {
  PhiloxSequence random(key);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = random.normal();
  return values;
}

/// A layer's experts on a rank, all trained; with dropout also adapters of both weights.
struct Experts {
  DType dtype;
  ParameterStore store;
  Placement placement;
  ExpertWeights weights;
  ExpertAdapters adapters;

  Experts(const Sizes& s, const RankShare& share) : dtype(s.dtype) {
    const int64_t gate_up = s.function.columns(s.intermediate);
    weights.function = s.function;
    weights.gate_up = &add("gate_up", {s.experts, gate_up, s.hidden},
                           s.function.gated() ? ParameterKind::kExpertsGateUp : ParameterKind::kExpertsUp);
    weights.down = &add("down", {s.experts, s.hidden, s.intermediate}, ParameterKind::kExpertsDown);
    if (s.dropout > 0) {
      adapters.gate_up.push_back(adapter("gate_up", s, gate_up, s.hidden, 5));
      adapters.down.push_back(adapter("down", s, s.hidden, s.intermediate, 6));
    }
    std::vector<Parameter*> all;
    for (Parameter& p : store.all()) all.push_back(&p);
    placement.group({.name = "layer 0", .layer = 0, .half = LayerHalf::kFeedForward}, all);
    store.share_among(share);
    store.allocate(device_under_test());
    for (Parameter& p : store.all()) {
      std::vector<float> values = numbers(p.shape().numel(), p.index());
      // Sums of about 1 per element of x.
      for (float& value : values) value /= std::sqrt(static_cast<float>(p.shape()[2]));
      write_values(p, 0, values.data(), p.shape().numel());
    }
  }

  Parameter& add(const std::string& name, const Shape& shape, ParameterKind kind) {
    return store.add({.name = name, .shape = shape, .kind = kind, .layer = 0, .layouts = {}, .of_experts = true},
                     kind == ParameterKind::kLora ? DType::kF32 : dtype);
  }
  ExpertAdapter adapter(const std::string& name, const Sizes& s, int64_t out, int64_t in, uint32_t stream_id) {
    constexpr int64_t kRank = 2;
    return {.adapter = {.lora_a = &add(name + ".lora_A", {s.experts, kRank, in}, ParameterKind::kLora),
                        .lora_b = &add(name + ".lora_B", {s.experts, out, kRank}, ParameterKind::kLora),
                        .scaling = 0.5f,
                        .dropout = s.dropout,
                        .stream_id = stream_id},
            .out_begin = 0,
            .out_count = out};
  }
};

/// Tensors of this rank's tokens, which are [begin, begin + count) of all.
class Tokens {
 public:
  Tokens(int64_t begin, int64_t count) : begin_(begin), count_(count) {}

  /// A tensor of values [all tokens, width].
  template <class T>
  Tensor of(const std::vector<T>& all, int64_t width) {
    const Tensor made = memory_.tensor(width > 0 ? Shape{count_, width} : Shape{count_}, DTypeOf<T>::value, top_);
    top_ += (made.bytes() + 255) / 256 * 256;
    HONE_ASSERT(top_ <= memory_.size());
    if (count_ > 0) copy_from_host(made, all.data() + begin_ * std::max<int64_t>(width, 1), made.bytes());
    return made;
  }
  Tensor of(const std::vector<float>& all, int64_t width, DType dtype) {
    if (dtype == DType::kF32) return of(all, width);
    return of(std::vector<BFloat16>(all.begin(), all.end()), width);
  }

 private:
  int64_t begin_, count_;
  Buffer memory_{device_under_test(), 1 << 20};
  size_t top_ = 0;
};

std::vector<float> values_of(const Tensor& tensor) {
  if (tensor.dtype == DType::kF32) return host_values<float>(tensor);
  const std::vector<BFloat16> values = host_values<BFloat16>(tensor);
  return {values.begin(), values.end()};
}

/// Forward and backward of the tokens that `ids` route, of which rank r has tokens[r]; null: one rank has all.
Passed pass(const Sizes& s, const std::vector<int32_t>& ids, const std::vector<int64_t>& tokens, Communicator* ranks) {
  std::optional<HostedCommunicator> hosted;
  if (ranks != nullptr && on_gpu()) ranks = &hosted.emplace(*ranks);
  const int rank = ranks ? ranks->rank() : 0, count = ranks ? ranks->size() : 1;
  const int64_t all = static_cast<int64_t>(ids.size()) / s.k;
  const auto first = tokens.begin();
  Tokens own = ranks ? Tokens(std::accumulate(first, first + rank, int64_t{0}), tokens[static_cast<size_t>(rank)])
                     : Tokens(0, all);
  Experts experts(s, {.rank = rank, .ranks = count, .expert_ranks = count});
  ThreadPool pool(1);
  Stream stream(device_under_test(), pool);
  const auto random = [&](uint64_t key, int64_t width) { return own.of(numbers(all * width, key), width, s.dtype); };
  const Tensor x = random(11, s.hidden), chosen = own.of(ids, s.k), weights = random(12, s.k),
               dout = random(13, s.hidden);
  const Tensor out = random(14, s.hidden), dx = random(14, s.hidden), dweights = random(14, s.k);
  std::vector<int64_t> samples(static_cast<size_t>(all));
  std::iota(samples.begin(), samples.end(), 100);
  StepScalars seeded;
  seeded.seed = 42;
  const Buffer scalars(device_under_test(), sizeof(StepScalars));
  copy_from_host(scalars.tensor({sizeof(StepScalars)}, DType::kU8), &seeded, sizeof(StepScalars));
  const LoraDropoutContext dropout{reinterpret_cast<const StepScalars*>(scalars.data()), own.of(samples, 0),
                                   own.of(std::vector<int32_t>(static_cast<size_t>(all), 7), 0)};
  std::optional<ExpertExchange> exchange;
  if (ranks) exchange.emplace(rank, count, ranks, s.round_tokens).begin_pass(tokens);
  TapeMemory memory(device_under_test());
  TapePlan plan;
  const Context context(stream, memory.scratch);
  const auto run = [&] {
    experts.store.begin_step();
    Tape tape(context, memory, plan, {.training = true, .recompute = {}});
    const Var vx = tape.input(x, dx), vids = tape.input(chosen), vweights = tape.input(weights, dweights);
    tape.block([&] {
      const RoutedTokens routed{.ids = vids, .weights = vweights};
      const Var y =
          moe_experts(tape, vx, routed, experts.weights, experts.adapters, dropout, exchange ? &*exchange : nullptr);
      if (!context.dry()) copy(context, tape.data(y), out);
      StartGradient::record(tape, y, dout);
    });
    tape.backward();
  };
  for (int i = 0; i < 2; ++i) {
    memory.begin_dry();
    run();
  }
  memory.reserve();
  if (exchange) {
    exchange->connect(s.way, stream);
    EXPECT_EQ(exchange->name(), s.way == FetchWay::kPeers ? "peer copies" : "collectives");
  }
  run();
  stream.synchronize();
  Passed passed{values_of(out), values_of(dx), values_of(dweights), {}};
  for (const Parameter& p : experts.store.all()) passed.of_weights.push_back(values_of(p.gradient().whole()));
  return passed;
}

/// Values of one rank after those of another.
void append(std::vector<float>& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

/// ‖ours - one‖ <= bound · ‖one‖.
void expect_near(const std::vector<float>& ours, const std::vector<float>& one, double bound, const char* what) {
  ASSERT_EQ(ours.size(), one.size()) << what;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    difference += (double{ours[i]} - one[i]) * (double{ours[i]} - one[i]);
    norm += double{one[i]} * one[i];
  }
  EXPECT_LE(std::sqrt(difference), bound * std::sqrt(norm)) << what;
}

void expect_as_one(Sizes s, const std::vector<int32_t>& ids, const std::vector<int64_t>& tokens, FetchWay way) {
  SCOPED_TRACE(way == FetchWay::kPeers ? "peer copies" : "collectives");
  s.way = way;
  const Passed one = pass(s, ids, tokens, nullptr);
  std::vector<Passed> of_ranks(tokens.size());
  run_ranks(static_cast<int>(tokens.size()),
            [&](Communicator& ranks) { of_ranks[static_cast<size_t>(ranks.rank())] = pass(s, ids, tokens, &ranks); });
  Passed together;
  together.of_weights.resize(one.of_weights.size());
  for (const Passed& passed : of_ranks) {
    append(together.out, passed.out);
    append(together.dx, passed.dx);
    append(together.dweights, passed.dweights);
    for (size_t i = 0; i < one.of_weights.size(); ++i) append(together.of_weights[i], passed.of_weights[i]);
  }
  // The order of float32 sums; in bfloat16 also one more rounding, by at most 2^-9, of partial sums.
  const double bound = s.dtype == DType::kF32 ? 2e-6 : 4e-3;
  expect_near(together.out, one.out, bound, "out");
  expect_near(together.dx, one.dx, bound, "dx");
  expect_near(together.dweights, one.dweights, bound, "dweights");
  for (size_t i = 0; i < one.of_weights.size(); ++i) {
    expect_near(together.of_weights[i], one.of_weights[i], bound, ("weight " + std::to_string(i)).c_str());
  }
}

void expect_as_one(const Sizes& s, const std::vector<int32_t>& ids, const std::vector<int64_t>& tokens) {
  expect_as_one(s, ids, tokens, FetchWay::kCollectives);
  if (!on_gpu()) expect_as_one(s, ids, tokens, FetchWay::kPeers);  // these ranks share a GPU
}

/// Token t chooses the experts from[t % from.size()].
std::vector<int32_t> routing(int64_t tokens, const std::vector<std::vector<int32_t>>& from) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    const std::vector<int32_t>& chosen = from[static_cast<size_t>(t) % from.size()];
    ids.insert(ids.end(), chosen.begin(), chosen.end());
  }
  return ids;
}

TEST(SpreadExperts, GiveWhatAllExpertsOnOneRankGive) {
  const std::vector<std::vector<int32_t>> even = {{0, 1}, {2, 3}, {1, 2}, {3, 0}, {0, 2}};
  expect_as_one({}, routing(12, even), {6, 6});
  expect_as_one({}, routing(11, even), {3, 1, 7, 0});
  expect_as_one({.round_tokens = ExpertExchange::kRoundTokens}, routing(11, even), {5, 6});
}

TEST(SpreadExperts, ComputeEveryActivation) {
  for (const auto kind : {MlpActivation::Kind::kGeglu, MlpActivation::Kind::kSquaredRelu}) {
    const Sizes s{.dropout = 0.25f, .function = {kind}};
    expect_as_one(s, routing(11, {{0, 1}, {2, 3}, {1, 3}}), {4, 7});
  }
}

TEST(SpreadExperts, DropWhatOneRankDrops) {
  expect_as_one({.dropout = 0.3f}, routing(11, {{0, 1}, {2, 3}, {1, 2}, {3, 0}}), {5, 6});
}

TEST(SpreadExperts, MultiplyOnTensorCores) {
  // Sizes that the fast kernels take, and experts of more rows than their tiles.
  const Sizes sizes{.hidden = 64, .intermediate = 96, .experts = 6, .k = 3, .dtype = DType::kBF16, .round_tokens = 300};
  const std::vector<std::vector<int32_t>> uneven = {{0, 1, 5}, {0, 3, 2}, {0, 2, 4}, {1, 0, 2}, {0, 5, 2}};
  expect_as_one(sizes, routing(800, uneven), {400, 400});
  expect_as_one(sizes, routing(301, uneven), {300, 0, 1});
  Sizes dropping = sizes;
  dropping.dropout = 0.3f;
  expect_as_one(dropping, routing(301, uneven), {150, 151});
  expect_as_one(sizes, routing(9, {{3, 4, 5}}), {4, 5});
}

TEST(SpreadExperts, MayHaveNoTokens) {
  // Expert 3 has none, rank 1 has none of its own.
  expect_as_one({}, routing(5, {{0, 1}, {1, 2}}), {5, 0});
  expect_as_one({}, routing(1, {{2, 3}}), {0, 0, 0, 1});
}

TEST(SpreadExperts, MayHaveAllTokens) {
  expect_as_one({}, routing(9, {{3, 2}}), {4, 5});
  expect_as_one({.experts = 4, .k = 1}, routing(9, {{2}}), {3, 3, 1, 2});
}

TEST(SpreadExperts, EndWithARankThatIsLost) {
  EXPECT_THROW(run_ranks(2,
                         [&](Communicator& ranks) {
                           if (ranks.rank() == 1) throw Error(ExitCode::kDeviceFailed, "it is lost", "", "");
                           pass({}, routing(8, {{0, 2}}), {4, 4}, &ranks);
                         }),
               Error);
}

}  // namespace
}  // namespace hone
