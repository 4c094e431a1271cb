#include "rank_jobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <thread>

#include "app/verify/replay.h"
#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "core/stream/kernel_notes.h"
#include "core/text/json.h"
#include "device_main.h"
#include "dist/transport/thread_ranks.h"
#include "optim/muon_rule.h"
#include "params/frozen_weights.h"
#include "session/device_facts.h"
#include "session/loaded_model.h"
#include "test_communicators.h"
#include "train/plan/rank_writers.h"
#include "train/save/training_state.h"
#include "weights/tensor_pieces.h"

namespace hone {

namespace fs = std::filesystem;

namespace {

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

/// Sets dense frozen weights to the checkpoint's values rounded to a packed format.
void round_base(ParameterStore& store, const fs::path& checkpoint, const PackedFormat& format) {
  ThreadPool pool(1);
  LoadedModel exact(checkpoint, DType::kF32);
  exact.load({}, pool, 0);
  for (Parameter& p : store.all()) {
    if (p.trainable() || !is_base_weight(p) || !format.fits(p.spec().stack())) continue;
    const PackedLayout layout = format.layout(p.spec().matrix().rows, p.spec().matrix().columns);
    std::vector<float> values = host_values<float>(exact.store().find(p.name())->value().whole());
    std::vector<std::byte> chunk(static_cast<size_t>(layout.bytes));
    for (size_t at = 0; at < values.size(); at += static_cast<size_t>(layout.elements())) {
      format.pack(layout, values.data() + at, chunk.data());
      unpack(layout, chunk.data(), 0, layout.elements(), values.data() + at);
    }
    write_values(p, 0, values.data(), p.shape().numel());
  }
}

void jitter_weights(ParameterStore& store, uint64_t seed) {
  for (Parameter& p : store.all()) {
    if (p.spec().kind == ParameterKind::kBuffer || !p.value().format().dense()) continue;
    std::vector<float> values;
    dispatch_float(p.value().whole().dtype, [&](auto element) {
      const auto stored = host_values<decltype(element)>(p.value().whole());
      values.assign(stored.begin(), stored.end());
    });
    jitter(values, p.value().whole().dtype, mix_key(seed, p.index()));
    write_values(p, 0, values.data(), p.shape().numel());
  }
}

void delay(Stream& stream) {
  stream.enqueue([](ThreadPool&) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
}

}  // namespace

fs::path goldens() { return test_run().fixtures / "goldens"; }

Device device_under_test() { return choose_device(test_run().device); }

std::string traced(int ranks, ZeroStage stage, int shard_size) {
  std::string text = std::to_string(ranks) + " ranks, stage " + std::to_string(static_cast<int>(stage));
  return shard_size > 0 ? text + ", in groups of " + std::to_string(shard_size) : text;
}

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

Outcome train(const Job& job, Communicator* ranks, ZeroStage stage) {
  std::optional<HostedCommunicator> hosted;
  if (ranks != nullptr && on_gpu()) ranks = &hosted.emplace(*ranks);
  ThreadPool pool(1);
  Stream stream(device_under_test(), pool);
  if (!job.tiers.empty()) stream.limit_kernels({.tier = job.tiers.at(ranks ? static_cast<size_t>(ranks->rank()) : 0)});
  const KernelNotes notes(stream);
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
                 .share = {.stage = stage,
                           .shard_size = job.shard_size,
                           .expert_ranks = job.expert_ranks,
                           .offload = job.offload,
                           .frozen_in_files = job.frozen_in_files,
                           .host_expert_layers = job.host_expert_layers},
                 .host_ranks = job.host_ranks,
                 .least_bucket_bytes = job.least_bucket_bytes,
                 .moe_token_tile = job.moe_token_tile,
                 .mlp_token_tile = job.mlp_token_tile,
                 .formats = job.formats,
                 .base = job.unpacked ? "dtype" : job.base,
                 .layer_inputs = job.layer_inputs,
                 .offload_activations = job.offload_activations,
                 .weight_fetch = job.weight_fetch,
                 .map_values = job.map_values,
                 .optimizer_in_backward = job.optimizer_in_backward,
                 .optimizer = optimizer});
  if (job.unpacked) round_base(replay.store(), directory / "model", *BaseFormat::parse(job.base, "base").packed());
  const auto engine = replay.make_engine(job.aux_coefficient, optimizer);
  if (job.recompute || job.recompute_on_host) {
    engine->set_recompute({.level = RecomputeLevel::kEverything, .on_host = job.recompute_on_host});
    engine->reserve();
  }
  Outcome outcome;
  if (!job.resume_from.empty()) {
    load_training_state(job.resume_from, replay.store());
    engine->gather_values();
    stream.synchronize();
  }
  if (job.jitter > 0) jitter_weights(replay.store(), job.jitter);
  for (size_t i = job.first; i < job.steps.size(); ++i) {
    const bool first = ranks != nullptr && ranks->rank() == 0;
    if (job.uneven && !first) delay(stream);
    engine->accumulate(job.steps[i], static_cast<int64_t>(i), {1e-3, static_cast<int64_t>(i)});
    if (job.uneven && first) delay(stream);
    if (job.before_update) {
      stream.synchronize();
      job.before_update(replay.store());
    }
    outcome.steps.push_back(engine->update({1e-3, static_cast<int64_t>(i)}));
  }
  if (!job.save_to.empty()) save(job.save_to, replay.store(), stream, replay.mesh());
  outcome.evaluation = engine->evaluate(job.steps.back().micro_batches);
  if (job.dtype == DType::kF32) outcome.values = replay.values();
  for (const Parameter* p : replay.store().trainable()) outcome.bytes.push_back(replay.whole_value(*p));
  outcome.kernels = {notes.text()};
  return outcome;
}

uint64_t bits_of(double value) { return std::bit_cast<uint64_t>(value); }

Outcome train_by(int count, const Job& job, ZeroStage stage) {
  std::vector<Outcome> outcomes(static_cast<size_t>(count));
  run_ranks(count,
            [&](Communicator& ranks) { outcomes[static_cast<size_t>(ranks.rank())] = train(job, &ranks, stage); });
  for (const Outcome& outcome : outcomes) {
    if (&outcome != &outcomes[0]) outcomes[0].kernels.push_back(outcome.kernels[0]);
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

ParameterBytes bytes_of(const RankShare& share, int64_t layers, bool trained) {
  const std::filesystem::path folder = goldens() / "qwen3_moe/model";
  Json json = HfConfig::read(folder).json();
  if (layers > 0) json["num_hidden_layers"] = layers;
  LoadedModel model(HfConfig(json, "config.json"), folder, DType::kBF16);
  TrainableOptions options = trained ? TrainableOptions() : TrainableOptions::nothing();
  options.ranks = share;
  model.set_trainable(options);
  return model.store().bytes();
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

Differences differences_of_numbers(const Outcome& ours, const Outcome& one, double loss, double grad_norm) {
  Differences all;
  for (size_t i = 0; i < std::min(ours.steps.size(), one.steps.size()); ++i) {
    const StepResult &a = ours.steps[i], &b = one.steps[i];
    all.push_back({"loss", i, relative_error(a.loss.loss, b.loss.loss), loss});
    all.push_back({"gradient norm", i, relative_error(a.grad_norm, b.grad_norm), grad_norm});
  }
  all.push_back({"loss", one.steps.size(), relative_error(ours.evaluation.loss, one.evaluation.loss), loss});
  return all;
}

Differences differences_at_the_end(const Outcome& ours, const Outcome& one, const Job& job) {
  return {{"loss", job.steps.size(), relative_error(ours.evaluation.loss, one.evaluation.loss), 2e-5},
          {"change of weights", job.steps.size(), change_error(ours.values, one.values, initial_values(job)),
           job.adapter == "lora_attention_init" ? 2e-3 : 2e-2, kMostChangeNoise}};
}

Differences differences(const Outcome& ours, const Outcome& one, const Job& job) {
  Differences all = differences_at_the_end(ours, one, job);
  const auto whole = [&](const char* what, size_t step, auto a, auto b) {
    all.push_back({what, step, std::abs(static_cast<double>(a) - static_cast<double>(b)), 0, 0});
  };
  const auto routed = [](const StepResult& step) {
    return std::accumulate(step.routing.counts.begin(), step.routing.counts.end(), 0.0);
  };
  whole("number of steps", 0, ours.steps.size(), one.steps.size());
  whole("evaluated tokens", job.steps.size(), ours.evaluation.supervised, one.evaluation.supervised);
  for (size_t i = 0; i < std::min(ours.steps.size(), one.steps.size()); ++i) {
    const StepResult &a = ours.steps[i], &b = one.steps[i];
    all.push_back({"loss", i, relative_error(a.loss.loss, b.loss.loss), 2e-5});
    all.push_back({"auxiliary loss", i, relative_error(a.loss.aux_loss, b.loss.aux_loss), 2e-5});
    all.push_back({"entropy", i, relative_error(a.loss.entropy, b.loss.entropy), 1e-4});
    all.push_back({"gradient norm", i, relative_error(a.grad_norm, b.grad_norm), 2e-4});
    // The token with the largest logit may be another one where two are nearly equal: a token of few dozens.
    all.push_back(
        {"accuracy", i, std::abs(a.loss.mean_token_accuracy - b.loss.mean_token_accuracy), 1e-9, kMostChangeNoise});
    whole("tokens", i, a.loss.tokens, b.loss.tokens);
    whole("supervised tokens", i, a.loss.supervised, b.loss.supervised);
    whole("counted experts", i, a.routing.counts.size(), b.routing.counts.size());
    whole("routed tokens", i, routed(a), routed(b));
  }
  return all;
}

std::vector<std::string> unexplained(const Differences& found, const Job& job,
                                     const std::function<Differences(const Outcome&, const Outcome&)>& compare) {
  std::optional<Outcome> exact;
  return unexplained(found, [&](uint64_t seed) {
    if (!exact) exact = train(job, nullptr, ZeroStage::kNone);
    Job off = job;
    off.jitter = seed;
    return compare(train(off, nullptr, ZeroStage::kNone), *exact);
  });
}

namespace {

void expect_explained(const Outcome& ours, const Outcome& one, const Job& job,
                      const std::function<Differences(const Outcome&, const Outcome&)>& compare) {
  for (const std::string& line : unexplained(compare(ours, one), job, compare)) ADD_FAILURE() << line;
}

}  // namespace

void expect_same_training(const Outcome& ours, const Outcome& one, const Job& job) {
  expect_explained(ours, one, job, [&](const Outcome& a, const Outcome& b) { return differences(a, b, job); });
}

void expect_same_end(const Outcome& ours, const Outcome& one, const Job& job) {
  expect_explained(ours, one, job,
                   [&](const Outcome& a, const Outcome& b) { return differences_at_the_end(a, b, job); });
}

void expect_same_numbers(const Outcome& ours, const Outcome& one, const Job& job, double loss, double grad_norm) {
  EXPECT_EQ(ours.steps.size(), one.steps.size());
  expect_explained(ours, one, job,
                   [&](const Outcome& a, const Outcome& b) { return differences_of_numbers(a, b, loss, grad_norm); });
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

}  // namespace hone
