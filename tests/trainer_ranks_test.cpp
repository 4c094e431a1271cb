// Tests of complete runs of several ranks, which are threads of this process: their files, and resuming from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>

#include "app/launched_ranks.h"
#include "config/resolve.h"
#include "config/resolved_yaml.h"
#include "dist/transport/thread_ranks.h"
#include "program.h"
#include "run_noise.h"
#include "train/plan/rank_group.h"
#include "train/run/trainer.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

class TrainerRanksTest : public ::testing::Test {
 protected:
  TrainerRanksTest() : model_(make_model(folder_)), data_(folder_.write("data.jsonl", progressions(48))) {}

  /// Options of rank `rank` in the form of the command line.
  std::vector<std::string> options(const std::string& output, const std::vector<std::string>& more) const {
    std::vector<std::string> options = {"model_name_or_path=" + model_,
                                        "datasets=" + data_,
                                        "output_dir=" + (folder_ / output).string(),
                                        "dtype=float32",
                                        "max_length=32",
                                        "packing=false",
                                        "global_batch_size=4",
                                        "learning_rate=0.003",
                                        "threads=1",
                                        "device=cpu",
                                        "router_aux_loss_coef=0.01",
                                        "val_split=6",
                                        "save_steps=4",
                                        "eval_steps=4",
                                        "max_steps=8",
                                        "warmup_steps=0",
                                        "lr_scheduler_type=constant"};
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }

  /// Trains with `count` ranks; throws the first error of any rank. `change` modifies the options of a rank.
  void train(int count, const std::string& output, const std::vector<std::string>& more = {},
             const std::function<std::vector<std::string>(int)>& change = {}) {
    if (count == 1) alone_[output] = more;
    auto communicators = thread_ranks(count);
    std::vector<std::exception_ptr> errors(static_cast<size_t>(count));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          std::vector<std::string> own = options(output, more);
          if (change) {
            for (const std::string& option : change(rank)) own.push_back(option);
          }
          TrainerRanks ranks{.rank = rank, .size = count};
          ranks.connect = [&](Stream&) { return std::move(communicators[static_cast<size_t>(rank)]); };
          Console console(terminal_of({.rank = 1}));
          Logger logger(console);
          const RunConfig run = load_config("", own, {count}).run;
          RunContext context(run.machine, logger, {resolved_yaml, resolved_pairs, {}}, ranks);
          EXPECT_EQ(hone::train(run, context), ExitCode::kOk);
        } catch (...) {
          errors[static_cast<size_t>(rank)] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }

  /// Options for zero_stage with sharding of tensors of any size.
  static std::vector<std::string> stage(int stage, std::vector<std::string> more = {}) {
    more.push_back("zero_stage=" + std::to_string(stage));
    more.push_back("stage3_param_persistence_threshold=0");
    return more;
  }

  std::vector<Json> metrics(const std::string& output) const {
    return read_json_lines(folder_ / output / "metrics.jsonl");
  }

  /// ‖a − b‖ / ‖b − the model before training‖ over the tensors of a file.
  double change_error(const std::string& a, const std::string& b, const std::string& file) const {
    const SafetensorsFile ours(folder_ / a / file), theirs(folder_ / b / file), before(fs::path(model_) / file);
    double error = 0, change = 0;
    for (const SafetensorsEntry& entry : theirs.entries()) {
      const std::vector<float> x = ours.read_floats(entry.name), y = theirs.read_floats(entry.name),
                               start = before.read_floats(entry.name);
      for (size_t i = 0; i < y.size(); ++i) {
        error += std::pow(static_cast<double>(x[i] - y[i]), 2);
        change += std::pow(static_cast<double>(y[i] - start[i]), 2);
      }
    }
    return std::sqrt(error / change);
  }

  Differences changes(const std::string& a, const std::string& b) const {
    return {{"change of weights", 0, change_error(a, b, "model.safetensors"), 2e-2, kMostChangeNoise}};
  }

  /// The largest difference of two adapters. More than a step of AdamW, 3e-3, is not noise.
  Differences adapter_changes(const std::string& a, const std::string& b) const {
    const char* const file = "adapter_model.safetensors";
    const SafetensorsFile ours(folder_ / a / file), theirs(folder_ / b / file);
    EXPECT_EQ(ours.entries().size(), theirs.entries().size()) << a;
    double largest = 0;
    for (const SafetensorsEntry& entry : theirs.entries()) {
      const std::vector<float> x = ours.read_floats(entry.name), y = theirs.read_floats(entry.name);
      for (size_t i = 0; i < y.size(); ++i) largest = std::max(largest, std::abs(static_cast<double>(x[i] - y[i])));
    }
    return {{"adapter", 0, largest, 2e-3, 3e-3}};
  }

  /// The metrics of two runs that do not depend on time.
  Differences metric_differences(const std::string& a, const std::string& b) const {
    const std::vector<Json> ours = metrics(a), theirs = metrics(b);
    Differences all;
    if (ours.size() != theirs.size()) return {{"number of lines", 0, 1, 0, 0}};
    for (size_t i = 0; i < ours.size(); ++i) {
      for (const char* name : {"loss", "loss_with_aux", "grad_norm", "eval_loss", "mean_token_accuracy", "entropy",
                               "router/aux_loss", "router/load_max_over_mean", "router/entropy"}) {
        if (!theirs[i].contains(name)) continue;
        const double reference = theirs[i][name], found = ours[i].at(name);
        // Tokens are counted by the first two: one of a few dozens where it is tied.
        const bool counts =
            std::string_view(name) == "mean_token_accuracy" || std::string_view(name) == "router/load_max_over_mean";
        all.push_back({name, i, std::abs(found - reference) / (std::abs(reference) + 5e-4), 2e-3,
                       counts ? kMostChangeNoise : kMostNumberNoise});
      }
      for (const char* name : {"step", "num_tokens", "num_supervised_tokens", "epoch", "learning_rate"}) {
        if (theirs[i].contains(name)) all.push_back({name, i, ours[i][name] == theirs[i][name] ? 0.0 : 1.0, 0, 0});
      }
    }
    return all;
  }

  /// The share of the answers that are not those of the other run.
  Differences generations(const std::string& a, const std::string& b) const {
    const std::vector<Json> ours = read_json_lines(folder_ / a / "generations.jsonl"),
                            theirs = read_json_lines(folder_ / b / "generations.jsonl");
    if (ours.size() != theirs.size()) return {{"number of answers", 0, 1, 0, 0}};
    int others = 0;
    for (size_t i = 0; i < ours.size(); ++i) others += ours[i]["generated_text"] != theirs[i]["generated_text"];
    return {{"answers", 0, others / static_cast<double>(ours.size()), 0, kMostChangeNoise}};
  }

  using Compare = Differences (TrainerRanksTest::*)(const std::string&, const std::string&) const;

  /// Checks that a run differs from `one`, of one rank, by no more than correct runs may (run_noise.h).
  void expect_same(Compare compare, const std::string& run, const std::string& one) {
    const auto jittered = [&](uint64_t seed) {
      const std::string name = one + " jittered " + std::to_string(seed);
      if (!fs::exists(folder_ / name)) {
        std::vector<std::string> more = alone_.at(one);
        more.push_back("model_name_or_path=" + jittered_model(model_, seed));
        train(1, name, more);
      }
      return (this->*compare)(name, one);
    };
    for (const std::string& line : unexplained((this->*compare)(run, one), jittered))
      ADD_FAILURE() << run << ": " << line;
  }
  void expect_same_metrics(const std::string& run, const std::string& one) {
    expect_same(&TrainerRanksTest::metric_differences, run, one);
  }
  void expect_same_weights(const std::string& run, const std::string& one) {
    expect_same(&TrainerRanksTest::changes, run, one);
  }
  void expect_same_adapter(const std::string& run, const std::string& one) {
    expect_same(&TrainerRanksTest::adapter_changes, run, one);
  }
  void expect_same_answers(const std::string& run, const std::string& one) {
    expect_same(&TrainerRanksTest::generations, run, one);
  }

  Folder folder_;
  std::string model_, data_;
  std::map<std::string, std::vector<std::string>> alone_;  // the options of runs of one rank
};

TEST_F(TrainerRanksTest, MetricsAndModelAreThoseOfOneRank) {
  train(1, "one");
  train(4, "four");
  train(2, "two", {"zero_stage=1"});
  train(2, "gradients", stage(2));
  train(4, "values", stage(3));
  train(4, "groups", stage(3, {"dp_shard_size=2"}));
  for (const char* run : {"four", "two", "gradients", "values", "groups"}) {
    expect_same_metrics(run, "one");
    expect_same_weights(run, "one");
    EXPECT_EQ(names_in(folder_ / run / "checkpoint-8"), names_in(folder_ / "one/checkpoint-8"));
  }
}

TEST_F(TrainerRanksTest, OnlyTheFirstWritesBesideTheirLogs) {
  train(2, "out", {"max_steps=2"});
  size_t steps = 0;
  for (const Json& line : metrics("out")) steps += line.contains("loss");
  EXPECT_EQ(steps, 2u);
  EXPECT_THAT(names_in(folder_ / "out/logs"), ::testing::UnorderedElementsAre("rank_0.log", "rank_1.log"));
  EXPECT_THAT(read_file(folder_ / "out/logs/rank_1.log"), ::testing::HasSubstr("1 × 2 × 2 ranks = 4 sequences"));
  EXPECT_EQ(read_file(folder_ / "out/logs/rank_0.log"), read_file(folder_ / "out/run.log"));
}

TEST_F(TrainerRanksTest, AnyNumberGoesOnFromACheckpoint) {
  train(1, "whole");
  train(4, "saved", {"zero_stage=1", "max_steps=4"});
  train(4, "saved by parts", stage(3, {"max_steps=4"}));
  train(4, "saved by groups", stage(2, {"max_steps=4", "dp_replicate_size=2"}));
  const auto go_on = [&](const std::string& from, int count, const std::string& name, int zero_stage,
                         const std::string& groups = "dp_shard_size=all") {
    fs::copy(folder_ / from, folder_ / name, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    train(count, name, stage(zero_stage, {"resume=auto", groups}));
    expect_same_weights(name, "whole");
  };
  go_on("saved", 1, "by one", 0);
  go_on("saved", 2, "by two", 0);
  go_on("saved", 4, "by four", 1);
  go_on("saved", 2, "by two parts", 3);
  go_on("saved by parts", 1, "parts by one", 0);
  go_on("saved by parts", 2, "parts by two", 2);
  go_on("saved by parts", 4, "parts by four", 3);
  go_on("saved by parts", 4, "parts by groups", 3, "dp_shard_size=2");
  go_on("saved by groups", 2, "groups by two", 1);
  go_on("saved by groups", 4, "groups by groups", 2, "dp_shard_size=2");
  expect_same_metrics("by two", "whole");
  // With the same number of ranks, the bits are those of an uninterrupted run.
  train(4, "uninterrupted", {"zero_stage=1"});
  EXPECT_TRUE(read_file(folder_ / "by four/model.safetensors") ==
              read_file(folder_ / "uninterrupted/model.safetensors"));
  train(4, "uninterrupted groups", stage(2, {"dp_shard_size=2"}));
  EXPECT_TRUE(read_file(folder_ / "groups by groups/model.safetensors") ==
              read_file(folder_ / "uninterrupted groups/model.safetensors"));
  train(4, "uninterrupted parts", stage(3));
  EXPECT_TRUE(read_file(folder_ / "parts by four/model.safetensors") ==
              read_file(folder_ / "uninterrupted parts/model.safetensors"));
}

TEST_F(TrainerRanksTest, DamageIsPassedOverByAllInTheSameStart) {
  using Harm = void (*)(std::fstream&);
  const Harm header = [](std::fstream& file) {  // as a power cut leaves it: the size is right
    file.seekp(0);
    file << std::string(256, '\0');
  };
  const Harm bit = [](std::fstream& file) {
    file.seekg(-3, std::ios::end);
    const int byte = file.get();
    file.seekp(-3, std::ios::end);
    file.put(static_cast<char>(byte ^ 1));
  };
  const std::string weights = "model.safetensors", state = "training_state.safetensors";
  int runs = 0;
  const auto expect_passed_over = [&](const std::string& from, int count, const std::string& file, Harm harm,
                                      const std::vector<std::string>& how) {
    const std::string name = "damaged " + std::to_string(++runs);
    SCOPED_TRACE(from + " " + file + (harm == header ? " header" : " bit"));
    fs::copy(folder_ / from, folder_ / name, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    {
      std::fstream bytes(folder_ / name / "checkpoint-4" / file, std::ios::in | std::ios::out | std::ios::binary);
      harm(bytes);
    }
    train(count, name, how);
    const std::vector<std::string> names = names_in(folder_ / name);
    EXPECT_THAT(names, ::testing::IsSupersetOf({"checkpoint-2", "checkpoint-4", "checkpoint-4.damaged"}));
    EXPECT_TRUE(read_file(folder_ / name / weights) == read_file(folder_ / from / weights)) << count << " ranks";
  };
  const auto briefly = [](std::vector<std::string> how, const std::string& resume) {
    how.insert(how.end(), {"max_steps=4", "save_steps=2", resume});
    return how;
  };
  const std::vector<std::vector<std::string>> kinds = {
      {"zero_stage=0"}, stage(1), stage(2), stage(3), {"expert_parallel_size=2"}};
  for (size_t i = 0; i < kinds.size(); ++i) {
    const std::string from = "kind " + std::to_string(i);
    train(2, from, briefly(kinds[i], "resume=false"));
    expect_passed_over(from, 2, state, header, briefly(kinds[i], "resume=auto"));
    expect_passed_over(from, 2, i % 2 == 0 ? weights : state, bit, briefly(kinds[i], "resume=auto"));
    expect_passed_over(from, 2, weights, i % 2 == 0 ? header : bit, briefly(kinds[i], "resume=auto"));
  }
}

TEST_F(TrainerRanksTest, DamageIsPassedOverByAnotherNumberOfThem) {
  train(2, "saved", stage(3));
  for (const int count : {1, 4}) {
    const std::string name = "by " + std::to_string(count);
    fs::copy(folder_ / "saved", folder_ / name, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    std::fstream(folder_ / name / "checkpoint-8/training_state.safetensors",
                 std::ios::in | std::ios::out | std::ios::binary)
        << std::string(256, '\0');
    train(count, name, stage(count == 1 ? 0 : 3, {"resume=auto"}));
    EXPECT_THAT(names_in(folder_ / name), ::testing::Contains("checkpoint-8.damaged"));
    EXPECT_LT(change_error(name, "saved", "model.safetensors"), 2e-2) << name;
  }
}

TEST_F(TrainerRanksTest, WhatDoesNotFitAnIntactCheckpointIsAnErrorOfAll) {
  train(2, "saved", stage(1, {"max_steps=4"}));
  try {
    train(2, "saved", stage(1, {"resume=auto", "data_seed=5"}));
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.message(), ::testing::HasSubstr("data_seed is 5, was 42"));
  }
  EXPECT_THAT(names_in(folder_ / "saved"), ::testing::Contains("checkpoint-4"));
}

TEST_F(TrainerRanksTest, ExpertsMayBeSpreadOverThem) {
  train(1, "one");
  train(4, "spread", {"expert_parallel_size=2", "load_best_model_at_end=true"});
  train(2, "saved", stage(3, {"expert_parallel_size=2", "max_steps=4"}));
  EXPECT_THAT(read_file(folder_ / "saved/run.log"), ::testing::HasSubstr("experts: 2 of 4 on each of 2 ranks"));
  fs::copy(folder_ / "saved", folder_ / "by one", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  train(1, "by one", {"resume=auto"});
  train(4, "saved", {"expert_parallel_size=4", "resume=auto"});
  for (const char* run : {"spread", "by one", "saved"}) {
    expect_same_metrics(run, "one");
    expect_same_weights(run, "one");
  }
  try {
    train(3, "refused", {"expert_parallel_size=3", "global_batch_size=6"});
    ADD_FAILURE() << "4 experts";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("4 experts do not spread evenly over 3 ranks"));
  }
}

TEST_F(TrainerRanksTest, CodedMomentsOfSpreadExpertsAreThoseOfOneRank) {
  const std::vector<std::string> narrow = {"dtype=bfloat16", "optim=adamw_8bit", "max_steps=2", "save_steps=2"};
  std::vector<std::string> spread = narrow;
  spread.push_back("expert_parallel_size=2");
  train(2, "whole", narrow);
  train(2, "spread", spread);
  const char* const file = "checkpoint-2/training_state.safetensors";
  const SafetensorsFile ours(folder_ / "spread" / file), theirs(folder_ / "whole" / file);
  ASSERT_EQ(ours.entries().size(), theirs.entries().size());
  for (const SafetensorsEntry& entry : theirs.entries()) {
    EXPECT_EQ(ours.at(entry.name).shape, entry.shape) << entry.name;
    EXPECT_EQ(ours.at(entry.name).dtype, entry.dtype) << entry.name;
  }
}

TEST_F(TrainerRanksTest, AdaptersOfSpreadExpertsAreWhole) {
  const std::vector<std::string> lora = {"finetuning_type=lora", "lora_target_modules=[attention, all-experts]",
                                         "lora_dropout=0.1", "max_steps=4"};
  train(1, "one", lora);
  std::vector<std::string> spread = lora;
  spread.push_back("expert_parallel_size=2");
  train(2, "two", spread);
  expect_same_metrics("two", "one");
  expect_same_adapter("two", "one");
}

TEST_F(TrainerRanksTest, ExpertsMayBeOnTheCpuOfTheirHost) {
  const std::vector<std::string> lora = {"finetuning_type=lora", "lora_target_modules=[attention, all-experts]",
                                         "load_best_model_at_end=true"};
  const auto on_cpu = [](std::vector<std::string> options, const std::vector<std::string>& more = {}) {
    options.insert(options.end(), more.begin(), more.end());
    options.push_back("experts_device=cpu");
    return options;
  };
  train(1, "one", lora);
  train(2, "two", on_cpu(lora));
  train(4, "parts", on_cpu(stage(3, lora)));
  EXPECT_THAT(read_file(folder_ / "two/run.log"), ::testing::HasSubstr("once for the 2 ranks of a host"));
  train(2, "goes on", on_cpu(lora, {"max_steps=3", "save_steps=3"}));
  train(1, "goes on", on_cpu(lora, {"max_steps=5", "save_steps=5", "resume=auto"}));
  train(2, "goes on", on_cpu(lora, {"resume=auto"}));
  for (const char* run : {"two", "parts"}) expect_same_metrics(run, "one");
  for (const char* run : {"two", "parts", "goes on"}) expect_same_adapter(run, "one");
}

TEST_F(TrainerRanksTest, FrozenExpertsOnTheCpuAreInFullCheckpoints) {
  const std::vector<std::string> frozen = {"freeze_parameters=['*.experts.*']"};
  std::vector<std::string> shared = frozen;
  shared.push_back("experts_device=cpu");
  train(1, "one", frozen);
  train(2, "saved", shared);
  expect_same_weights("saved", "one");
  shared.insert(shared.end(), {"resume=auto", "max_steps=10"});
  train(4, "saved", stage(3, shared));
  EXPECT_THAT(read_file(folder_ / "saved/run.log"), ::testing::HasSubstr("at step 8"));
}

TEST_F(TrainerRanksTest, RanksThatShareWeightsGenerateAndKeepTheBestTogether) {
  const std::vector<std::string> generating = {"generate_samples=true", "num_generation_samples=2", "max_new_tokens=6",
                                               "load_best_model_at_end=true", "save_total_limit=1"};
  train(1, "one", generating);
  train(4, "four", stage(3, generating));
  expect_same_answers("four", "one");
  expect_same_weights("four", "one");
}

TEST_F(TrainerRanksTest, AdaptersAndBFloat16AreSharedToo) {
  const std::vector<std::string> lora = {"finetuning_type=lora", "lora_target_modules=[attention, all-experts]"};
  train(1, "one", lora);
  std::vector<std::string> sharded = lora;
  sharded.push_back("zero_stage=1");
  train(4, "four", sharded);
  train(4, "parts", stage(3, lora));
  for (const char* run : {"four", "parts"}) expect_same_metrics(run, "one");
  expect_same_adapter("parts", "one");
  std::vector<std::string> narrow = {"dtype=bfloat16", "optim=adamw_8bit", "max_steps=4"};
  train(2, "stage 0", narrow);
  narrow.push_back("zero_stage=1");
  train(2, "stage 1", narrow);
  for (const char* file : {"model.safetensors", "checkpoint-4/training_state.safetensors"}) {
    EXPECT_EQ(names_in(folder_ / "stage 0"), names_in(folder_ / "stage 1"));
    const SafetensorsFile a(folder_ / "stage 0" / file), b(folder_ / "stage 1" / file);
    ASSERT_EQ(a.entries().size(), b.entries().size());
    for (const SafetensorsEntry& entry : a.entries()) {
      const SafetensorsEntry& other = b.at(entry.name);
      EXPECT_EQ(other.shape, entry.shape) << entry.name;
      EXPECT_EQ(other.dtype, entry.dtype) << entry.name;
    }
  }
}

TEST_F(TrainerRanksTest, EveryRanksLogNamesItsDeviceAndTheFirstOnesAll) {
  train(2, "out", {"max_steps=1"});
  const std::string first = read_file(folder_ / "out/run.log"), second = read_file(folder_ / "out/logs/rank_1.log");
  for (const char* part : {"rank 0: ", "rank 1: "}) EXPECT_NE(first.find(part), std::string::npos) << part << first;
  EXPECT_NE(second.find("  device "), std::string::npos) << second;
}

TEST_F(TrainerRanksTest, AProfileShowsWhatTheyExchange) {
  train(2, "out", {"zero_stage=1", "max_steps=4", "profile=true"});
  const Json trace = Json::parse(read_file(folder_ / "out/profile.json"));
  std::set<std::string> exchanged;
  int lane = -1;
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name" && event["args"]["name"] == "collectives") lane = event["tid"];
    if (event["ph"] != "X" || event["tid"] != lane) continue;
    EXPECT_EQ(event["cat"], "collectives");
    const std::string name = event["name"];
    exchanged.insert(name.substr(0, name.find(' ')));
  }
  EXPECT_THAT(exchanged, ::testing::ElementsAre("all-gather", "all-reduce", "reduce-scatter"));
  const Json stages = Json::parse(read_file(folder_ / "out/profile-stages.json"));
  EXPECT_GT(stages["collectives"]["ms"].get<double>(), 0);
}

TEST_F(TrainerRanksTest, RanksWithoutASharedOutputFolderAreNamed) {
  fs::create_directories(folder_ / "of rank 0");
  fs::create_directories(folder_ / "of rank 1");
  auto communicators = thread_ranks(2);
  std::array<std::string, 2> messages;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      TrainerRanks ranks{.rank = rank, .size = 2};
      ranks.connect = [&](Stream&) { return std::move(communicators[static_cast<size_t>(rank)]); };
      Console console(terminal_of({.rank = 1}));
      Logger logger(console);
      RunConfig::Machine machine;
      machine.device = "cpu";
      machine.threads = 1;
      RunContext context(machine, logger, {}, ranks);
      RankGroup group(context);
      group.require_shared(folder_ / "of rank 0");
      try {
        group.require_shared(folder_ / ("of rank " + std::to_string(rank)));
      } catch (const UserError& error) {
        messages[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& message : messages) {
    EXPECT_THAT(message, ::testing::HasSubstr("does not see the output folder of rank 0"));
    EXPECT_THAT(message, ::testing::HasSubstr("rank 1 on "));
  }
  EXPECT_TRUE(names_in(folder_ / "of rank 0").empty());
}

TEST_F(TrainerRanksTest, RanksThatWereToldDifferentThingsDoNotStart) {
  try {
    train(2, "out", {},
          [](int rank) -> std::vector<std::string> { return {rank == 0 ? "weight_decay=0" : "weight_decay=0.5"}; });
    FAIL() << "they have trained";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("weight_decay: 0.5"));
  }
  EXPECT_FALSE(fs::exists(folder_ / "out/metrics.jsonl"));
}

}  // namespace
}  // namespace hone
