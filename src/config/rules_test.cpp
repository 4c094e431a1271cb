#include "config/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>

namespace hone {
namespace {

using Breaking = std::function<void(RunConfig&)>;

ExpertFormat experts(const char* name) { return ExpertFormat::parse(name, ""); }

void spread(RunConfig& run) { run.machine.ranks = run.machine.ranks_of_host = run.machine.expert_parallel_size = 2; }

void in_backward(RunConfig& run) {
  run.optim.optimizer_in_backward = true;
  run.optim.max_grad_norm = 0;
}

void in_files(RunConfig& run) { run.machine.frozen_weights = FrozenWeights::kFile; }

/// For each rule a run that breaks this one and none before it.
std::map<std::string, Breaking> breaking_runs() {
  return {
      {"master_dtype, dtype",
       [](RunConfig& run) { run.model.dtype = DType::kF32, run.model.master_dtype = DType::kBF16; }},
      {"fp8, dtype", [](RunConfig& run) { run.model.dtype = DType::kF32, run.model.fp8 = Fp8Recipe::kRowwise; }},
      {"expert_weight_dtype, dtype",
       [](RunConfig& run) { run.model.dtype = DType::kF32, run.model.expert_weight_dtype = experts("bfloat16"); }},
      {"expert_weight_dtype, finetuning_type",
       [](RunConfig& run) {
         run.model.finetuning_type = FinetuningType::kFull, run.model.expert_weight_dtype = experts("nf4");
       }},
      {"expert_weight_dtype, device",
       [](RunConfig& run) { run.machine.device = "cuda", run.model.expert_weight_dtype = experts("int8"); }},
      {"base_weight_dtype, finetuning_type",
       [](RunConfig& run) {
         run.model.finetuning_type = FinetuningType::kFull, run.model.base_weight_dtype = BaseFormat(nf4_format());
       }},
      {"expert_parallel_size, ranks", [](RunConfig& run) { run.machine.expert_parallel_size = 2; }},
      {"expert_parallel_size, dp_shard_size",
       [](RunConfig& run) { spread(run), run.machine.ranks = 6, run.machine.shard_size = 3; }},
      {"expert_parallel_size, generate_samples",
       [](RunConfig& run) { spread(run), run.generation.generate_samples = true; }},
      {"expert_parallel_size, optim", [](RunConfig& run) { spread(run), run.optim.name = OptimizerName::kAdafactor; }},
      {"expert_parallel_size, expert_weight_dtype",
       [](RunConfig& run) { spread(run), run.model.expert_weight_dtype = experts("int8"); }},
      {"expert_parallel_size, cpu_offload",
       [](RunConfig& run) { spread(run), run.machine.cpu_offload = {OffloadPart::kParams}; }},
      {"expert_parallel_size, moe_token_tile", [](RunConfig& run) { spread(run), run.model.moe_token_tile = 64; }},
      {"optimizer_in_backward, ranks", [](RunConfig& run) { in_backward(run), run.machine.ranks = 2; }},
      {"zero_stage, optim",
       [](RunConfig& run) {
         run.machine.ranks = 2, run.machine.zero_stage = ZeroStage::kState, run.optim.name = OptimizerName::kAdafactor;
       }},
      {"zero_stage, expert_weight_dtype",
       [](RunConfig& run) {
         run.machine.ranks = 2, run.machine.zero_stage = ZeroStage::kValues,
         run.model.expert_weight_dtype = experts("int8");
       }},
      {"zero_stage, use_dora",
       [](RunConfig& run) {
         run.machine.ranks = 2, run.machine.zero_stage = ZeroStage::kValues, run.lora.use_dora = true;
       }},
      {"cpu_offload, auto",
       [](RunConfig& run) {
         run.machine.cpu_offload = {OffloadPart::kAuto, OffloadPart::kOptimizer};
       }},
      {"cpu_offload, expert_weight_dtype",
       [](RunConfig& run) {
         run.machine.cpu_offload = {OffloadPart::kParams}, run.model.expert_weight_dtype = experts("int8");
       }},
      {"cpu_offload, expert_weight_dtype on the CPU",
       [](RunConfig& run) {
         run.machine.cpu_offload = {OffloadPart::kParams}, run.model.expert_weight_dtype = experts("int8");
         run.machine.experts_device = ExpertsOn::kCpu;
       }},
      {"cpu_offload, zero_stage",
       [](RunConfig& run) {
         run.machine.ranks = 2, run.machine.zero_stage = ZeroStage::kGradients,
         run.model.finetuning_type = FinetuningType::kFull;
         run.machine.cpu_offload = {OffloadPart::kParams};
       }},
      {"frozen_weights, finetuning_type",
       [](RunConfig& run) { in_files(run), run.model.finetuning_type = FinetuningType::kFull; }},
      {"frozen_weights, base_weight_dtype",
       [](RunConfig& run) { in_files(run), run.model.base_weight_dtype = BaseFormat(nf4_format()); }},
      {"frozen_weights, expert_weight_dtype",
       [](RunConfig& run) { in_files(run), run.model.expert_weight_dtype = experts("nf4"); }},
      {"frozen_weights, cpu_offload",
       [](RunConfig& run) { in_files(run), run.machine.cpu_offload = {OffloadPart::kExperts}; }},
      {"frozen_weights, experts_device",
       [](RunConfig& run) { in_files(run), run.machine.experts_device = ExpertsOn::kCpu; }},
      {"frozen_weights, use_dora", [](RunConfig& run) { in_files(run), run.lora.use_dora = true; }},
      {"cpu_expert_layers, experts_device", [](RunConfig& run) { run.machine.cpu_expert_layers = 1; }},
      {"offload_expert_layers, cpu_offload", [](RunConfig& run) { run.machine.offload_expert_layers = 1; }},
      {"experts_device, cpu_offload",
       [](RunConfig& run) {
         run.machine.experts_device = ExpertsOn::kAuto, run.machine.cpu_offload = {OffloadPart::kParams};
       }},
      {"experts_device, expert_parallel_size",
       [](RunConfig& run) { spread(run), run.machine.experts_device = ExpertsOn::kCpu; }},
      {"experts_device, ranks of hosts",
       [](RunConfig& run) {
         run.machine.ranks = 2, run.machine.ranks_of_host = 0, run.machine.experts_device = ExpertsOn::kCpu;
       }},
      {"experts_device, optimizer_in_backward",
       [](RunConfig& run) { in_backward(run), run.machine.experts_device = ExpertsOn::kCpu; }},
      {"experts_device, cpu_offload experts",
       [](RunConfig& run) {
         run.machine.experts_device = ExpertsOn::kCpu, run.machine.cpu_offload = {OffloadPart::kExperts};
       }},
      {"cpu_expert_layers, expert_weight_dtype",
       [](RunConfig& run) {
         run.machine.experts_device = ExpertsOn::kCpu, run.machine.cpu_expert_layers = 1,
         run.model.expert_weight_dtype = experts("int8");
       }},
      {"experts_device, cuda_graphs",
       [](RunConfig& run) {
         run.machine.experts_device = ExpertsOn::kCpu, run.machine.cuda_graphs = GraphUse::kAlways;
       }},
      {"optimizer_in_backward, gradient_accumulation_steps",
       [](RunConfig& run) { in_backward(run), run.schedule.gradient_accumulation_steps = 2; }},
      {"optimizer_in_backward, max_grad_norm", [](RunConfig& run) { in_backward(run), run.optim.max_grad_norm = 1; }},
      {"optimizer_in_backward, nan_policy",
       [](RunConfig& run) { in_backward(run), run.optim.nan_policy = NanPolicy::kSkip; }},
  };
}

RunConfig lora_run() {
  RunConfig run;
  run.model.finetuning_type = FinetuningType::kLora;
  return run;
}

TEST(KeyRules, ARunWithoutPlacementKeepsAll) {
  EXPECT_TRUE(go_together(RunConfig()));
  EXPECT_TRUE(go_together(lora_run()));
}

TEST(KeyRules, EachIsBrokenBySomeRunAndIsTheFirstThatItBreaks) {
  std::map<std::string, Breaking> breaking = breaking_runs();
  for (const KeyRule& rule : key_rules()) {
    ASSERT_TRUE(breaking.contains(rule.name)) << rule.name;
    RunConfig run = lora_run();
    breaking[rule.name](run);
    const std::optional<Refusal> refusal = rule.check(run), first = find_refusal(run);
    ASSERT_TRUE(refusal && first) << rule.name;
    EXPECT_EQ(first->why, refusal->why) << rule.name;
    EXPECT_FALSE(refusal->instead.empty()) << rule.name;
    EXPECT_EQ(go_together(run, RuleUse::kAlways), rule.use == RuleUse::kTraining) << rule.name;
    breaking.erase(rule.name);
  }
  EXPECT_TRUE(breaking.empty()) << breaking.begin()->first << " names no rule";
}

TEST(KeyRules, NameTheKeyThatIsStated) {
  RunConfig run = lora_run();
  in_backward(run);
  run.schedule.gradient_accumulation_steps = 2;
  EXPECT_THAT(find_refusal(run)->keys, ::testing::ElementsAre(::testing::StrEq("gradient_accumulation_steps"),
                                                              ::testing::StrEq("global_batch_size")));
}

}  // namespace
}  // namespace hone
