// Settings of other tools whose meaning depends on others beside them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/convert_config/convert_testing.h"

namespace hone {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kAxolotlHead = "base_model: m\nsequence_len: 64\n";
const std::string kFactoryV1Head = "model: m\nmodel_class: llm\ntrain_dataset: d.jsonl\n";

class CombinedKeys : public ConvertConfig {};

TEST_F(CombinedKeys, AxolotlsBatchSizeIsThatOfADevice) {
  const std::string alone = write("a.yml", kAxolotlHead + "micro_batch_size: 2\nbatch_size: 8\n");
  EXPECT_EQ(converted(alone).run.schedule.gradient_accumulation_steps, 4);
  EXPECT_EQ(converted(alone, false, 4, {4, 4}).run.schedule.global_batch_size, 32);
  EXPECT_EQ(
      converted(write("b.yml", kAxolotlHead + "micro_batch_size: 2\nbatch_size: 8\ngradient_accumulation_steps: 2\n"))
          .run.schedule.gradient_accumulation_steps,
      2);
  EXPECT_THAT(text_, HasSubstr("gradient_accumulation_steps says it"));
}

TEST_F(CombinedKeys, AxolotlsEmptyKeysOfLoraAreNone) {
  const RunConfig run =
      converted(write("a.yml", kAxolotlHead + "micro_batch_size: 1\nadapter:\nlora_r:\nlora_alpha:\nlora_dropout:\n"))
          .run;
  EXPECT_EQ(name_of(run.model.finetuning_type), "full");
  EXPECT_THAT(text_, Not(HasSubstr("q_proj")));
}

TEST_F(CombinedKeys, AxolotlsShardsAreOfRanksWithAllExperts) {
  const RunConfig run = converted(write("a.yml", kAxolotlHead + "micro_batch_size: 1\nexpert_parallel_size: 4\n"
                                                                "dp_shard_size: 2\nfsdp_version: 2\nfsdp_config:\n"
                                                                "  reshard_after_forward: true\n"),
                                  false, 0, {8, 8})
                            .run;
  EXPECT_EQ(run.machine.expert_parallel_size, 4);
  EXPECT_EQ(run.machine.dp_shard_size, "8");
}

TEST_F(CombinedKeys, AxolotlsTokenizerIsKept) {
  EXPECT_EQ(converted(write("a.yml", kAxolotlHead + "micro_batch_size: 1\ntokenizer_config: t\n"))
                .run.model.tokenizer_name_or_path,
            "t");
}

TEST_F(CombinedKeys, AxolotlsWarmupEndsAtAHundredSteps) {
  (void)converted(write("a.yml", kAxolotlHead + "micro_batch_size: 1\n"));
  EXPECT_THAT(printed_, HasSubstr("but at most 100"));
  (void)converted(write("a.yml", kAxolotlHead + "micro_batch_size: 1\nwarmup_ratio: 0.1\n"));
  EXPECT_THAT(printed_, Not(HasSubstr("but at most 100")));
}

TEST_F(CombinedKeys, MuonOfTheSecondTrainer) {
  const RunConfig run =
      converted(write("v1.yaml", kFactoryV1Head + "learning_rate: 1e-5\noptim_config:\n  name: muon\n  momentum: 0.9\n"
                                                  "  nesterov: false\n  lr: 1\n"))
          .run;
  EXPECT_EQ(name_of(run.optim.name), "muon");
  EXPECT_EQ(run.schedule.learning_rate, 1e-5) << "it has precedence over optim_config.lr";
  EXPECT_EQ(run.optim.weight_decay, 0.1);
  EXPECT_EQ(run.optim.adam_beta2, 0.95);
  EXPECT_TRUE(run.optim.decay_norms_and_biases);
  EXPECT_EQ(run.optim.args->dump(), R"({"adjust_lr_fn":"match_rms_adamw","momentum":0.9,"nesterov":false})");
  EXPECT_EQ(converted(write("v1.yaml", kFactoryV1Head + "optim_config: {name: muon, adamw_betas: [0.8, 0.9]}\n"))
                .run.optim.adam_beta1,
            0.8);
}

TEST_F(CombinedKeys, ExpertsAndBatchesOfTheSecondTrainer) {
  EXPECT_EQ(
      converted(write("v1.yaml", kFactoryV1Head + "dist_config: {name: fsdpturbo, ep_size: 4}\n"), false, 0, {4, 4})
          .run.machine.expert_parallel_size,
      4);
  EXPECT_TRUE(
      converted(write("v1.yaml", kFactoryV1Head + "batching_strategy: dynamic_padding_free\n")).run.data.packing);
  EXPECT_THAT(printed_, HasSubstr("packs are filled with tokens"));
  EXPECT_FALSE(converted(write("v1.yaml", kFactoryV1Head + "batching_strategy: padding_free\n")).run.data.packing);
}

TEST_F(CombinedKeys, AFileThatOnlyEvaluatesNamesTheVerb) {
  const std::string head =
      "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\neval_dataset: d\ntemplate: llama3\n";
  EXPECT_EQ(refused(write("p.yaml", head + "do_predict: true\n")), "this file evaluates a model, and trains nothing");
  EXPECT_THAT(fix_, HasSubstr("hone eval"));
  (void)converted(write("t.yaml", head + "do_train: true\ndo_eval: true\n"));
}

TEST_F(CombinedKeys, ReasonsHaveTheWayOut) {
  EXPECT_FALSE(refused(write("a.yml", kAxolotlHead + "micro_batch_size: 1\nfp16: true\n")).empty());
  EXPECT_THAT(printed_, HasSubstr("bf16"));
}

}  // namespace
}  // namespace hone
