// Settings of other tools that mean something else than their names say at first sight.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "app/convert_config/convert_testing.h"
#include "params/pattern.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kOfAxolotl = "base_model: m\nsequence_len: 64\nmicro_batch_size: 1\n";

class ConvertedMeaning : public ConvertConfig {};

TEST_F(ConvertedMeaning, UnfrozenParametersFreezeEverythingElse) {
  const RunConfig::Model model = converted(write("a.yml", kOfAxolotl + "unfrozen_parameters:\n  - ^lm_head.weight$\n"
                                                                       "  - model.layers.2[0-9]+.mlp.gate\n"))
                                     .run.model;
  EXPECT_THAT(model.freeze_parameters, ElementsAre("*"));
  ASSERT_EQ(model.trainable_parameters.size(), 2u);
  EXPECT_TRUE(Pattern(model.trainable_parameters[0]).matches("lm_head.weight"));
  const Pattern gates(model.trainable_parameters[1]);
  EXPECT_TRUE(gates.matches("model.layers.21.mlp.gate.weight"));
  EXPECT_FALSE(gates.matches("model.layers.2.mlp.gate.weight")) << "the layer has a second digit";
  EXPECT_FALSE(gates.matches("visual.model.layers.21.mlp.gate.weight")) << "a match begins where the name does";
  EXPECT_FALSE(gates.matches("model.layers.21xmlp.gate.weight")) << "a dot is a dot";
}

TEST_F(ConvertedMeaning, TheSameKeyMeansTheSameInARun) {
  const RunConfig::Model model =
      resolve_config(parse_config_text("unfrozen_parameters: [lm_head.weight]\n", "run.yaml"), ConfigNode{}).run.model;
  EXPECT_THAT(model.freeze_parameters, ElementsAre("*"));
  EXPECT_THAT(model.trainable_parameters, ElementsAre("re:^(?:lm_head\\.weight)"));
  EXPECT_TRUE(resolve_config(parse_config_text("unfrozen_parameters: []\n", "run.yaml"), ConfigNode{})
                  .run.model.freeze_parameters.empty());
}

TEST_F(ConvertedMeaning, ARangeOfRowsIsRefused) {
  for (const char* range : {"[:32000]", "[5:]", "[7]", "[3:9]"}) {
    EXPECT_EQ(
        refused(write("a.yml", kOfAxolotl + "unfrozen_parameters: ['^model.embed_tokens.weight$" + range + "']\n")),
        "1 of the settings would change what is learnt, and cannot be kept");
    EXPECT_THAT(printed_, HasSubstr("a parameter is trained whole")) << range;
  }
}

TEST_F(ConvertedMeaning, TheModelsSwitchOfBalanceIsTheAuxiliaryLoss) {
  write("mixtral/config.json", R"({"model_type": "mixtral", "router_aux_loss_coef": 0.02})");
  const std::string here = "base_model: " + (folder_ / "mixtral").string() + "\nsequence_len: 64\nadapter: lora\n";
  for (const char* key : {"model_config", "overrides_of_model_config"}) {
    const std::string on = here + key + ":\n  output_router_logits: ";
    EXPECT_EQ(converted(write("a.yml", on + "true\n")).run.model.router_aux_loss_coef, 0.02) << key;
    EXPECT_EQ(converted(write("a.yml", on + "false\n")).run.model.router_aux_loss_coef, 0.0) << key;
    EXPECT_EQ(converted(write("a.yml", on + "true\n  router_aux_loss_coef: 0.1\n")).run.model.router_aux_loss_coef,
              0.1);
  }
  EXPECT_EQ(converted(write("a.yml", kOfAxolotl + "model_config: {output_router_logits: true}\n"))
                .run.model.router_aux_loss_coef,
            std::nullopt)
      << "the model's own";
  EXPECT_THAT(printed_, HasSubstr("state that of its config.json"));
}

TEST_F(ConvertedMeaning, ParametersAloneAddNoModules) {
  const RunConfig run =
      converted(write("a.yml", kOfAxolotl + "adapter: lora\nlora_target_parameters: [mlp.experts.down_proj]\n")).run;
  EXPECT_TRUE(run.lora.target_modules.empty()) << text_;
  EXPECT_THAT(run.lora.target_parameters, ElementsAre("mlp.experts.down_proj"));
}

TEST_F(ConvertedMeaning, ATextOfModulesIsAnExpressionForWholeNames) {
  const auto targets = [&](const std::string& text) {
    return converted(write("a.yml", kOfAxolotl + "adapter: lora\nlora_target_modules: " + text + "\n"))
        .run.lora.target_modules;
  };
  EXPECT_THAT(targets("'model.layers.[\\d]+.(mlp|self_attn).(up|down)_proj'"),
              ElementsAre("re:^(?:model.layers.[\\d]+.(mlp|self_attn).(up|down)_proj)$"));
  EXPECT_THAT(targets("[q_proj, v_proj]"), ElementsAre("q_proj", "v_proj"));
  EXPECT_THAT(targets("all-linear"), ElementsAre("all-linear"));
}

TEST_F(ConvertedMeaning, SlicesOfSplitsAreKept) {
  const auto file = [&](const std::string& split) {
    return write("a.yml", kOfAxolotl + "datasets:\n  - {path: d.jsonl, type: chat_template, split: '" + split + "'}\n");
  };
  for (const char* slice : {"train[:100]", "train[:20%]", "train[10:20]", "train[50%:]", "train[-5:]"}) {
    EXPECT_EQ(converted(file(slice)).run.data.datasets.front().split, slice);
    EXPECT_FALSE(has(printed_, "datasets: split")) << printed_;
  }
  EXPECT_FALSE(refused(file("train[5]")).empty());
  EXPECT_THAT(printed_, HasSubstr("is not a name with a slice of its rows"));
}

TEST_F(ConvertedMeaning, ExpertsAreSpreadAsTheSourceSays) {
  EXPECT_EQ(converted(write("a.yml", kOfAxolotl + "expert_parallel_size: 4\n"), false, 0, {4, 4})
                .run.machine.expert_parallel_size,
            4);
  const std::string lf = "model_name_or_path: m\nstage: sft\ndataset: a\ncutoff_len: 64\nfinetuning_type: full\n";
  EXPECT_EQ(converted(write("l.yaml", lf + "expert_model_parallel_size: 2\n"), false, 0, {2, 2})
                .run.machine.expert_parallel_size,
            2);
  const std::string fms = "python -m tuning.sft_trainer --model_name_or_path m --training_data_path d.jsonl ";
  EXPECT_EQ(converted(write("f.sh", fms + "--fast_moe 2\n"), false, 0, {2, 2}).run.machine.expert_parallel_size, 2);
  write("plugins.yaml", "plugins:\n  training:\n    moe:\n      scattermoe:\n        ep_degree: 4\n");
  EXPECT_EQ(converted(write("f.sh", fms + "--acceleration_framework_config_file plugins.yaml\n"), false, 0, {4, 4})
                .run.machine.expert_parallel_size,
            4);
  write("plugins.yaml",
        "plugins:\n  peft:\n    quantization:\n      bitsandbytes:\n        quant_type: nf4\n        "
        "no_peft_model: false\n");
  EXPECT_EQ(converted(write("f.sh", fms + "--peft_method lora --acceleration_framework_config_file plugins.yaml\n"))
                .run.model.base_weight_dtype.name(),
            "nf4");
}

TEST_F(ConvertedMeaning, AConstantRateGetsNoWarmup) {
  const RunConfig run = converted(write("a.yml", kOfAxolotl + "lr_scheduler: constant\n")).run;
  EXPECT_EQ(run.schedule.warmup_ratio, 0.0);
  EXPECT_EQ(converted(write("v1.yaml", "model: m\nmodel_class: llm\ntrain_dataset: d.jsonl\nsample_backend: hf\n"))
                .run.schedule.warmup_ratio,
            0.0);
}

TEST_F(ConvertedMeaning, TheLengthOfAnswersIsNotThatOfTraining) {
  const RunConfig run = converted(write("config.yaml",
                                        "model: {name: m, max_seq_length: 2048}\ntraining: {learning_rate: 1e-4}\n"
                                        "lora: {r: 8}\ninference: {temperature: 0.7, max_length: 512}\n"),
                                  true)
                            .run;
  EXPECT_EQ(run.data.max_length, 2048);
}

TEST_F(ConvertedMeaning, ImagesAndAudioAreRefused) {
  EXPECT_FALSE(refused(write("a.yml", kOfAxolotl + "processor_type: AutoProcessor\n")).empty());
  EXPECT_THAT(printed_, HasSubstr("images and audio are not trained"));
}

TEST_F(ConvertedMeaning, MomentsOfFourBitsHaveEightHere) {
  EXPECT_EQ(name_of(converted(write("a.yml", kOfAxolotl + "optimizer: adamw_torch_4bit\n")).run.optim.name),
            "adamw_8bit");
  EXPECT_THAT(printed_, HasSubstr("look at"));
}

TEST_F(ConvertedMeaning, CurriculumSamplingKeepsTheOrder) {
  EXPECT_FALSE(converted(write("a.yml", kOfAxolotl + "curriculum_sampling: true\n")).run.data.shuffle);
  EXPECT_TRUE(converted(write("a.yml", kOfAxolotl + "curriculum_sampling: false\n")).run.data.shuffle);
}

TEST_F(ConvertedMeaning, UnslothsAnswersBeginWithTheEmptyThoughts) {
  const std::string script =
      "m, t = FastLanguageModel.from_pretrained('m')\n"
      "m = FastLanguageModel.get_peft_model(m, r=8)\ntrainer = SFTTrainer(model=m, args=SFTConfig(max_steps=5))\n";
  EXPECT_TRUE(converted(write("a.py", script + "trainer = train_on_responses_only(trainer, response_part='a')\n"))
                  .run.data.learn_empty_thinking);
  EXPECT_FALSE(converted(write("a.py", script)).run.data.learn_empty_thinking);
}

TEST_F(ConvertedMeaning, FilesOfOtherWorkNameTheVerb) {
  const auto fix = [&](const std::string& text) {
    (void)refused(write("x.yaml", text));
    return fix_;
  };
  const std::string lf = "model_name_or_path: m\ntemplate: qwen3\ntrust_remote_code: true\n";
  EXPECT_THAT(fix(lf + "infer_backend: huggingface\n"), HasSubstr("hone chat"));
  EXPECT_THAT(fix(lf + "adapter_name_or_path: a\nexport_dir: out\nexport_size: 5\n"), HasSubstr("hone merge"));
  EXPECT_THAT(fix(lf + "export_dir: out\nexport_size: 5\n"), HasSubstr("hone export"));
  EXPECT_THAT(fix("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_machines: 1\nnum_processes: 2\n"),
              HasSubstr("hone launch"));
}

TEST_F(ConvertedMeaning, AQuantisedBaseWithoutTheExperts) {
  const RunConfig::Model model =
      converted(write("a.yml", kOfAxolotl + "adapter: qlora\nnonexpert_quantization: nf4\n")).run.model;
  EXPECT_EQ(model.base_weight_dtype.name(), "nf4");
  ASSERT_EQ(model.base_weight_keep.size(), 1u);
  const Pattern kept(model.base_weight_keep[0]);
  EXPECT_TRUE(kept.matches("model.layers.0.mlp.experts.3.up_proj.weight"));
  EXPECT_FALSE(kept.matches("model.layers.0.mlp.shared_experts.up_proj.weight"));
  for (const char* none : {"none", "bf16"}) {
    const RunConfig::Model dense =
        converted(write("a.yml", kOfAxolotl + "adapter: lora\nnonexpert_quantization: " + none + "\n")).run.model;
    EXPECT_EQ(dense.base_weight_dtype.name(), "dtype") << none;
    EXPECT_TRUE(dense.base_weight_keep.empty()) << none;
  }
}

TEST_F(ConvertedMeaning, SystemMessagesAreDropped) {
  const std::string entry = kOfAxolotl + "datasets:\n  - {path: d.jsonl, type: chat_template, drop_system_message: ";
  EXPECT_TRUE(converted(write("a.yml", entry + "true}\n")).run.data.datasets.front().drop_system_message);
  EXPECT_FALSE(converted(write("a.yml", entry + "false}\n")).run.data.datasets.front().drop_system_message);
}

TEST_F(ConvertedMeaning, KeysOfTheMixtralGuideWithoutEffect) {
  (void)converted(write("config.yaml",
                        "model: {name: m, max_seq_length: 64, device_map: auto}\ntraining: {learning_rate: 1e-4}\n"
                        "lora: {r: 8}\nmoe: {freeze_router: false}\nhardware: {num_gpus: 1, gpu_type: A100}\n"
                        "validation: {validation_split: 0.1, metrics: [loss]}\nadvanced: {offload_folder: o}\n"
                        "wandb: false\n"));
  (void)converted(write("config.yaml",
                        "model: {name: m}\ntraining: {learning_rate: 1e-4}\nlora: {r: 8}\nmoe: {}\n"
                        "hardware: {num_gpus: 4}\n"));
  EXPECT_THAT(printed_, HasSubstr("convert with --devices"));
}

class ConvertedVariables : public ConvertConfig {
 protected:
  void TearDown() override {
    for (const char* name : {"HONE_TEST_DS", "HONE_TEST_STEPS", "HONE_TEST_MODEL"}) unsetenv(name);
    ConvertConfig::TearDown();
  }
  const std::string script_ =
      "DS_CONFIG_PATH=\"${HONE_TEST_DS}\"\ntorchrun --nproc_per_node ${HONE_TEST_GPUS:-2} qwen3_sft.py "
      "--model_path ${HONE_TEST_MODEL:-m} --dataset_path $HONE_TEST_DATA --output_dir out "
      "--train_steps ${HONE_TEST_STEPS:-7} --deepspeed_config $DS_CONFIG_PATH\n";
};

TEST_F(ConvertedVariables, FilesAndNumbersAreReadFromTheEnvironment) {
  setenv("HONE_TEST_DS", "ds.json", 1);
  setenv("HONE_TEST_STEPS", "9", 1);
  write("ds.json", R"({"zero_optimization": {"stage": 3}})");
  setenv("HONE_TEST_DATA", "d.jsonl", 1);
  const RunConfig run = converted(write("s.sh", script_), true, 0, {2, 2}).run;
  unsetenv("HONE_TEST_DATA");
  EXPECT_EQ(name_of(run.machine.zero_stage), "3");
  EXPECT_EQ(run.schedule.max_steps, 9);
  EXPECT_EQ(run.data.datasets.front().path, "d.jsonl");
  EXPECT_EQ(run.model.model_name_or_path, "m");
  EXPECT_THAT(text_, HasSubstr("${HONE_TEST_DATA}")) << "a text stays a variable";
  EXPECT_THAT(text_, HasSubstr("${HONE_TEST_MODEL:-m}"));
}

TEST_F(ConvertedVariables, WhatIsNotSetIsSaid) {
  setenv("HONE_TEST_DATA", "d.jsonl", 1);
  (void)converted(write("s.sh", script_), true, 0, {2, 2});
  unsetenv("HONE_TEST_DATA");
  EXPECT_THAT(printed_, HasSubstr("the variable is not set"));
  EXPECT_FALSE(
      refused(write("a.yml", "base_model: m\nsequence_len: ${HONE_TEST_STEPS}\nmicro_batch_size: 1\n")).empty());
  EXPECT_THAT(printed_, HasSubstr("the environment variable HONE_TEST_STEPS is not set"));
}

TEST_F(ConvertedVariables, OfAYamlFileStay) {
  EXPECT_EQ(converted(write("a.yml",
                            "base_model: ${HONE_TEST_MODEL:-m}\nsequence_len: ${HONE_TEST_STEPS:-64}\n"
                            "micro_batch_size: 1\n"))
                .run.data.max_length,
            64);
  EXPECT_THAT(text_, HasSubstr("${HONE_TEST_MODEL:-m}"));
}

TEST_F(ConvertedMeaning, AFileOfAccelerateIsReadBesideATraining) {
  const std::string ranks = "distributed_type: FSDP\nnum_machines: 1\nnum_processes: 4\nmixed_precision: bf16\n";
  const std::string alone = write("fsdp.yaml", ranks);
  EXPECT_THAT(refused(alone), HasSubstr("how processes are started"));
  EXPECT_THAT(fix_, HasSubstr("hone convert-config TRAINING --accelerate_config " + alone));
  ConvertOptions options;
  options.input = write("a.yml", kOfAxolotl + "gradient_accumulation_steps: 8\n");
  options.output = (folder_ / "run.yaml").string();
  options.flags = {"--accelerate_config", alone};
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_convert_config(options), 0);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("0 not in this version"));
  EXPECT_THAT(read(options.output), HasSubstr("1 × 8 × 4 devices"));
  // What it says to KTransformers is about training, also without a training beside it.
  const RunConfig run = converted(write("kt.yaml", ranks + "kt_config: {kt_backend: AMXBF16, kt_lora_rank: 4}\n")).run;
  EXPECT_EQ(run.model.expert_weight_dtype.name(), "bfloat16");
  EXPECT_EQ(run.lora.r, 4);
}

TEST_F(ConvertedMeaning, ADatasetThatIsAFileIsNoName) {
  const std::string head = "model_name_or_path: m\nstage: sft\ndo_train: true\n";
  const std::string file = write("chat.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
  const RunConfig run = converted(write("lf.yaml", head + "dataset: " + file + ", other.csv\n")).run;
  ASSERT_EQ(run.data.datasets.size(), 2u);
  EXPECT_EQ(run.data.datasets[0].path, file);
  EXPECT_EQ(run.data.datasets[1].path, "other.csv");
  EXPECT_THAT(printed_, HasSubstr("datasets: other.csv"));
}

TEST_F(ConvertedMeaning, ARepositoryIsADatasetOfCode) {
  write("repo/src/lib.rs", "fn main() {}\n");
  const std::string text =
      "model: {name: m, max_seq_length: 96}\nlora: {r: 4}\ntraining: {output_dir: out}\ndataset: {min_tokens: 8}\n"
      "repository: {path: " +
      (folder_ / "repo").string() + ", exclude_patterns: [docs/]}\n";
  const RunConfig run = converted(write("m.yaml", text)).run;
  ASSERT_EQ(run.data.datasets.size(), 1u);
  EXPECT_EQ(run.data.datasets[0].type, "code");
  EXPECT_THAT(text_, AllOf(HasSubstr("min_tokens: 8"), HasSubstr("exclude_patterns: [docs/]")));
}

TEST_F(ConvertedMeaning, TwoToolsHaveTrainingAtTheTop) {
  converted(write("fms.yaml", "training:\n  moe:\n    scattermoe:\n      ep_degree: 2\n"), false, 0, {2, 2});
  EXPECT_THAT(printed_, HasSubstr("fms-hf-tuning (by training.moe)"));
}

TEST_F(ConvertedMeaning, ScenariosOfABenchmarkNameItsVerb) {
  const std::string file = write("s.yaml", "scenarios:\n  - name: a\n    arguments: {model_name_or_path: [m]}\n");
  EXPECT_THAT(refused(file), HasSubstr("scenarios of a benchmark"));
  EXPECT_EQ(fix_, "use `hone bench grid " + file + "`");
}

}  // namespace
}  // namespace hone
