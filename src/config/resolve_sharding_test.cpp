// The keys of several ranks: the batch they share, the stage of sharding, its groups, and what is offloaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "config/config_testing.h"
#include "report/folder_testing.h"

namespace hone {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Config, RanksShareTheGlobalBatch) {
  const auto batch = [](const std::string& yaml, int64_t ranks) {
    const RunConfig::Schedule s = resolve_config(parse_config_text(yaml, "run.yaml"), {}, {ranks}).run.schedule;
    return std::vector<int64_t>{s.per_device_train_batch_size, s.gradient_accumulation_steps, s.global_batch_size};
  };
  EXPECT_THAT(batch("global_batch_size: 8\n", 4), ElementsAre(1, 2, 8));
  EXPECT_THAT(batch("gradient_accumulation_steps: 3\n", 4), ElementsAre(1, 3, 12));
  EXPECT_THAT(batch("global_batch_size: 8\ngradient_accumulation_steps: 1\n", 2), ElementsAre(4, 1, 8));
  const auto refused = [&](const std::string& yaml, int64_t ranks) -> std::string {
    try {
      batch(yaml, ranks);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refused("global_batch_size: 6\n", 4),
              AllOf(HasSubstr("global_batch_size 6 is not a multiple of per_device_train_batch_size 1 × 4 ranks"),
                    HasSubstr("start 3, with which the run trains the same; or state a multiple of 4")));
  EXPECT_THAT(
      refused("per_device_train_batch_size: 2\nglobal_batch_size: 2\n", 2),
      HasSubstr("set per_device_train_batch_size: 1, with which the run trains the same; or state a multiple of 4"));
  EXPECT_THAT(refused("per_device_train_batch_size: 5\nglobal_batch_size: 16\n", 2),
              HasSubstr("set per_device_train_batch_size: 4,"));
  EXPECT_THAT(refused("gradient_accumulation_steps: 3\nglobal_batch_size: 16\n", 2),
              HasSubstr("set gradient_accumulation_steps: 2,"));
  EXPECT_THAT(refused("num_gpus: 4\n", 1), HasSubstr("num_gpus is 4, but 1 rank was started"));
  EXPECT_THAT(refused("num_gpus: 4\n", 4), IsEmpty());
  EXPECT_THAT(refused("zero_stage: 1\noptim: adafactor\n", 2), HasSubstr("adafactor keeps factors of whole ones"));
  EXPECT_THAT(refused("zero_stage: 1\noptim: adafactor\n", 1), IsEmpty());
  EXPECT_THAT(refused("zero_stage: 3\nexpert_weight_dtype: int8\nfinetuning_type: lora\n", 2),
              HasSubstr("experts held in 8 bits stay whole"));
  EXPECT_THAT(refused("optimizer_in_backward: true\nmax_grad_norm: 0\n", 2), HasSubstr("have been summed"));
  EXPECT_THAT(refused("cpu_offload: [params]\nzero_stage: 1\nfinetuning_type: full\n", 2), HasSubstr("zero_stage: 3"));
  EXPECT_THAT(refused("cpu_offload: [params]\nzero_stage: 1\nfinetuning_type: lora\n", 2), IsEmpty());
  EXPECT_THAT(refused("cpu_offload: [params]\nzero_stage: 3\nfinetuning_type: full\n", 2), IsEmpty());
  EXPECT_THAT(refused("cpu_offload: [experts]\nexpert_weight_dtype: int8\nfinetuning_type: lora\n", 1),
              HasSubstr("held in 8 bits"));
}

TEST(Config, ZeroStageIsReadFromWhatOtherToolsCallIt) {
  for (const char* yaml : {"zero_stage: 1", "deepspeed: configs/ds_zero1.json", "deepspeed: zero1", "zero_level: 1"}) {
    EXPECT_EQ(name_of(resolved(yaml).run.machine.zero_stage), "1") << yaml;
  }
  EXPECT_EQ(name_of(resolved("fsdp: no_shard").run.machine.zero_stage), "0");
  EXPECT_EQ(name_of(resolved("fsdp: shard_grad_op").run.machine.zero_stage), "2");
  for (const char* yaml : {"zero_stage: 3", "deepspeed: configs/ds_zero3.json", "fsdp: full_shard auto_wrap"}) {
    EXPECT_EQ(name_of(resolved(yaml).run.machine.zero_stage), "3") << yaml;
  }
}

/// expert_parallel_size of 8 ranks; or the message of the refusal.
std::string spread_over(const std::string& yaml, RanksOfRun ranks = {8, 8}) {
  try {
    return std::to_string(
        resolve_config(parse_config_text(yaml, "run.yaml"), {}, ranks).run.machine.expert_parallel_size);
  } catch (const UserError& error) {
    return text_of(error);
  }
}

TEST(Config, ExpertsAreSpreadOverADivisorOfTheRanks) {
  for (const char* yaml : {"expert_parallel_size: 4", "ep_size: 4", "ep_degree: 4", "expert_model_parallel_size: 4",
                           "fast_moe: 4", "ep_size: 4\nzero_stage: 3\ndp_shard_size: 4"}) {
    EXPECT_EQ(spread_over(yaml), "4") << yaml;
  }
  EXPECT_EQ(spread_over("fast_moe: true"), "1");
  EXPECT_EQ(spread_over("expert_parallel_size: 1", {1}), "1");
  EXPECT_EQ(spread_over("expert_parallel_size: 3"),
            "experts are spread over 3 ranks, which do not divide the 8 that were started | run.yaml:1 | start a "
            "multiple of 3 ranks: hone launch -n 3 -- …; or choose a divisor");
  EXPECT_THAT(spread_over("expert_parallel_size: 2", {1}), HasSubstr("hone launch -n 2"));
  EXPECT_THAT(spread_over("expert_parallel_size: 8\nzero_stage: 3\ndp_shard_size: 4"),
              HasSubstr("choose a divisor of dp_shard_size"));
}

TEST(Config, SpreadExpertsRefuseWhatNeedsThemAll) {
  const auto refusal_of = [](const std::string& more) { return spread_over("expert_parallel_size: 2\n" + more); };
  EXPECT_THAT(refusal_of("optim: adafactor"), HasSubstr("use another optimizer"));
  EXPECT_THAT(refusal_of("finetuning_type: lora\nexpert_weight_dtype: int8"), HasSubstr("base_weight_dtype: int8"));
  EXPECT_THAT(refusal_of("cpu_offload: [params]"), HasSubstr("cpu_offload: params"));
  EXPECT_THAT(refusal_of("cpu_offload: [experts]"), HasSubstr("cpu_offload: experts"));
  EXPECT_THAT(refusal_of("generate_samples: true\nval_split: 0.1\neval_steps: 5"), HasSubstr("zero_stage: 3"));
  EXPECT_EQ(refusal_of("cpu_offload: [optimizer, activations]\nzero_stage: 2"), "2");
}

/// "stage shard_size" of 16 ranks, 4 on each host; or the message of the refusal.
std::string groups_of(const std::string& yaml, RanksOfRun ranks = {16, 4}) {
  try {
    const RunConfig::Machine machine = resolve_config(parse_config_text(yaml, "run.yaml"), {}, ranks).run.machine;
    return fmt::format("{} {}", machine.zero_stage, machine.shard_size);
  } catch (const UserError& error) {
    return text_of(error);
  }
}

/// The key that names a DeepSpeed file in `folder` with this "zero_optimization".
std::string deepspeed_file(const TestFolder& folder, const std::string& zero) {
  const std::string path = folder / "ds.json";
  std::ofstream(path) << ("{\"zero_optimization\": " + zero + "}");
  return "deepspeed: " + path;
}

TEST(Config, RanksShareInGroups) {
  EXPECT_EQ(groups_of("zero_stage: 3"), "3 0");
  EXPECT_EQ(groups_of("zero_stage: 3\ndp_shard_size: 8"), "3 8");
  EXPECT_EQ(groups_of("zero_stage: 1\ndp_shard_size: host"), "1 4");
  EXPECT_EQ(groups_of("zero_stage: 3\ndp_shard_size: 16"), "3 0") << "all ranks are one group";
  EXPECT_EQ(groups_of("zero_stage: 3\ndp_shard_size: -1"), "3 0");
  EXPECT_EQ(groups_of("zero_stage: 3\ndp_replicate_size: 2"), "3 8");
  EXPECT_EQ(groups_of("zero_stage: 3\ndp_replicate_size: 4\ndp_shard_size: 4"), "3 4");
  EXPECT_EQ(groups_of("zero_stage: 3\ndp_replicate_size: 1\ndp_shard_size: all"), "3 0");
  EXPECT_EQ(groups_of("dp_replicate_size: 16"), "0 1") << "nothing is shared, as without the key";
  EXPECT_EQ(groups_of("zero_stage: 3\ndp_shard_size: 8", {1}), "3 0") << "one rank has no groups";
  EXPECT_EQ(groups_of("zero_stage: 3\ndp_shard_size: host", {8}), "3 0") << "all on one host";
  EXPECT_EQ(groups_of("zero_stage: 3\ndp_shard_size: 3"),
            "groups of 3 ranks do not divide 16 ranks | run.yaml:2 | choose a divisor of the number of ranks");
  EXPECT_EQ(groups_of("zero_stage: 3\ndp_replicate_size: 3"),
            "3 groups do not divide 16 ranks | run.yaml:2 | choose a divisor of the number of ranks");
  EXPECT_EQ(
      groups_of("zero_stage: 3\ndp_replicate_size: 2\ndp_shard_size: 4"),
      "dp_replicate_size 2 groups of dp_shard_size 4 (run.yaml:3) ranks are not 16 ranks | run.yaml:2 | leave one "
      "of the two out: one fixes the other");
  EXPECT_EQ(
      groups_of("dp_shard_size: 4"),
      "groups of 4 ranks share what zero_stage says, but that is 0: nothing | run.yaml:1 | write zero_stage: 3, or "
      "leave dp_shard_size out");
  EXPECT_THAT(groups_of("zero_stage: 3\ndp_shard_size: hots"), HasSubstr("write all, host or a number of ranks"));
  EXPECT_THAT(groups_of("zero_stage: 3\ndp_shard_size: 2.5"), HasSubstr("write all, host or a number of ranks"));
  EXPECT_THAT(groups_of("zero_stage: 3\ndp_shard_size: host", {16, 0}), HasSubstr("not consecutive ones"));
}

TEST(Config, FsdpStatesTheStageAndTheGroups) {
  EXPECT_EQ(groups_of("fsdp: hybrid_shard"), "3 4");
  EXPECT_EQ(groups_of("fsdp: [hybrid_shard_zero2, auto_wrap]"), "2 4");
  EXPECT_EQ(groups_of("fsdp: hybrid_shard\ndp_shard_size: 8"), "3 8") << "a number has precedence";
  EXPECT_EQ(groups_of("fsdp: true"), "3 0");
  EXPECT_EQ(groups_of("fsdp: true\nfsdp_config: {reshard_after_forward: false}"), "2 0");
  EXPECT_EQ(groups_of("fsdp_config: {version: 2, auto_wrap_policy: TRANSFORMER_BASED_WRAP}"), "3 0");
  EXPECT_EQ(groups_of("fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}"), "2 0");
  EXPECT_EQ(groups_of("fsdp_config: {min_num_params: 0, xla: false, xla_fsdp_v2: false}"), "0 0")
      << "what transformers writes without FSDP";
  EXPECT_EQ(groups_of("fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD, fsdp_state_dict_type: SHARDED_STATE_DICT}"),
            "3 4");
  EXPECT_EQ(groups_of("fsdp_config: {sharding_strategy: 5}"), "2 4");
  EXPECT_EQ(groups_of("fsdp_config: {fsdp_reshard_after_forward: FULL_SHARD}"), "3 0");
  EXPECT_EQ(groups_of("fsdp_version: 2\ndp_shard_size: 8\nfsdp_config: {reshard_after_forward: true}"), "3 8");
  EXPECT_EQ(
      groups_of("fsdp_config: {sharding_strategy: FULL_SHARD, reshard_after_forward: false}"),
      "sharding_strategy FULL_SHARD (run.yaml:1) and reshard_after_forward false do not agree | run.yaml:1 | keep "
      "one of them");
  EXPECT_THAT(groups_of("fsdp_config: {sharding_strategy: SHARD}"), HasSubstr("'SHARD' is not a way to shard"));
  EXPECT_THAT(groups_of("fsdp_config: {state_dict_typ: FULL}"), HasSubstr("has no member 'state_dict_typ'"));
  EXPECT_THAT(groups_of("fsdp_config: {ignored_modules: [mlp]}"), HasSubstr("not in this version"));
  EXPECT_THAT(groups_of("fsdp_config: {offload_params: maybe}"), HasSubstr("write true or false"));
  EXPECT_THAT(groups_of("fsdp_config: full"), HasSubstr("write a mapping, or the path of a JSON file"));
  EXPECT_THAT(groups_of("fsdp_config: {version: 2, fsdp_version: 1}"), HasSubstr("version is stated twice"));
  for (const char* yaml : {"zero_stage: 1\nfsdp: full_shard", "deepspeed: zero2\nfsdp: full_shard",
                           "zero_stage: 3\nfsdp_config: {reshard_after_forward: false}"}) {
    EXPECT_THAT(groups_of(yaml), AllOf(HasSubstr("run.yaml:1"), HasSubstr("run.yaml:2"))) << "both places are named";
  }
  const RunConfig offloaded =
      resolved("fsdp_config: {offload_params: true, activation_checkpointing: true, activation_cpu_offload: true}").run;
  EXPECT_THAT(names_of(offloaded.machine.cpu_offload), ElementsAre("optimizer", "params", "activations"));
  EXPECT_EQ(name_of(offloaded.model.gradient_checkpointing), "true");
  EXPECT_EQ(name_of(resolved("gradient_checkpointing: experts\nfsdp_config: {activation_checkpointing: true}")
                        .run.model.gradient_checkpointing),
            "experts");
  const TestFolder folder;
  const std::string path = folder / "fsdp.json";
  std::ofstream(path) << R"({"fsdp_version": 2, "fsdp_reshard_after_forward": true, "fsdp_offload_params": true})";
  EXPECT_EQ(groups_of("fsdp: full_shard\nfsdp_config: " + path), "3 0");
  EXPECT_THAT(names_of(resolved("fsdp_config: " + path).run.machine.cpu_offload), ElementsAre("optimizer", "params"));
  EXPECT_THAT(groups_of("fsdp_config: nowhere/fsdp.json"), HasSubstr("nowhere/fsdp.json"));
}

TEST(Config, DeepSpeedFilesStateGroups) {
  const TestFolder folder;
  const auto file = [&](const std::string& zero) { return deepspeed_file(folder, zero); };
  EXPECT_EQ(groups_of(file(R"({"stage": 3, "mics_shard_size": 8})")), "3 8");
  EXPECT_EQ(groups_of(file(R"({"stage": 3, "zero_hpz_partition_size": 1})")), "3 0");
  EXPECT_THAT(groups_of(file(R"({"stage": 3, "zero_hpz_partition_size": 8})")), HasSubstr("dp_shard_size: N"));
}

TEST(Config, WhatIsOffloadedIsReadFromWhatOtherToolsCallIt) {
  const auto offloaded = [](const std::string& yaml) { return names_of(resolved(yaml).run.machine.cpu_offload); };
  EXPECT_THAT(offloaded("cpu_offload: [optimizer, activations]"), ElementsAre("optimizer", "activations"));
  EXPECT_THAT(offloaded("use_cpu_offload: true"), ElementsAre("auto"));
  EXPECT_THAT(offloaded("cpu_offload: auto"), ElementsAre("auto"));
  EXPECT_THAT(refusal("cpu_offload: [auto, params]"), HasSubstr("keep the names, or auto alone"));
  EXPECT_THAT(offloaded("activation_offloading: true"), ElementsAre("activations"));
  EXPECT_THAT(offloaded("fsdp: full_shard auto_wrap offload"), ElementsAre("optimizer", "params"));
  EXPECT_THAT(offloaded("fsdp: full_shard auto_wrap"), IsEmpty());
  EXPECT_THAT(offloaded("deepspeed: ds_zero2_offload"), ElementsAre("optimizer"));
  EXPECT_THAT(offloaded("deepspeed: ds_z3_offload"), ElementsAre("optimizer", "params"));
  EXPECT_EQ(name_of(resolved("deepspeed: ds_z3_offload").run.machine.zero_stage), "3");
  EXPECT_THAT(offloaded("deepspeed: zero3"), IsEmpty());
  EXPECT_THAT(offloaded("offload_optimizer: true\noffload_param: true"), ElementsAre("optimizer", "params"));
  EXPECT_THAT(offloaded("cpu_offload: optimizer, activations"), ElementsAre("optimizer", "activations"));
  EXPECT_THAT(refusal("cpu_offload: [optimiser]"), HasSubstr("optimizer"));
  const TestFolder folder;
  const auto file = [&](const std::string& zero) { return deepspeed_file(folder, zero); };
  const std::string both =
      file(R"({"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}})");
  EXPECT_THAT(offloaded(both), ElementsAre("optimizer", "params"));
  EXPECT_EQ(name_of(resolved(both).run.machine.zero_stage), "3");
  EXPECT_THAT(offloaded(file(R"({"stage": 1, "offload_optimizer": {"device": "none"}})")), IsEmpty());
  EXPECT_THAT(refusal(file(R"({"stage": 3, "offload_param": {"device": "nvme"}})")), HasSubstr("not in this version"));
}

}  // namespace
}  // namespace hone
