#include "train/plan/fitting_setting.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "train/plan/recompute.h"

namespace hone {
namespace {

RunConfig run(const std::string& method, int64_t ranks = 1) {
  RunConfig config;
  config.model.finetuning_type = method;
  config.machine.ranks = ranks;
  config.schedule.per_device_train_batch_size = 8;
  config.schedule.gradient_accumulation_steps = 1;
  config.eval.per_device_eval_batch_size = 8;
  return config;
}

bool offloads(const RunConfig& config, const char* name) {
  const auto& names = config.machine.cpu_offload;
  return std::find(names.begin(), names.end(), name) != names.end();
}

using Fits = std::function<bool(const RunConfig&)>;

/// The setting for a run that fits with everything recomputed if `fits`; "" if there is none.
std::string setting(const RunConfig& config, const Fits& fits, bool host_is_apart = true, bool int8_experts = false) {
  const MemoryRoom room{host_is_apart, int8_experts, [&](const RunConfig& changed, const std::string& level) {
                          return level == recompute_levels().back() && fits(changed);
                        }};
  return fitting_setting(config, room).value_or("");
}

const std::string kRecomputed = " and gradient_checkpointing: true";

TEST(FittingSetting, IsFirstTheLevelOfRecomputation) {
  const MemoryRoom room{.fits = [](const RunConfig&, const std::string& level) {
    return level == "activations" || level == recompute_levels().back();
  }};
  EXPECT_EQ(fitting_setting(run("full"), room), "gradient_checkpointing: activations");
  EXPECT_EQ(setting(run("full"), [](const RunConfig&) { return true; }), "gradient_checkpointing: true");
}

TEST(FittingSetting, IsThenASmallerBatchOfTheSameStep) {
  const auto two_at_once = [](const RunConfig& c) { return c.schedule.per_device_train_batch_size <= 2; };
  EXPECT_EQ(setting(run("full"), two_at_once),
            "gradient_checkpointing: true, per_device_train_batch_size: 2 and gradient_accumulation_steps: 4, which is "
            "the same training");
  RunConfig in_backward = run("full");
  in_backward.optim.optimizer_in_backward = true;
  EXPECT_EQ(setting(in_backward, two_at_once), "");
}

TEST(FittingSetting, IsThenAHigherStageOfSeveralRanks) {
  const auto at_stage_2 = [](const RunConfig& c) { return c.machine.zero_stage >= "2"; };
  EXPECT_EQ(setting(run("full", 4), at_stage_2), "zero_stage: 2" + kRecomputed);
  EXPECT_EQ(setting(run("full"), at_stage_2), "");
  RunConfig factored = run("full", 4);
  factored.optim.name = "adafactor";
  EXPECT_EQ(setting(factored, at_stage_2), "");
}

TEST(FittingSetting, IsThenHostMemoryAndFewerBits) {
  const auto in_host = [](const char* name) { return [name](const RunConfig& c) { return offloads(c, name); }; };
  EXPECT_EQ(setting(run("full"), in_host("activations")), "cpu_offload: [activations]" + kRecomputed);
  EXPECT_EQ(setting(run("full"), in_host("params")), "cpu_offload: [params]" + kRecomputed);
  EXPECT_EQ(setting(run("full"), in_host("params"), false), "") << "a CPU has no other memory";
  EXPECT_EQ(
      setting(run("full", 2), [](const RunConfig& c) { return offloads(c, "params") || c.machine.zero_stage == "3"; }),
      "zero_stage: 3" + kRecomputed);
  const auto packed = [](const RunConfig& c) {
    return c.model.base_weight_dtype == "nf4" || c.model.expert_weight_dtype == "int8" || offloads(c, "params");
  };
  EXPECT_EQ(setting(run("lora"), packed), "base_weight_dtype: nf4" + kRecomputed);
  EXPECT_EQ(setting(run("lora"), packed, false, true), "expert_weight_dtype: int8" + kRecomputed);
  EXPECT_EQ(setting(run("full"), packed), "cpu_offload: [params]" + kRecomputed) << "nothing is frozen";
}

TEST(FittingSetting, MayBeLessInHostMemory) {
  RunConfig config = run("full");
  config.machine.cpu_offload = {"optimizer", "activations"};
  EXPECT_EQ(setting(config, [](const RunConfig& c) { return !offloads(c, "activations"); }),
            "cpu_offload: []" + kRecomputed);
  EXPECT_EQ(setting(config, [](const RunConfig& c) { return offloads(c, "optimizer") && !offloads(c, "activations"); }),
            "cpu_offload: [optimizer]" + kRecomputed);
}

TEST(FittingSetting, IsAtLastAllOfThat) {
  const auto both = [](const RunConfig& c) {
    return c.machine.zero_stage == "3" && c.schedule.per_device_train_batch_size == 1;
  };
  EXPECT_EQ(setting(run("full", 2), both),
            "zero_stage: 3, gradient_checkpointing: true, per_device_train_batch_size: 1 and "
            "gradient_accumulation_steps: 8, which is the same training");
  EXPECT_EQ(setting(run("lora", 2), [](const RunConfig&) { return false; }), "");
}

TEST(FittingSetting, IsThenExpertsOnTheCpuBesideTheGpu) {
  const auto on_cpu = [](const RunConfig& c) { return c.machine.experts_device == "cpu"; };
  const auto setting_of = [&](const RunConfig& config, bool experts) {
    const MemoryRoom room{
        .host_is_apart = true,
        .fits = [&](const RunConfig& changed,
                    const std::string& level) { return level == recompute_levels().back() && on_cpu(changed); },
        .experts = experts};
    return fitting_setting(config, room).value_or("");
  };
  EXPECT_EQ(setting_of(run("full"), true), "experts_device: cpu" + kRecomputed);
  EXPECT_EQ(setting_of(run("full"), false), "");
  EXPECT_EQ(setting_of(run("full", 2), true), "experts_device: cpu" + kRecomputed);
  RunConfig spread = run("full", 2);
  spread.machine.expert_parallel_size = 2;
  EXPECT_EQ(setting_of(spread, true), "");
}

}  // namespace
}  // namespace hone
