#include "train/plan/fitting_setting.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "config/run_options.h"
#include "core/base/contains.h"
#include "train/plan/recompute.h"

namespace hone {
namespace {

RunConfig run(FinetuningType method, int64_t ranks = 1) {
  RunConfig config;
  config.model.finetuning_type = method;
  config.machine.ranks = ranks;
  config.schedule.per_device_train_batch_size = 8;
  config.schedule.gradient_accumulation_steps = 1;
  config.eval.per_device_eval_batch_size = 8;
  return config;
}

bool offloads(const RunConfig& config, OffloadPart part) { return contains(config.machine.cpu_offload, part); }

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
  EXPECT_EQ(fitting_setting(run(FinetuningType::kFull), room), "gradient_checkpointing: activations");
  EXPECT_EQ(setting(run(FinetuningType::kFull), [](const RunConfig&) { return true; }), "gradient_checkpointing: true");
}

TEST(FittingSetting, IsThenASmallerBatchOfTheSameStep) {
  const auto two_at_once = [](const RunConfig& c) { return c.schedule.per_device_train_batch_size <= 2; };
  EXPECT_EQ(setting(run(FinetuningType::kFull), two_at_once),
            "gradient_checkpointing: true, per_device_train_batch_size: 2 and gradient_accumulation_steps: 4, which is "
            "the same training");
  RunConfig in_backward = run(FinetuningType::kFull);
  in_backward.optim.optimizer_in_backward = true;
  EXPECT_EQ(setting(in_backward, two_at_once), "");
}

TEST(FittingSetting, IsThenExpertsInTiles) {
  const auto setting_of = [](std::optional<int64_t> stated, bool experts, int64_t length = 8192) {
    RunConfig config = run(FinetuningType::kFull, 4);
    config.data.max_length = length;
    config.model.moe_token_tile = stated;
    const MemoryRoom room{
        .fits = [&](const RunConfig& changed, const std::string&) { return changed.model.moe_token_tile != stated; },
        .experts = experts};
    return fitting_setting(config, room).value_or("");
  };
  for (const std::optional<int64_t> stated : {std::optional<int64_t>(), std::optional<int64_t>(0), {32768}}) {
    EXPECT_EQ(setting_of(stated, true), "moe_token_tile: 8192");
    EXPECT_EQ(setting_of(stated, false), "");
  }
  EXPECT_EQ(setting_of(8192, true), "") << "no smaller ones";
  EXPECT_EQ(setting_of({}, true, 1024), "") << "a micro-batch is one tile";
}

TEST(FittingSetting, IsThenMlpsInTiles) {
  const auto setting_of = [](std::optional<int64_t> stated, bool mlps) {
    RunConfig config = run(FinetuningType::kFull, 4);
    config.data.max_length = 8192;
    config.model.mlp_token_tile = stated;
    const MemoryRoom room{
        .fits = [&](const RunConfig& changed, const std::string&) { return changed.model.mlp_token_tile != stated; },
        .mlps = mlps};
    return fitting_setting(config, room).value_or("");
  };
  EXPECT_EQ(setting_of({}, true), "mlp_token_tile: 4096");
  EXPECT_EQ(setting_of({}, false), "");
  EXPECT_EQ(setting_of(4096, true), "") << "no smaller ones";
}

TEST(FittingSetting, IsThenAHigherStageOfSeveralRanks) {
  const auto at_stage_2 = [](const RunConfig& c) { return c.machine.zero_stage >= ZeroStage::kGradients; };
  EXPECT_EQ(setting(run(FinetuningType::kFull, 4), at_stage_2), "zero_stage: 2" + kRecomputed);
  EXPECT_EQ(setting(run(FinetuningType::kFull), at_stage_2), "");
  RunConfig factored = run(FinetuningType::kFull, 4);
  factored.optim.name = OptimizerName::kAdafactor;
  EXPECT_EQ(setting(factored, at_stage_2), "");
}

TEST(FittingSetting, IsThenHostMemoryAndFewerBits) {
  const auto in_host = [](OffloadPart part) { return [part](const RunConfig& c) { return offloads(c, part); }; };
  EXPECT_EQ(setting(run(FinetuningType::kFull), in_host(OffloadPart::kActivations)),
            "cpu_offload: [activations]" + kRecomputed);
  EXPECT_EQ(setting(run(FinetuningType::kFull), in_host(OffloadPart::kParams)), "cpu_offload: [params]" + kRecomputed);
  EXPECT_EQ(setting(run(FinetuningType::kFull), in_host(OffloadPart::kParams), false), "")
      << "a CPU has no other memory";
  EXPECT_EQ(setting(run(FinetuningType::kFull, 2),
                    [](const RunConfig& c) {
                      return offloads(c, OffloadPart::kParams) || c.machine.zero_stage == ZeroStage::kValues;
                    }),
            "zero_stage: 3" + kRecomputed);
  const auto packed = [](const RunConfig& c) {
    return c.model.base_weight_dtype.packed() == &nf4_format() ||
           &c.model.expert_weight_dtype.format() == &int8_format() || offloads(c, OffloadPart::kParams);
  };
  EXPECT_EQ(setting(run(FinetuningType::kLora), packed), "base_weight_dtype: nf4" + kRecomputed);
  EXPECT_EQ(setting(run(FinetuningType::kLora), packed, false, true), "expert_weight_dtype: int8" + kRecomputed);
  EXPECT_EQ(setting(run(FinetuningType::kFull), packed), "cpu_offload: [params]" + kRecomputed) << "nothing is frozen";
}

TEST(FittingSetting, MayBeLessInHostMemory) {
  RunConfig config = run(FinetuningType::kFull);
  config.machine.cpu_offload = {OffloadPart::kOptimizer, OffloadPart::kActivations};
  EXPECT_EQ(setting(config, [](const RunConfig& c) { return !offloads(c, OffloadPart::kActivations); }),
            "cpu_offload: []" + kRecomputed);
  EXPECT_EQ(setting(config,
                    [](const RunConfig& c) {
                      return offloads(c, OffloadPart::kOptimizer) && !offloads(c, OffloadPart::kActivations);
                    }),
            "cpu_offload: [optimizer]" + kRecomputed);
}

TEST(FittingSetting, IsAtLastAllOfThat) {
  const auto both = [](const RunConfig& c) {
    return c.machine.zero_stage == ZeroStage::kValues && c.schedule.per_device_train_batch_size == 1;
  };
  EXPECT_EQ(setting(run(FinetuningType::kFull, 2), both),
            "zero_stage: 3, gradient_checkpointing: true, per_device_train_batch_size: 1 and "
            "gradient_accumulation_steps: 8, which is the same training");
  EXPECT_EQ(setting(run(FinetuningType::kLora, 2), [](const RunConfig&) { return false; }), "");
}

TEST(FittingSetting, IsThenExpertsOnTheCpuBesideTheGpu) {
  const auto on_cpu = [](const RunConfig& c) { return c.machine.experts_device == ExpertsOn::kCpu; };
  const auto setting_of = [&](const RunConfig& config, bool experts) {
    const MemoryRoom room{
        .host_is_apart = true,
        .fits = [&](const RunConfig& changed,
                    const std::string& level) { return level == recompute_levels().back() && on_cpu(changed); },
        .experts = experts};
    return fitting_setting(config, room).value_or("");
  };
  EXPECT_EQ(setting_of(run(FinetuningType::kFull), true), "experts_device: cpu" + kRecomputed);
  EXPECT_EQ(setting_of(run(FinetuningType::kFull), false), "");
  EXPECT_EQ(setting_of(run(FinetuningType::kFull, 2), true), "experts_device: cpu" + kRecomputed);
  RunConfig spread = run(FinetuningType::kFull, 2);
  spread.machine.expert_parallel_size = 2;
  EXPECT_EQ(setting_of(spread, true), "");
}

}  // namespace
}  // namespace hone
