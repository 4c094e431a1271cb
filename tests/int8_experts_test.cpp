// Tests of runs with frozen 8-bit experts: training, saving, merging, and refusals.
#include <gmock/gmock.h>

#include <cmath>

#include "device_main.h"
#include "program.h"
#include "run_noise.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

/// tiny_config() with sizes of experts that 8-bit experts support.
Json fitting_config() {
  Json config = tiny_config();
  config["hidden_size"] = 64;
  config["moe_intermediate_size"] = 128;
  return config;
}

class Int8Experts : public ::testing::Test {
 protected:
  Int8Experts() : model_(make_model(folder_, fitting_config())), data_(folder_.write("data.jsonl", progressions(40))) {}

  Outcome train(const std::string& output, std::vector<std::string> more) const {
    more.insert(more.begin(), {"finetuning_type=lora", "lora_r=4", "lora_target_modules=[attention,all-experts]"});
    return run_hone(train_arguments(model_, data_, folder_ / output, more));
  }
  void trained(const std::string& output, const std::vector<std::string>& more) const {
    const Outcome outcome = train(output, more);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
  std::vector<double> losses(const std::string& output) const {
    std::vector<double> losses;
    for (const Json& line : read_json_lines(folder_ / output / "metrics.jsonl")) {
      if (line.contains("loss")) losses.push_back(line["loss"].get<double>());
    }
    return losses;
  }

  Folder folder_;
  std::string model_, data_;
};

/// Two ranks of a host, each with a part of the one copy, or each step's batch at one rank.
TEST_F(Int8Experts, OnTheCpuAreSharedByTheRanksOfAHost) {
  if (on_gpu()) GTEST_SKIP() << "two ranks on two CPU streams each";
  const std::vector<std::string> options = {"finetuning_type=lora",
                                            "lora_r=4",
                                            "lora_target_modules=[attention,all-experts]",
                                            "max_steps=6",
                                            "learning_rate=1e-2",
                                            "logging_steps=1",
                                            "global_batch_size=4",
                                            "expert_weight_dtype=int8",
                                            "experts_device=cpu"};
  const auto run = [&](const std::string& output, std::vector<std::string> arguments, const std::string& more = {}) {
    for (const std::string& argument : train_arguments(model_, data_, folder_ / output, options)) {
      if (!argument.starts_with("gradient_accumulation_steps=")) arguments.push_back(argument);  // follows from ranks
    }
    if (!more.empty()) arguments.push_back(more);
    const Outcome outcome = run_hone(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return losses(output);
  };
  const std::vector<std::string> two = {"launch", "-n", "2", "--device", "cpu"};
  const std::vector<double> one = run("one", {}), shared = run("two", two), parts = run("parts", two, "zero_stage=3");
  ASSERT_EQ(one.size(), 6u);
  const auto differences = [&](const std::vector<double>& losses) {
    Differences all;
    // bfloat16 rounds gradients of one micro-batch of 4 sequences and of two of 2 differently.
    for (size_t i = 0; i < one.size(); ++i) all.push_back({"loss", i, relative_error(losses.at(i), one[i]), 0.02});
    return all;
  };
  const auto jittered = [&](uint64_t seed) {
    return differences(
        run("jittered" + std::to_string(seed), {}, "model_name_or_path=" + jittered_model(model_, seed, DType::kBF16)));
  };
  for (const std::vector<double>& of_two : {shared, parts}) {
    ASSERT_EQ(of_two.size(), one.size());
    EXPECT_THAT(unexplained(differences(of_two), jittered), ::testing::IsEmpty());
  }
  EXPECT_EQ(run("again", two), shared) << "the same bits";
}

/// A weight's error is at most 1/254 of the largest in its row, on AMX also an activation's. The loss before the first
/// update hardly changes; later losses differ by a small part of the improvement, since AdamW amplifies small
/// differences.
TEST_F(Int8Experts, LearnWhatExpertsOfBFloat16Learn) {
  trained("wide", {"max_steps=20", "learning_rate=1e-2", "logging_steps=1"});
  trained("narrow", {"max_steps=20", "learning_rate=1e-2", "logging_steps=1", "expert_weight_dtype=int8"});
  const std::vector<double> wide = losses("wide"), narrow = losses("narrow");
  ASSERT_EQ(wide.size(), 20u);
  ASSERT_EQ(narrow.size(), 20u);
  EXPECT_NE(wide, narrow);
  const double learnt = wide.front() - wide.back();
  EXPECT_GT(learnt, 1.0);
  EXPECT_NEAR(narrow[0], wide[0], 0.005);
  const auto differences = [&](const std::vector<double>& losses) {
    Differences all;
    for (size_t i = 0; i < wide.size(); ++i) {
      all.push_back({"loss, of what was learnt,", i, std::abs(losses.at(i) - wide[i]) / learnt, 0.05, 0.05});
    }
    return all;
  };
  const auto jittered = [&](uint64_t seed) {
    const std::string output = "jittered" + std::to_string(seed);
    trained(output, {"max_steps=20", "learning_rate=1e-2", "logging_steps=1",
                     "model_name_or_path=" + jittered_model(model_, seed, DType::kBF16)});
    return differences(losses(output));
  };
  EXPECT_THAT(unexplained(differences(narrow), jittered), ::testing::IsEmpty());
}

TEST_F(Int8Experts, AStoppedRunGoesOnToTheSameBits) {
  const std::vector<std::string> int8 = {"expert_weight_dtype=int8", "lora_dropout=0.1", "save_steps=3"};
  const auto with = [&](std::vector<std::string> options) {
    options.insert(options.end(), int8.begin(), int8.end());
    return options;
  };
  trained("whole", with({"max_steps=6"}));
  trained("parts", with({"max_steps=3"}));
  trained("parts", with({"max_steps=6", "resume=auto"}));
  for (const char* name : {"adapter_model.safetensors", "checkpoint-6/training_state.safetensors"}) {
    EXPECT_TRUE(read_file(folder_ / "whole" / name) == read_file(folder_ / "parts" / name)) << name;
  }
}

TEST_F(Int8Experts, AreMergedIntoTheWeightsOfTheFiles) {
  const Outcome outcome = train("out", {"max_steps=2", "expert_weight_dtype=int8", "lora_target_modules=[attention]"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string merged = (folder_ / "merged").string();
  ASSERT_EQ(run_hone({"merge", "--model", model_, "--adapter", (folder_ / "out").string(), "--output", merged}).code,
            0);
  const SafetensorsFile before(fs::path(model_) / "model.safetensors"), after(fs::path(merged) / "model.safetensors");
  int experts = 0;
  for (const SafetensorsEntry& entry : before.entries()) {
    if (entry.name.find("experts") == std::string::npos) continue;
    EXPECT_EQ(before.read_floats(entry.name), after.read_floats(entry.name)) << entry.name;
    ++experts;
  }
  EXPECT_GT(experts, 0);
}

TEST_F(Int8Experts, TakeAByteAWeightInThePlan) {
  const auto planned = [&](const std::string& dtype, const std::string& what = "weights") {
    const Outcome outcome = run_hone({"estimate", model_, "finetuning_type=lora", "device=cpu", "max_length=32",
                                      "gradient_checkpointing=true", "expert_weight_dtype=" + dtype, "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["configured"][what].get<int64_t>();
  };
  constexpr int64_t kWeights = 2 * 4 * 3 * 64 * 128, kScales = 2 * 4 * (256 + 64);
  EXPECT_EQ(planned("auto") - planned("int8"), kWeights - 4 * kScales);
  // Memory that only 8-bit experts fit in.
  const int64_t least = planned("int8", "total"), more = planned("auto", "total");
  const Outcome outcome = run_hone({"estimate", model_, "finetuning_type=lora", "device=cpu", "max_length=32",
                                    "gradient_checkpointing=true", "--memory", std::to_string((least + more) / 2)});
  EXPECT_NE(outcome.out.find("It fits with expert_weight_dtype: int8"), std::string::npos) << outcome.out;
}

TEST_F(Int8Experts, AreRefusedWhereTheyCannotBe) {
  const auto refused = [](const Outcome& outcome, const std::string& with) {
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find(with), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("fix:"), std::string::npos) << outcome.err;
  };
  const std::string int8 = "expert_weight_dtype=int8";
  refused(run_hone(train_arguments(model_, data_, folder_ / "out", {int8, "finetuning_type=full"})),
          "experts of 8 bits are frozen, but finetuning_type is full");
  refused(train("out", {int8, "device=cuda"}), "experts of 8 bits are computed by a CPU");
  refused(train("out", {int8, R"(trainable_parameters=["*.experts.down_proj"])"}),
          "would be trained beside the adapters");
  refused(
      run_hone(train_arguments(model_, data_, folder_ / "out", {"expert_weight_dtype=int4", "finetuning_type=full"})),
      "experts in int4 are frozen, but finetuning_type is full");
  refused(train("out", {"kt_backend=AMXINT4"}), "known, not in this version");
  refused(train("out", {"expert_weight_dtype=bfloat16", "dtype=float32"}), "but dtype is float32");
  const Folder odd;
  refused(run_hone(train_arguments(make_model(odd), data_, folder_ / "out", {int8, "finetuning_type=lora"})),
          "int8 takes multiples of 64");
  refused(run_hone({"bench", "step", "--model", model_, "--device", "cpu", "--expert-weight-dtype", "int8"}),
          "are frozen, but finetuning_type is full");
  refused(run_hone({"bench", "step", "--model", model_, "--mode", "lora", "--expert-weight-dtype", "int9"}),
          "expected one of auto, bfloat16, int8");
}

/// Experts that are packed alone are those of a base of which all else is kept: the same bits, whether a run is stopped
/// or not, and wherever they are.
TEST_F(Int8Experts, ArePackedLikeABase) {
  const std::vector<std::string> base = {"max_steps=4", "save_steps=2", "base_weight_dtype=int4",
                                         "base_weight_keep=[re:.*self_attn.*]"},
                                 alone = {"max_steps=4", "save_steps=2", "expert_weight_dtype=int4"};
  const auto with = [](std::vector<std::string> options, const std::string& more) {
    options.push_back(more);
    return options;
  };
  trained("base", base);
  trained("alone", alone);
  trained("parts", with({"save_steps=2", "expert_weight_dtype=int4"}, "max_steps=2"));
  trained("parts", with(alone, "resume=auto"));
  trained("beside", with(alone, "experts_device=cpu"));
  const std::string adapter = "adapter_model.safetensors";
  for (const char* other : {"base", "parts", "beside"}) {
    EXPECT_TRUE(read_file(folder_ / "alone" / adapter) == read_file(folder_ / other / adapter)) << other;
  }
}

TEST_F(Int8Experts, ABenchmarkStepRunsWithThem) {
  const Outcome outcome =
      run_hone({"bench",    "step",     "--model", model_,  "--mode", "lora-all", "--expert-weight-dtype",
                "int8",     "--device", "cpu",     "--seq", "32",     "--batch",  "1",
                "--warmup", "1",        "--steps", "1",     "--json", "-"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["precision"]["experts_in_int8"], true);
}

}  // namespace
}  // namespace hone
