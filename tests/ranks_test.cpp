// Tests that several ranks train as one rank does with the same micro-batches. Ranks are threads here.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "app/verify/replay.h"
#include "core/thread_pool.h"
#include "device_main.h"
#include "dist/bucket_parts.h"
#include "dist/thread_ranks.h"
#include "models/registry.h"
#include "optim/momentum_rule.h"
#include "optim/muon_rule.h"
#include "params/frozen_weights.h"
#include "session/device_facts.h"
#include "test_communicators.h"
#include "train/rank_writers.h"
#include "train/training_state.h"
#include "weights/tensor_pieces.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

fs::path goldens() { return test_run().fixtures / "goldens"; }

constexpr std::array kStages = {ZeroStage::kNone, ZeroStage::kState, ZeroStage::kGradients, ZeroStage::kValues};
constexpr std::array kShardedStages = {ZeroStage::kState, ZeroStage::kGradients, ZeroStage::kValues};

std::string traced(int ranks, ZeroStage stage, int shard_size = 0) {
  std::string text = std::to_string(ranks) + " ranks, stage " + std::to_string(static_cast<int>(stage));
  return shard_size > 0 ? text + ", in groups of " + std::to_string(shard_size) : text;
}

/// A training job.
struct Job {
  std::string model = "qwen3_moe";
  std::string adapter = {};  ///< folder in the case; "": train the whole model
  DType dtype = DType::kF32;
  TrainingFormats formats = {};
  double aux_coefficient = 0.01;
  double max_grad_norm = 1;
  std::shared_ptr<const Rule> rule = adamw_rule();  ///< with Muon, AdamW steps all but hidden matrices
  std::vector<StepData> steps = {};
  size_t first = 0;       ///< index of the first step
  fs::path save_to = {};  ///< the training state, after the last step
  fs::path resume_from = {};
  int64_t least_bucket_bytes = 0;
  int shard_size = 0;          ///< ranks that shard together; 0: all
  std::string base = "dtype";  ///< base_weight_dtype
  bool unpacked = false;       ///< the base is dense, with the values of `base`
  Offload offload = {};
  bool offload_activations = false;
  FetchWay weight_fetch = FetchWay::kAuto;
  bool map_values = true;
  bool uneven = false;     ///< the first rank is late before each update, the others before each pass
  bool recompute = false;  ///< at level kEverything
  bool optimizer_in_backward = false;
};

/// The result of a job.
struct Outcome {
  std::vector<StepResult> steps;
  LossResult evaluation;                      ///< on the last step's data, after training
  HostTensors values;                         ///< for f32 models
  std::vector<std::vector<std::byte>> bytes;  ///< of all trained values
};

/// Steps with `counts[i]` documents of the case in step i, one micro-batch per document.
std::vector<StepData> steps_of(const std::string& model, const std::vector<size_t>& counts) {
  const GoldenCase golden = GoldenCase::read(goldens() / model);
  std::vector<LabelledDocument> documents;
  for (const auto& batch : golden.batches) documents.insert(documents.end(), batch.begin(), batch.end());
  std::vector<StepData> steps;
  size_t next = 0;
  for (const size_t count : counts) {
    StepData& step = steps.emplace_back();
    for (size_t i = 0; i < count; ++i) {
      LabelledDocument document = documents[next++ % documents.size()];
      const size_t length = document.input_ids.size() - 3 * (i % 4);  // ranks have unequal work
      document.input_ids.resize(length);
      document.labels.resize(length);
      step.micro_batches.push_back(pack_documents({document}));
    }
  }
  return steps;
}

void save(const fs::path& to, ParameterStore& store, Stream& stream, const RankMesh* mesh) {
  stream.synchronize();
  if (mesh == nullptr) return save_training_state(to, store, {});
  ThreadPool pool(2);
  const TensorFile file = training_state_file(store);
  RankWriters writers(mesh->world(), mesh->share().shard_ranks(), stream, pool, {&file, 1});
  if (mesh->world().rank() > 0) return writers.serve();
  FileChecksums checksums;
  writers.write(to, checksums);
  write_run_state(to, {});
}

Device device_under_test() { return choose_device(test_run().device); }

/// Sets dense frozen weights to the checkpoint's values rounded to a packed format.
void round_base(ParameterStore& store, const fs::path& checkpoint, const PackedFormat& format) {
  ThreadPool pool(1);
  LoadedModel exact(checkpoint, DType::kF32);
  exact.load({}, pool, 0);
  for (Parameter& p : store.all()) {
    if (p.trainable() || !is_base_weight(p) || !format.fits(p.stack())) continue;
    const PackedLayout layout = format.layout(p.matrix().rows, p.matrix().columns);
    std::vector<float> values = host_values<float>(exact.store().find(p.name())->value());
    std::vector<std::byte> chunk(static_cast<size_t>(layout.bytes));
    for (size_t at = 0; at < values.size(); at += static_cast<size_t>(layout.elements())) {
      format.pack(layout, values.data() + at, chunk.data());
      unpack(layout, chunk.data(), 0, layout.elements(), values.data() + at);
    }
    write_values(p, 0, values.data(), p.shape().numel());
  }
}

void delay(Stream& stream) {
  stream.enqueue([](ThreadPool&) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
}

Outcome train(const Job& job, Communicator* ranks, ZeroStage stage) {
  std::optional<HostedCommunicator> hosted;
  if (ranks != nullptr && on_gpu()) ranks = &hosted.emplace(*ranks);
  ThreadPool pool(1);
  Stream stream(device_under_test(), pool);
  BatchCapacity capacity;
  for (const StepData& step : job.steps) {
    for (const MicroBatch& batch : step.micro_batches) {
      capacity.max_tokens = capacity.max_seqlen = std::max(capacity.max_tokens, batch.tokens());
      capacity.max_documents = std::max(capacity.max_documents, batch.documents());
    }
  }
  capacity.max_supervised = capacity.max_tokens;
  const fs::path directory = goldens() / job.model;
  const GroupOptions groups{.weight_decay = 0.1};
  const OptimizerOptions optimizer{
      job.rule->name() == "muon" ? muon_groups(job.rule, adamw_rule(), groups) : groups_of(job.rule, groups),
      job.max_grad_norm};
  Replay replay(directory / "model", stream, capacity,
                {.dtype = job.dtype,
                 .adapter = job.adapter.empty() ? fs::path() : directory / job.adapter,
                 .ranks = ranks,
                 .stage = stage,
                 .shard_size = job.shard_size,
                 .least_bucket_bytes = job.least_bucket_bytes,
                 .formats = job.formats,
                 .base = job.unpacked ? "dtype" : job.base,
                 .offload = job.offload,
                 .offload_activations = job.offload_activations,
                 .weight_fetch = job.weight_fetch,
                 .map_values = job.map_values,
                 .optimizer_in_backward = job.optimizer_in_backward,
                 .optimizer = optimizer});
  if (job.unpacked) round_base(replay.store(), directory / "model", *parse_base_format(job.base, "base"));
  const auto engine = replay.make_engine(job.aux_coefficient, optimizer);
  if (job.recompute) {
    engine->set_recompute({RecomputeLevel::kEverything});
    engine->reserve();
  }
  Outcome outcome;
  if (!job.resume_from.empty()) {
    load_training_state(job.resume_from, replay.store());
    engine->gather_values();
    stream.synchronize();
  }
  for (size_t i = job.first; i < job.steps.size(); ++i) {
    const bool first = ranks != nullptr && ranks->rank() == 0;
    if (job.uneven && !first) delay(stream);
    engine->accumulate(job.steps[i], static_cast<int64_t>(i), {1e-3, static_cast<int64_t>(i)});
    if (job.uneven && first) delay(stream);
    outcome.steps.push_back(engine->update({1e-3, static_cast<int64_t>(i)}));
  }
  if (!job.save_to.empty()) save(job.save_to, replay.store(), stream, replay.mesh());
  outcome.evaluation = engine->evaluate(job.steps.back().micro_batches);
  if (job.dtype == DType::kF32) outcome.values = replay.values();
  for (const Parameter* p : replay.store().trainable()) outcome.bytes.push_back(replay.whole_value(*p));
  return outcome;
}

uint64_t bits_of(double value) { return std::bit_cast<uint64_t>(value); }  // NaN is not equal to itself

/// Runs the job with `count` ranks, and checks that all have the same final values and results.
Outcome train_by(int count, const Job& job, ZeroStage stage) {
  std::vector<Outcome> outcomes(static_cast<size_t>(count));
  run_ranks(count,
            [&](Communicator& ranks) { outcomes[static_cast<size_t>(ranks.rank())] = train(job, &ranks, stage); });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.bytes, outcomes[0].bytes);
    for (size_t i = 0; i < outcome.steps.size(); ++i) {
      const StepResult &one = outcome.steps[i], &first = outcomes[0].steps[i];
      EXPECT_EQ(bits_of(one.loss.loss), bits_of(first.loss.loss));
      EXPECT_EQ(bits_of(one.grad_norm), bits_of(first.grad_norm));
      EXPECT_EQ(one.nonfinite, first.nonfinite);
      EXPECT_EQ(one.first_nonfinite, first.first_nonfinite);
      EXPECT_EQ(one.routing.counts, first.routing.counts);
    }
  }
  return outcomes[0];
}

/// ‖(a − b)‖ / ‖b − initial‖ over all tensors.
double change_error(const HostTensors& a, const HostTensors& b, const HostTensors& initial) {
  double error = 0, change = 0;
  for (const auto& [name, tensor] : b) {
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      const double reference = tensor.values[i];
      error += std::pow(static_cast<double>(a.at(name).values[i]) - reference, 2);
      change += std::pow(reference - static_cast<double>(initial.at(name).values[i]), 2);
    }
  }
  return std::sqrt(error / change);
}

HostTensors initial_values(Job job) {
  job.steps.resize(1);
  ThreadPool pool(1);
  Stream stream(device_under_test(), pool);
  const MicroBatch& batch = job.steps[0].micro_batches[0];
  const fs::path directory = goldens() / job.model;
  Replay replay(directory / "model", stream, {batch.tokens(), 1, batch.tokens(), batch.tokens()},
                {.adapter = job.adapter.empty() ? fs::path() : directory / job.adapter});
  return replay.values();
}

/// Only the order of float32 sums differs. The bounds are those of `hone verify` for comparisons with transformers,
/// which have the same difference.
void expect_same_training(const Outcome& ours, const Outcome& one, const Job& job) {
  ASSERT_EQ(ours.steps.size(), one.steps.size());
  for (size_t i = 0; i < one.steps.size(); ++i) {
    const StepResult &a = ours.steps[i], &b = one.steps[i];
    EXPECT_NEAR(a.loss.loss, b.loss.loss, 2e-5 * b.loss.loss) << i;
    EXPECT_NEAR(a.loss.aux_loss, b.loss.aux_loss, 2e-5 * b.loss.aux_loss) << i;
    EXPECT_NEAR(a.loss.mean_token_accuracy, b.loss.mean_token_accuracy, 1e-9) << i;
    EXPECT_NEAR(a.loss.entropy, b.loss.entropy, 1e-4 * b.loss.entropy) << i;
    EXPECT_NEAR(a.grad_norm, b.grad_norm, 2e-4 * b.grad_norm) << i;
    EXPECT_EQ(a.loss.tokens, b.loss.tokens) << i;
    EXPECT_EQ(a.loss.supervised, b.loss.supervised) << i;
    EXPECT_EQ(a.routing.counts.size(), b.routing.counts.size());
    double routed = 0, expected = 0;
    for (const float count : a.routing.counts) routed += static_cast<double>(count);
    for (const float count : b.routing.counts) expected += static_cast<double>(count);
    EXPECT_EQ(routed, expected) << i;
  }
  EXPECT_NEAR(ours.evaluation.loss, one.evaluation.loss, 2e-5 * one.evaluation.loss);
  EXPECT_EQ(ours.evaluation.supervised, one.evaluation.supervised);
  EXPECT_LE(change_error(ours.values, one.values, initial_values(job)),
            job.adapter == "lora_attention_init" ? 2e-3 : 2e-2);
}

void expect_ranks_equal_one(const Job& job) {
  const Outcome one = train(job, nullptr, ZeroStage::kNone);
  for (const int count : {2, 4}) {
    for (const ZeroStage stage : kStages) {
      SCOPED_TRACE(traced(count, stage));
      expect_same_training(train_by(count, job, stage), one, job);
    }
  }
}

TEST(Ranks, TrainAWholeModelAsOneDoes) { expect_ranks_equal_one({.steps = steps_of("qwen3_moe", {4, 4, 4})}); }

TEST(Ranks, TrainAdaptersOfAttentionAsOneDoes) {
  expect_ranks_equal_one({.adapter = "lora_attention_init", .steps = steps_of("qwen3_moe", {4, 4, 4})});
}

TEST(Ranks, TrainAdaptersOfExpertsAsOneDoes) {
  expect_ranks_equal_one({.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {4, 4, 4})});
}

TEST(Ranks, MayHaveNoMicroBatchOrMoreThanOthers) {
  expect_ranks_equal_one({.steps = steps_of("qwen3_moe", {1, 3, 5, 2, 7})});
}

TEST(Ranks, AddUpBothUsesOfATiedEmbedding) {
  const Job job{.model = "qwen3_moe_hard", .steps = steps_of("qwen3_moe_hard", {4, 3})};
  expect_ranks_equal_one(job);
}

TEST(Ranks, NeedNoTokenOfAnExpert) {
  Job job{.steps = steps_of("qwen3_moe", {4, 4})};
  for (StepData& step : job.steps) {  // the last rank has two tokens: an expert has at most two, most experts none
    MicroBatch& last = step.micro_batches.back();
    LabelledDocument pair{{last.input_ids[0], last.input_ids[1]}, {last.input_ids[0], last.input_ids[1]}};
    last = pack_documents({pair});
  }
  expect_ranks_equal_one(job);
}

TEST(Ranks, ThatShardStepEveryElementAsThoseThatDoNot) {
  // Each sum over ranks is computed once for all stages. Without clipping, whose norm is summed in another order, the
  // bits are the same: of rounded masters, stochastically rounded moments, and 8-bit codes.
  const std::vector<StepData> steps = steps_of("qwen3_moe", {4, 2, 3});
  const TrainingFormats codes{.m = DType::kI8, .v = DType::kU8},
      narrow{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  const TrainingFormats small_m{.m = DType::kBF16};
  std::vector<Job> jobs = {
      {.max_grad_norm = 0, .steps = steps},
      {.dtype = DType::kBF16, .max_grad_norm = 0, .steps = steps},
      {.dtype = DType::kBF16, .formats = codes, .max_grad_norm = 0, .steps = steps},
      {.dtype = DType::kBF16, .formats = narrow, .max_grad_norm = 0, .steps = steps},
      {.dtype = DType::kBF16, .formats = small_m, .max_grad_norm = 0, .rule = lion_rule(), .steps = steps},
      {.adapter = "lora_experts_init", .max_grad_norm = 0, .steps = steps},
  };
  if (!on_gpu()) {  // Muon is for the CPU
    jobs.push_back({.max_grad_norm = 0, .rule = muon_rule(), .steps = steps});
    jobs.push_back(
        {.dtype = DType::kBF16, .formats = small_m, .max_grad_norm = 0, .rule = muon_rule(), .steps = steps});
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    for (const int count : {2, 3}) {
      const Outcome whole = train_by(count, jobs[i], ZeroStage::kNone);
      const Outcome sharded = train_by(count, jobs[i], ZeroStage::kState);
      EXPECT_EQ(whole.bytes, sharded.bytes) << "job " << i << ", " << count << " ranks";
    }
  }
}

TEST(Ranks, ShareMuonByWholeMatrices) {
  if (on_gpu()) GTEST_SKIP() << "Muon is for the CPU";
  // With one micro-batch per step the other ranks add zeros: the bits are those of one rank for any distribution of
  // matrices. Some buckets have more matrices than ranks, others fewer.
  const std::vector<StepData> steps = steps_of("qwen3_moe", {1, 1, 1});
  const std::vector<Job> jobs = {
      {.max_grad_norm = 0, .rule = muon_rule({.rate = MuonRate::kMatchRmsAdamw}), .steps = steps},
      {.dtype = DType::kBF16,
       .formats = {.m = DType::kBF16},
       .max_grad_norm = 0,
       .rule = muon_rule(),
       .steps = steps,
       .least_bucket_bytes = 100'000},
      {.adapter = "lora_experts_init", .max_grad_norm = 0, .rule = muon_rule(), .steps = steps},
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Outcome one = train(jobs[i], nullptr, ZeroStage::kNone);
    for (const int count : {2, 4}) {
      for (const ZeroStage stage : kStages) {
        EXPECT_EQ(train_by(count, jobs[i], stage).bytes, one.bytes) << "job " << i << ", " << traced(count, stage);
      }
    }
  }
}

TEST(Ranks, ThatShardGradientsOrValuesTakeTheSameSteps) {
  // With one micro-batch per rank, only sums over ranks are added, and values are copies in all stages. A rank without
  // a micro-batch adds zeros. With adapters, frozen values are sharded.
  const std::vector<StepData> steps = steps_of("qwen3_moe", {3, 2, 3});
  const TrainingFormats codes{.m = DType::kI8, .v = DType::kU8},
      narrow{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  const std::vector<Job> jobs = {
      {.max_grad_norm = 0, .steps = steps},
      {.model = "deepseek_v3", .max_grad_norm = 0, .steps = steps_of("deepseek_v3", {3, 2})},
      {.model = "qwen3_next", .max_grad_norm = 0, .steps = steps_of("qwen3_next", {3})},
      {.dtype = DType::kBF16, .formats = codes, .max_grad_norm = 0, .steps = steps},
      {.dtype = DType::kBF16, .formats = narrow, .max_grad_norm = 0, .steps = steps},
      {.adapter = "lora_attention_init", .max_grad_norm = 0, .steps = steps},
      {.adapter = "lora_experts_init", .max_grad_norm = 0, .steps = steps},
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Outcome state = train_by(3, jobs[i], ZeroStage::kState);
    for (const ZeroStage stage : {ZeroStage::kGradients, ZeroStage::kValues}) {
      EXPECT_EQ(train_by(3, jobs[i], stage).bytes, state.bytes) << "job " << i << ", " << traced(3, stage);
    }
  }
}

void expect_same_bits(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_EQ(bits_of(a.steps[i].loss.loss), bits_of(b.steps[i].loss.loss)) << i;
    EXPECT_EQ(bits_of(a.steps[i].grad_norm), bits_of(b.steps[i].grad_norm)) << i;
    EXPECT_EQ(a.steps[i].routing.counts, b.steps[i].routing.counts) << i;
  }
  EXPECT_EQ(bits_of(a.evaluation.loss), bits_of(b.evaluation.loss));
  EXPECT_EQ(a.bytes, b.bytes);
}

TEST(Ranks, CopyWeightsFromPeersAsTheyGatherThem) {
  const TrainingFormats codes{.m = DType::kI8, .v = DType::kU8};
  const std::vector<Job> jobs = {
      {.steps = steps_of("qwen3_moe", {4, 1, 5})},
      {.model = "qwen3_moe_hard", .steps = steps_of("qwen3_moe_hard", {4, 3})},
      {.dtype = DType::kBF16, .formats = codes, .steps = steps_of("qwen3_moe", {3, 2, 3}), .recompute = true},
      {.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {3, 2})},
      {.adapter = "lora_attention_init", .steps = steps_of("qwen3_moe", {2, 2}), .base = "nf4"},
      {.steps = steps_of("qwen3_moe", {3, 3}), .offload = {.optimizer = true, .experts = true}},
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    for (const int count : {2, 3}) {
      SCOPED_TRACE("job " + std::to_string(i) + ", " + std::to_string(count) + " ranks");
      Job job = jobs[i];
      job.weight_fetch = FetchWay::kCollectives;
      job.map_values = false;
      const Outcome gathered = train_by(count, job, ZeroStage::kValues);
      job.map_values = true;
      expect_same_bits(train_by(count, job, ZeroStage::kValues), gathered);
      job.weight_fetch = FetchWay::kPeers;
      expect_same_bits(train_by(count, job, ZeroStage::kValues), gathered);
      if (on_gpu()) continue;  // what is late on a GPU is not for a test to say
      job.uneven = true;
      expect_same_bits(train_by(count, job, ZeroStage::kValues), gathered);
    }
  }
}

class CaseOnRanks : public ::testing::TestWithParam<std::string> {};

/// As stage 1 does: whole models, adapters of attention and of experts, resident and in host memory. One micro-batch a
/// step, then one a rank; the other ranks have none.
TEST_P(CaseOnRanks, TakesTheSameStepsInAllStages) {
  constexpr Offload kState{.optimizer = true}, kAll{.optimizer = true, .params = true};
  struct Placing {
    ZeroStage stage;
    Offload offload = {};
  };
  for (const char* adapter : {"", "lora_attention_init", "lora_experts_init"}) {
    if (!fs::exists(goldens() / GetParam() / adapter)) continue;
    Job job{.model = GetParam(), .adapter = adapter, .max_grad_norm = 0, .steps = steps_of(GetParam(), {1, 2})};
    for (const int count : {2, 4}) {
      std::vector<Placing> placings = {{ZeroStage::kValues}, {ZeroStage::kValues, kAll}};
      if (count == 2) placings.insert(placings.begin(), {{ZeroStage::kGradients}, {ZeroStage::kGradients, kState}});
      job.offload = {};
      job.offload_activations = false;
      job.weight_fetch = count == 2 ? FetchWay::kPeers : FetchWay::kCollectives;
      const Outcome state = train_by(count, job, ZeroStage::kState);
      for (const auto& [stage, offload] : placings) {
        job.offload = offload;
        job.offload_activations = offload.optimizer;
        SCOPED_TRACE(std::string(adapter) + ", " + traced(count, stage) + (offload.optimizer ? ", offloaded" : ""));
        const Outcome outcome = train_by(count, job, stage);
        EXPECT_EQ(outcome.bytes, state.bytes);
        for (size_t i = 0; i < state.steps.size(); ++i) {
          EXPECT_EQ(bits_of(outcome.steps[i].loss_with_aux), bits_of(state.steps[i].loss_with_aux)) << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CaseOnRanks, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const Architecture& architecture : architectures()) {
                             names.insert(names.end(), architecture.cases.begin(), architecture.cases.end());
                           }
                           return names;
                         }()),
                         [](const auto& test) { return test.param; });

TEST(Ranks, MaySumSmallBucketsTogether) {
  // Without clipping, whose norm is summed by bucket, results do not depend on the buckets.
  Job job{.max_grad_norm = 0, .steps = steps_of("qwen3_moe", {4, 2, 3})};
  const Outcome apart = train_by(2, job, ZeroStage::kState);
  for (const int64_t least : {10'000, 100'000, 1'000'000'000}) {
    job.least_bucket_bytes = least;
    EXPECT_EQ(train_by(2, job, ZeroStage::kState).bytes, apart.bytes) << least;
    EXPECT_EQ(train_by(2, job, ZeroStage::kNone).bytes, apart.bytes) << least;
  }
  job.shard_size = 2;
  for (const ZeroStage stage : kShardedStages) {
    job.least_bucket_bytes = 0;
    const Outcome groups = train_by(4, job, stage);
    for (const int64_t least : {10'000, 100'000, 1'000'000'000}) {
      job.least_bucket_bytes = least;
      EXPECT_EQ(train_by(4, job, stage).bytes, groups.bytes) << traced(4, stage, 2) << ", " << least;
    }
  }
}

TEST(RanksInGroups, TrainAsOneRankDoes) {
  // 2 groups of 2 ranks, 3 of 1 (replicas alone), and 2 of 1 whose last ranks have no micro-batch in some passes.
  const std::vector<std::pair<int, int>> layouts = {{4, 2}, {3, 1}, {2, 1}};
  const std::vector<Job> jobs = {
      {.steps = steps_of("qwen3_moe", {4, 1, 7})},  // several micro-batches a rank, and ranks without one
      {.model = "qwen3_moe_hard", .steps = steps_of("qwen3_moe_hard", {4, 3})},  // a tied embedding
      {.adapter = "lora_attention_init", .steps = steps_of("qwen3_moe", {4, 5})},
      {.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {4, 5})},
  };
  for (const Job& job : jobs) {
    const Outcome one = train(job, nullptr, ZeroStage::kNone);
    for (const auto& [count, shard_size] : layouts) {
      for (const ZeroStage stage : kShardedStages) {
        SCOPED_TRACE(job.model + " " + job.adapter + ", " + traced(count, stage, shard_size));
        Job grouped = job;
        grouped.shard_size = shard_size;
        expect_same_training(train_by(count, grouped, stage), one, job);
      }
    }
  }
}

TEST(RanksInGroups, TakeTheSameStepsInEveryStage) {
  // With one micro-batch per rank, each sum is over a group and then over groups, in all stages. Without clipping,
  // whose norm is summed in another order, the bits are the same; so are those of a second run.
  const std::vector<StepData> steps = steps_of("qwen3_moe", {4, 3, 4});
  const TrainingFormats codes{.m = DType::kI8, .v = DType::kU8},
      narrow{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  const std::vector<Job> jobs = {
      {.max_grad_norm = 0, .steps = steps, .shard_size = 2},
      {.model = "deepseek_v3", .max_grad_norm = 0, .steps = steps_of("deepseek_v3", {4, 2}), .shard_size = 2},
      {.dtype = DType::kBF16, .formats = codes, .max_grad_norm = 0, .steps = steps, .shard_size = 2},
      {.dtype = DType::kBF16, .formats = narrow, .max_grad_norm = 0, .steps = steps, .shard_size = 2},
      {.adapter = "lora_attention_init", .max_grad_norm = 0, .steps = steps, .shard_size = 2},
      {.adapter = "lora_experts_init", .max_grad_norm = 0, .steps = steps, .shard_size = 2},
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE("job " + std::to_string(i));
    const Outcome state = train_by(4, jobs[i], ZeroStage::kState);
    for (const ZeroStage stage : kShardedStages) {
      EXPECT_EQ(train_by(4, jobs[i], stage).bytes, state.bytes) << traced(4, stage, 2);
    }
  }
}

TEST(RanksInGroups, OfAllRanksOrOfOneAreNoGroups) {
  Job job{.steps = steps_of("qwen3_moe", {2, 3})};
  const Outcome apart = train_by(2, job, ZeroStage::kNone), together = train_by(2, job, ZeroStage::kValues);
  job.shard_size = 1;
  EXPECT_EQ(train_by(2, job, ZeroStage::kValues).bytes, apart.bytes);
  job.shard_size = 2;
  EXPECT_EQ(train_by(2, job, ZeroStage::kValues).bytes, together.bytes);
}

TEST(RanksInGroups, KeepTheShareOfAGroup) {
  const auto bytes = [&](int ranks, int shard_size) {
    LoadedModel model(goldens() / "qwen3_moe/model", DType::kBF16);
    TrainableOptions options;
    options.ranks = {.rank = ranks - 1,
                     .ranks = ranks,
                     .stage = ZeroStage::kValues,
                     .shard_size = shard_size,
                     .least_sharded_elements = 0};
    model.set_trainable(options);
    return model.store().bytes();
  };
  const ParameterBytes group = bytes(2, 0), replicas = bytes(8, 2);
  EXPECT_EQ(replicas.total(), group.total()) << "the memory of a rank does not depend on the number of groups";
}

TEST(Ranks, TakeNoStepWhereOneOfThemLosesNumbers) {
  Job job{.steps = steps_of("qwen3_moe", {4})};
  job.steps[0].micro_batches[3].loss_weights[0] = std::numeric_limits<float>::infinity();
  std::vector<std::pair<ZeroStage, int>> layouts;
  for (const ZeroStage stage : kStages) layouts.emplace_back(stage, 0);
  for (const ZeroStage stage : kShardedStages) layouts.emplace_back(stage, 2);
  for (const auto& [stage, shard_size] : layouts) {
    job.shard_size = shard_size;
    const Outcome outcome = train_by(4, job, stage);
    EXPECT_TRUE(outcome.steps[0].nonfinite);
    EXPECT_FALSE(outcome.steps[0].first_nonfinite.empty());
    const HostTensors initial = initial_values(job);
    for (const auto& [name, tensor] : outcome.values) EXPECT_EQ(tensor.values, initial.at(name).values) << name;
  }
}

TEST(Ranks, WaitForEverySumAndValueWhereItIsRead) {
  if (on_gpu()) GTEST_SKIP() << "collectives that are late are of host memory";
  const TrainingFormats narrow{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  const std::vector<Job> jobs = {
      {.steps = steps_of("qwen3_moe", {4, 1, 5})},  // a rank without a micro-batch reads nothing in a step
      {.model = "qwen3_moe_hard", .steps = steps_of("qwen3_moe_hard", {4, 3})},
      {.dtype = DType::kBF16, .formats = narrow, .steps = steps_of("qwen3_moe", {2, 2})},
      {.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {3, 2})},
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    for (const ZeroStage stage : kStages) {
      SCOPED_TRACE("job " + std::to_string(i) + ", " + traced(2, stage));
      const Outcome prompt = train_by(2, jobs[i], stage);
      for (const FetchWay way : {FetchWay::kCollectives, FetchWay::kPeers}) {
        if (way == FetchWay::kPeers && stage != ZeroStage::kValues) continue;
        Job job = jobs[i];
        job.weight_fetch = way;
        std::vector<Outcome> late(2);
        run_ranks(2, [&](Communicator& ranks) {
          LazyCommunicator lazy(ranks);
          late[static_cast<size_t>(ranks.rank())] = train(job, &lazy, stage);
        });
        for (const Outcome& outcome : late) expect_same_bits(outcome, prompt);
      }
    }
    for (const ZeroStage stage : kShardedStages) {
      SCOPED_TRACE("job " + std::to_string(i) + ", " + traced(4, stage, 2));
      Job grouped = jobs[i];
      grouped.shard_size = 2;
      const Outcome prompt = train_by(4, grouped, stage);
      std::vector<Outcome> late(4);
      run_ranks(4, [&](Communicator& ranks) {
        LazyCommunicator lazy(ranks);
        late[static_cast<size_t>(ranks.rank())] = train(grouped, &lazy, stage);
      });
      for (const Outcome& outcome : late) expect_same_bits(outcome, prompt);
    }
  }
}

bool all_bits_set(const Tensor& tensor) {
  return std::all_of(tensor.data, tensor.data + tensor.bytes(), [](std::byte b) { return b == std::byte{0xFF}; });
}

TEST(Ranks, ValuesOnTheirWayAreAwaitedByTheHostThatReadsThem) {
  if (on_gpu()) GTEST_SKIP() << "collectives that are late are of host memory";
  const StepData data = steps_of("qwen3_moe", {2}).front();
  const int64_t most = std::max(data.micro_batches[0].tokens(), data.micro_batches[1].tokens());
  run_ranks(2, [&](Communicator& ranks) {
    LazyCommunicator lazy(ranks);
    ThreadPool pool(1);
    Stream stream(Device{}, pool);
    Replay replay(goldens() / "qwen3_moe/model", stream, {most, 1, most, most},
                  {.ranks = &lazy, .stage = ZeroStage::kState});
    const auto engine = replay.make_engine(0.01);
    engine->accumulate(data, 0);
    engine->update({1e-3, 0});
    stream.synchronize();
    EXPECT_FALSE(replay.store().values_arrived());
    const int other = 1 - ranks.rank();
    for (const Bucket& bucket : replay.store().buckets()) {  // what a reader that does not wait would read
      const Part part = parts_of(bucket)[static_cast<size_t>(other)];
      EXPECT_TRUE(all_bits_set({element_at(bucket.values, part.offset), bucket.values.dtype, {part.count}, {}}));
    }
    for (const Parameter* p : replay.store().trainable()) {
      const auto values = std::span(p->value().as<float>(), static_cast<size_t>(p->shape().numel()));
      EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) << p->name();
    }
    EXPECT_TRUE(replay.store().values_arrived());
  });
}

class RanksFiles : public ::testing::Test {
 protected:
  RanksFiles()
      : folder_(fs::path(::testing::TempDir()) /
                (std::string("hone_ranks_") + ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~RanksFiles() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(RanksFiles, GoOnInAnyNumberFromWhatOthersSaved) {
  const Job whole{.steps = steps_of("qwen3_moe", {4, 4, 4, 4})};
  const HostTensors initial = initial_values(whole);
  const Outcome one = train(whole, nullptr, ZeroStage::kNone);
  const auto expect_goes_on = [&](const Outcome& outcome) {
    EXPECT_LE(change_error(outcome.values, one.values, initial), 2e-2);
    EXPECT_NEAR(outcome.evaluation.loss, one.evaluation.loss, 2e-5 * one.evaluation.loss);
  };
  Job begin = whole, rest = whole;
  begin.steps.resize(2);
  begin.save_to = rest.resume_from = folder_;
  rest.first = 2;
  for (const ZeroStage stage : kStages) {
    SCOPED_TRACE(traced(4, stage));
    const Outcome four = train_by(4, whole, stage);
    train_by(4, begin, stage);
    const Outcome again = train_by(4, rest, stage);
    EXPECT_EQ(again.bytes, four.bytes) << "bit for bit on the same ranks";
    expect_goes_on(again);
    expect_goes_on(train(rest, nullptr, ZeroStage::kNone));
    for (const ZeroStage other : kStages) expect_goes_on(train_by(2, rest, other));
  }
  train(begin, nullptr, ZeroStage::kNone);  // the reverse direction
  for (const ZeroStage stage : kStages) expect_goes_on(train_by(4, rest, stage));
}

TEST_F(RanksFiles, GoOnInOtherGroups) {
  Job whole{.steps = steps_of("qwen3_moe", {4, 4, 4})};
  const HostTensors initial = initial_values(whole);
  const Outcome one = train(whole, nullptr, ZeroStage::kNone);
  whole.shard_size = 2;
  Job begin = whole, rest = whole;
  begin.steps.resize(1);
  begin.save_to = rest.resume_from = folder_;
  rest.first = 1;
  for (const ZeroStage stage : kShardedStages) {
    SCOPED_TRACE(traced(4, stage, 2));
    train_by(4, begin, stage);
    EXPECT_EQ(train_by(4, rest, stage).bytes, train_by(4, whole, stage).bytes) << "bit for bit in the same groups";
    for (const auto& [count, shard_size] : {std::pair(4, 0), std::pair(2, 1), std::pair(2, 2), std::pair(4, 4)}) {
      Job other = rest;
      other.shard_size = shard_size;
      const Outcome outcome = train_by(count, other, stage);
      EXPECT_LE(change_error(outcome.values, one.values, initial), 2e-2);
      EXPECT_NEAR(outcome.evaluation.loss, one.evaluation.loss, 2e-5 * one.evaluation.loss);
    }
  }
}

TEST_F(RanksFiles, AreTheSameWhoeverKeptThem) {
  for (const TrainingFormats formats : {TrainingFormats{}, TrainingFormats{.m = DType::kI8, .v = DType::kU8}}) {
    Job job{.dtype = DType::kBF16, .formats = formats, .max_grad_norm = 0, .steps = steps_of("qwen3_moe", {3, 3})};
    const auto bytes_of_state = [&](ZeroStage stage, const std::string& name) {
      job.save_to = folder_ / name;
      fs::create_directories(job.save_to);
      train_by(3, job, stage);
      std::ifstream file(job.save_to / "training_state.safetensors", std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const std::string whole = bytes_of_state(ZeroStage::kNone, "whole");
    EXPECT_GT(whole.size(), 10000u);
    for (const ZeroStage stage : kShardedStages) {
      EXPECT_TRUE(whole == bytes_of_state(stage, "sharded")) << traced(3, stage);
    }
    // 2 ranks continue the state of 3 ranks in any stage.
    Job rest = job;
    rest.save_to.clear();
    rest.resume_from = folder_ / "sharded";
    rest.first = 1;
    const Outcome whole_again = train_by(2, rest, ZeroStage::kNone);
    for (const ZeroStage stage : {ZeroStage::kState, ZeroStage::kGradients, ZeroStage::kValues}) {
      EXPECT_EQ(train_by(2, rest, stage).bytes, whole_again.bytes) << traced(2, stage);
    }
  }
}

TEST(Ranks, KeepTheirShareOfTheStateAlone) {
  const Job job{.dtype = DType::kBF16};
  ParameterBytes one, shared;
  const auto bytes = [&](const RankShare& share) {
    LoadedModel model(goldens() / job.model / "model", DType::kBF16);
    TrainableOptions options;
    options.ranks = share;
    model.set_trainable(options);
    return model.store().bytes();
  };
  one = bytes({});
  std::vector<ParameterBytes> shares;
  for (int rank = 0; rank < 4; ++rank) shares.push_back(bytes({rank, 4, ZeroStage::kState}));
  ParameterBytes all;
  for (const ParameterBytes& share : shares) {
    all += share;
    // Buckets are padded to 4 × 256 elements, and tensors of a rank to 256 bytes.
    EXPECT_LT(share.moments, one.moments / 4 + (one.moments / 50)) << "a quarter each";
    EXPECT_GE(share.weights, one.weights);
  }
  EXPECT_GE(all.master, one.master * 9 / 10);
  EXPECT_LE(all.master, one.master + one.master / 10);
}

TEST(Ranks, KeepTheirShareOfGradientsAndWeightsAndMemoryForFourHalves) {
  Json json = HfConfig::read(goldens() / "qwen3_moe/model").json();
  constexpr int64_t kLayers = 64;
  json["num_hidden_layers"] = kLayers;
  const auto bytes = [&](ZeroStage stage) {
    LoadedModel model(HfConfig(json, "config.json"), goldens() / "qwen3_moe/model", DType::kBF16);
    TrainableOptions options;
    options.ranks = {.rank = 1, .ranks = 4, .stage = stage, .least_sharded_elements = 0};
    model.set_trainable(options);
    return model.store().bytes();
  };
  const ParameterBytes state = bytes(ZeroStage::kState), gradients = bytes(ZeroStage::kGradients),
                       values = bytes(ZeroStage::kValues);
  // Paddings differ, since stages have different buckets.
  const auto about = [](int64_t value, int64_t expected, int64_t whole) {
    return std::abs(value - expected) < whole / 20;
  };
  EXPECT_TRUE(about(gradients.weights, state.weights, state.weights));
  EXPECT_TRUE(about(values.moments, state.moments, state.moments));
  // A quarter of the layers, which are most of the model, and slots for the halves of two layers.
  const auto share = [&](int64_t whole) { return whole / 4 + 2 * whole / kLayers; };
  EXPECT_TRUE(about(gradients.gradients, share(state.gradients), state.gradients)) << gradients.gradients;
  EXPECT_TRUE(about(values.weights, share(state.weights), state.weights)) << values.weights;
}

/// All kinds of offloading, separately and together.
constexpr std::array kOffloads = {Offload{.optimizer = true}, Offload{.params = true}, Offload{.experts = true},
                                  Offload{.optimizer = true, .params = true}};

void expect_offload_changes_nothing(Job job, const std::function<Outcome(const Job&)>& trained) {
  const Outcome resident = trained(job);
  for (const Offload& offload : kOffloads) {
    job.offload = offload;
    for (const bool activations : {false, true}) {
      SCOPED_TRACE(job.model + " " + job.adapter + (offload.optimizer ? " optimizer" : "") +
                   (offload.params ? " params" : "") + (offload.experts ? " experts" : "") +
                   (activations ? " activations" : "") + (job.recompute ? ", recomputed" : ""));
      job.offload_activations = activations;
      expect_same_bits(trained(job), resident);
    }
  }
}

TEST(Offload, KeepsEveryBitOnOneRank) {
  const auto alone = [](const Job& job) { return train(job, nullptr, ZeroStage::kNone); };
  for (const char* model : {"qwen3_moe", "deepseek_v3", "qwen3_next", "gpt_oss"}) {
    expect_offload_changes_nothing({.model = model, .steps = steps_of(model, {2, 3})}, alone);
  }
  const std::vector<StepData> steps = steps_of("qwen3_moe", {2, 3});
  const TrainingFormats codes{.m = DType::kI8, .v = DType::kU8},
      narrow{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  expect_offload_changes_nothing({.dtype = DType::kBF16, .steps = steps, .recompute = true}, alone);
  expect_offload_changes_nothing({.dtype = DType::kBF16, .formats = codes, .steps = steps}, alone);
  expect_offload_changes_nothing({.dtype = DType::kBF16, .formats = narrow, .steps = steps}, alone);
  expect_offload_changes_nothing({.adapter = "lora_attention_init", .steps = steps, .recompute = true}, alone);
  expect_offload_changes_nothing({.adapter = "lora_experts_init", .steps = steps}, alone);
  expect_offload_changes_nothing({.adapter = "lora_dora_init", .steps = steps}, alone);
}

TEST(Offload, KeepsEveryBitWhereLayersAreSteppedInBackward) {
  const auto alone = [](const Job& job) { return train(job, nullptr, ZeroStage::kNone); };
  expect_offload_changes_nothing(
      {.max_grad_norm = 0, .steps = steps_of("qwen3_moe", {1, 1, 1}), .recompute = true, .optimizer_in_backward = true},
      alone);
}

TEST(Offload, KeepsEveryBitOfSharedWeights) {
  const auto together = [](const Job& job) { return train_by(3, job, ZeroStage::kValues); };
  const std::vector<StepData> steps = steps_of("qwen3_moe", {3, 2});
  expect_offload_changes_nothing({.steps = steps}, together);
  expect_offload_changes_nothing({.adapter = "lora_experts_init", .steps = steps, .recompute = true}, together);
  // Frozen weights that are whole on every rank are offloaded, too.
  const auto apart = [](const Job& job) { return train_by(2, job, ZeroStage::kState); };
  expect_offload_changes_nothing({.adapter = "lora_attention_init", .steps = steps}, apart);
}

const std::array kBases = {"nf4", "int8", "int4", "fp8", "mxfp4"};

TEST(PackedBase, TrainsAdaptersAsTheDenseBaseOfItsValues) {
  for (const char* model : {"qwen3_moe", "deepseek_v3", "gpt_oss"}) {
    for (const char* base : kBases) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(std::string(model) + " " + base + " " + std::string(name_of(dtype)));
        Job job{.model = model, .adapter = "lora_attention_init", .dtype = dtype, .steps = steps_of(model, {2, 3})};
        job.base = base;
        const Outcome packed = train(job, nullptr, ZeroStage::kNone);
        job.unpacked = true;
        expect_same_bits(packed, train(job, nullptr, ZeroStage::kNone));
      }
    }
  }
}

TEST(PackedBase, KeepsEveryBitWhereverItsCodesAre) {
  for (const char* base : kBases) {
    SCOPED_TRACE(base);
    Job job{.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {3, 2}), .base = base};
    const auto alone = [](const Job& one) { return train(one, nullptr, ZeroStage::kNone); };
    expect_offload_changes_nothing(job, alone);
    job.recompute = true;
    expect_offload_changes_nothing(job, alone);
    const Outcome whole = train_by(3, job, ZeroStage::kNone);
    expect_same_bits(train_by(3, job, ZeroStage::kValues), whole);
    job.offload.params = true;
    expect_same_bits(train_by(3, job, ZeroStage::kValues), whole);
  }
}

TEST(Offload, TakesWhatItSaysFromTheDevice) {
  Json json = HfConfig::read(goldens() / "qwen3_moe/model").json();
  constexpr int64_t kLayers = 64;
  json["num_hidden_layers"] = kLayers;
  const auto bytes = [&](Offload offload) {
    LoadedModel model(HfConfig(json, "config.json"), goldens() / "qwen3_moe/model", DType::kBF16);
    TrainableOptions options;
    options.ranks = {.offload = offload, .least_sharded_elements = 0};
    model.set_trainable(options);
    return model.store().bytes();
  };
  const ParameterBytes resident = bytes({}), state = bytes({.optimizer = true}), values = bytes({.params = true});
  EXPECT_EQ(state.moments + state.master, 0);
  EXPECT_EQ(state.host, resident.moments + resident.master);
  EXPECT_EQ(state.weights, resident.weights);
  EXPECT_EQ(resident.host, 0);
  // Two slots for each kind of half remain, and weights outside layers; tensors are padded to 256 elements.
  EXPECT_LT(values.weights, resident.weights / 4);
  EXPECT_GE(values.weights + values.host, resident.weights);
  EXPECT_EQ(values.moments, resident.moments);
}

TEST(Offload, HasOpsReadWeightsInTheSlotsOfTheirHalves) {
  ThreadPool pool(1);
  LoadedModel model(goldens() / "qwen3_moe/model", DType::kF32);
  TrainableOptions options;
  options.ranks = {.offload = {.params = true}, .least_sharded_elements = 0};
  model.set_trainable(options);
  model.load(device_under_test(), pool, 0);
  std::map<std::pair<int, std::string>, std::set<const void*>> places;  // by slot and name within the layer
  for (const Parameter& p : model.store().all()) {
    if (p.layer() < 0 || p.kind() == ParameterKind::kBuffer) continue;
    ASSERT_TRUE(p.brings_values()) << p.name();
    EXPECT_EQ(p.stored().payload.device, Device{}) << p.name();
    EXPECT_EQ(p.view().payload.device, device_under_test()) << p.name();
    EXPECT_NE(p.view().payload.data, p.stored().payload.data) << p.name();
    const std::string layer = "layers." + std::to_string(p.layer()) + ".";
    places[{p.group()->slot(), p.name().substr(p.name().find(layer) + layer.size())}].insert(p.view().payload.data);
  }
  for (const auto& [name, addresses] : places) EXPECT_EQ(addresses.size(), 1u) << name.second;
}

}  // namespace
}  // namespace hone
