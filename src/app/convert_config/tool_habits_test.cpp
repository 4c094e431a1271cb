// What follows from several keys of a tool, or from none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/convert_config/convert_testing.h"

namespace hone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string kAxolotl = "base_model: m\nsequence_len: 64\nmicro_batch_size: 1\ngradient_accumulation_steps: 4\n";
const std::string kFactory = "model_name_or_path: m\nstage: sft\ncutoff_len: 64\ndataset: a.jsonl\n";

class ToolHabits : public ConvertConfig {
 protected:
  RunConfig of(const std::string& text, int64_t devices = 0) {
    return converted(write("f.yaml", text), false, devices).run;
  }
  /// A folder with a model of experts, or of none.
  std::string model(bool experts) {
    return write(experts ? "moe/config.json" : "dense/config.json",
                 experts
                     ? R"({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4})"
                     : R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})")
        .substr(0, (folder_ / (experts ? "moe" : "dense")).string().size());
  }
};

TEST_F(ToolHabits, WithoutAnAdapterAxolotlTrainsAllWeights) {
  for (const char* none : {"", "adapter:\n", "adapter: ''\n"}) {
    const RunConfig run = of(kAxolotl + none + "lora_r: 64\nlora_alpha: 32\nlora_target_linear: true\n");
    EXPECT_EQ(name_of(run.model.finetuning_type), "full") << none;
    EXPECT_THAT(text_, HasSubstr("lora_r: 64 (Axolotl): no adapter is stated")) << text_;
  }
  EXPECT_EQ(of(kAxolotl + "adapter: lora\nlora_r: 64\nlora_target_linear: true\n").lora.r, 64);
}

TEST_F(ToolHabits, TextsToContinueAreCutIntoPieces) {
  const std::string set = "datasets:\n  - {path: a.jsonl, type: completion}\n";
  EXPECT_EQ(name_of(of(kAxolotl + set).data.overlength), "split");
  EXPECT_EQ(name_of(of(kAxolotl + set + "  - {path: b.jsonl, type: alpaca}\n").data.overlength), "drop");
  EXPECT_THAT(printed_, HasSubstr("Axolotl cuts those into pieces"));
  const std::string texts = "pretraining_dataset:\n  - {path: a.jsonl, type: pretrain, name: en}\n";
  EXPECT_EQ(name_of(of(kAxolotl + texts).data.overlength), "truncate_right");
  EXPECT_EQ(of(kAxolotl + texts).data.datasets.at(0).name, "en") << "the configuration of a data set of the hub";
  EXPECT_EQ(name_of(of(kAxolotl + texts + "sample_packing: true\n").data.overlength), "split");
  EXPECT_FALSE(of(kAxolotl + texts + "shuffle_merged_datasets: false\n").data.shuffle);
  EXPECT_TRUE(of(kAxolotl + set + "shuffle_merged_datasets: false\n").data.shuffle);
}

TEST_F(ToolHabits, ListsInAnEntryAreNotLost) {
  of(kAxolotl + "datasets:\n  - {path: d, type: alpaca, data_files: [a.jsonl]}\n");
  EXPECT_THAT(printed_, HasSubstr("data_files"));
  of(kAxolotl + "datasets:\n  - {path: d, type: chat_template, roles_to_train: [assistant]}\n");
  EXPECT_FALSE(refused(write("f.yaml", kAxolotl + "datasets:\n  - {path: d, type: chat_template, roles_to_train: "
                                                  "[assistant, user]}\n"))
                   .empty());
}

TEST_F(ToolHabits, PatienceKeepsTheBestCheckpoint) {
  const std::string often = kAxolotl + "val_set_size: 0.1\nearly_stopping_patience: 3\n";
  EXPECT_TRUE(of(often + "saves_per_epoch: 1\nevals_per_epoch: 4\n").eval.load_best_model_at_end);
  EXPECT_FALSE(of(often + "save_steps: 50\neval_steps: 40\n").eval.load_best_model_at_end);
  EXPECT_FALSE(
      of(often + "save_steps: 80\neval_steps: 40\nload_best_model_at_end: false\n").eval.load_best_model_at_end);
}

TEST_F(ToolHabits, AxolotlPacksExpertsWhereItsKeySaysSo) {
  const std::string qlora = "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_target_linear: true\n";
  const std::string moe = "base_model: " + model(true) + "\nsequence_len: 64\n",
                    dense = "base_model: " + model(false) + "\nsequence_len: 64\n";
  EXPECT_THAT(of(moe + qlora).model.base_weight_keep, ElementsAre("re:\\.experts\\."));
  EXPECT_TRUE(of(moe + qlora + "quantize_moe_experts: true\n").model.base_weight_keep.empty());
  EXPECT_TRUE(of(dense + qlora).model.base_weight_keep.empty());
  EXPECT_THAT(printed_, Not(HasSubstr("quantize_moe_experts")));
  EXPECT_TRUE(of(kAxolotl + qlora).model.base_weight_keep.empty());
  EXPECT_THAT(printed_, HasSubstr("if the model has some"));
  EXPECT_EQ(of(kAxolotl + qlora).model.base_weight_dtype.name(), "nf4");
  EXPECT_EQ(of(kAxolotl + "adapter: lora\nload_in_4bit: true\nlora_r: 8\n").model.base_weight_dtype.name(), "dtype");
  EXPECT_EQ(of(kAxolotl + "adapter: lora\nload_in_8bit: true\nlora_r: 8\n").model.base_weight_dtype.name(), "int8");
}

TEST_F(ToolHabits, TheBalancingLossIsTheSumOfMicroBatches) {
  EXPECT_EQ(
      name_of(of(kFactory + "moe_aux_loss_coef: 0.001\ngradient_accumulation_steps: 4\n").model.aux_loss_reduction),
      "hf_sum");
  EXPECT_EQ(name_of(of(kFactory + "moe_aux_loss_coef: 0.001\n").model.aux_loss_reduction), "mean") << "one micro-batch";
  EXPECT_EQ(name_of(of(kFactory + "gradient_accumulation_steps: 4\n").model.aux_loss_reduction), "mean")
      << "no such loss";
  const RunConfig megatron =
      of("model_name_or_path: " + model(true) + "\nstage: sft\ndataset: a.jsonl\nmoe_grouped_gemm: true\n");
  EXPECT_NE(megatron.model.router_aux_loss_coef, 0.0) << "Megatron's own balance";
  EXPECT_THAT(printed_, HasSubstr("the mean of the micro-batches' means"));
}

TEST_F(ToolHabits, DevicesThatShareASampleAreNoBatch) {
  EXPECT_EQ(of(kAxolotl + "context_parallel_size: 8\n", 8).schedule.global_batch_size, 4);
  EXPECT_EQ(of(kAxolotl + "context_parallel_size: 2\ntensor_parallel_size: 2\n", 8).schedule.global_batch_size, 8);
  of(kAxolotl + "context_parallel_size: 3\n", 8);
  EXPECT_THAT(printed_, HasSubstr("3 of them share a sample"));
  EXPECT_EQ(of(kAxolotl + "ray_num_workers: 4\n").schedule.global_batch_size, 16);
}

TEST_F(ToolHabits, OneOfTwoSwitchesCounts) {
  EXPECT_EQ(of(kFactory + "packing: true\nneat_packing: false\n").data.packing, true);
  EXPECT_THAT(printed_, HasSubstr("samples of a pack see each other there"));
  EXPECT_EQ(of(kFactory + "packing: false\nneat_packing: true\n").data.packing, true);
  EXPECT_EQ(name_of(of(kFactory + "mask_history: true\ntrain_on_prompt: false\n").data.train_on), "last");
}

TEST_F(ToolHabits, PluginsThatChangeWhatIsLearntAreRefused) {
  of(kAxolotl + "plugins: [axolotl.integrations.liger.LigerPlugin]\n");
  EXPECT_FALSE(
      refused(write("f.yaml", kAxolotl + "plugins:\n  - axolotl.integrations.spectrum.SpectrumPlugin\n")).empty());
}

TEST_F(ToolHabits, WhatRoundsOtherwiseIsSaid) {
  of(kAxolotl + "bf16: true\n");
  EXPECT_THAT(printed_, HasSubstr("master_dtype: bfloat16 is nearer"));
  of(kAxolotl + "bf16: true\nfsdp_config: {offload_params: false}\n");
  EXPECT_THAT(printed_, Not(HasSubstr("master_dtype")));
  of(kFactory);
  EXPECT_THAT(printed_, HasSubstr("prompts and answers each lose their ends there"));
}

}  // namespace
}  // namespace hone
