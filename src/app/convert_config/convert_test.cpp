#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "app/convert_config/command_line.h"
#include "app/convert_config/convert_config.h"
#include "app/convert_config/convert_testing.h"
#include "app/convert_config/python_script.h"
#include "app/convert_config/tool.h"
#include "app/convert_config/translation.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

TEST_F(ConvertConfig, TranslatesAxolotl) {
  const std::string data = write("chat.jsonl", "{}\n");
  const ResolvedConfig config = converted(write("axolotl.yml",
                                                "base_model: ./Mixtral-8x7B\n"
                                                "strict: false\n"
                                                "adapter: lora\n"
                                                "lora_r: 32\n"
                                                "lora_alpha: 16\n"
                                                "lora_target_linear: true\n"
                                                "datasets:\n  - path: " +
                                                    data +
                                                    "\n    type: chat_template\n"
                                                    "sequence_len: 2048\n"
                                                    "sample_packing: true\n"
                                                    "pad_to_sequence_len: true\n"
                                                    "micro_batch_size: 2\n"
                                                    "gradient_accumulation_steps: 4\n"
                                                    "optimizer: adamw_torch_fused\n"
                                                    "learning_rate: 0.0002\n"
                                                    "bf16: auto\n"
                                                    "flash_attention: true\n"
                                                    "special_tokens:\n  pad_token: </s>\n"
                                                    "wandb_project:\n"));
  const RunConfig& run = config.run;
  EXPECT_TRUE(config.notes.empty()) << config.notes.front();
  EXPECT_EQ(run.model.model_name_or_path, "./Mixtral-8x7B");
  EXPECT_EQ(run.model.finetuning_type, "lora");
  EXPECT_EQ(run.lora.alpha, 16.0);
  EXPECT_EQ(run.lora.target_modules, std::vector<std::string>{"all-linear"});
  EXPECT_EQ(run.data.datasets.front().path, data);
  EXPECT_EQ(run.data.datasets.front().type, "messages");
  EXPECT_EQ(run.data.max_length, 2048);
  EXPECT_EQ(run.schedule.global_batch_size, 8);
  EXPECT_EQ(run.schedule.num_train_epochs, 1.0) << "Axolotl's default, not ours";
  EXPECT_EQ(run.model.router_aux_loss_coef, 0.0);
  EXPECT_TRUE(has(printed_, "Axolotl (by base_model"));
  EXPECT_TRUE(has(text_, "# sequence_len: 2048"));
  EXPECT_TRUE(has(text_, "pad_token: </s>"));
}

TEST_F(ConvertConfig, MuonIsTheToolsOwn) {
  const ResolvedConfig factory = converted(write(
      "lf.yaml", "model_name_or_path: m\nstage: sft\nfinetuning_type: full\nuse_muon: true\nlearning_rate: 1e-5\n"));
  EXPECT_EQ(factory.run.optim.name, "muon");
  EXPECT_EQ(factory.run.optim.args, (Json{{"adjust_lr_fn", "match_rms_adamw"}}));
  EXPECT_TRUE(factory.run.optim.decay_norms_and_biases);
  EXPECT_TRUE(has(printed_, "LLaMA-Factory steps routers by Muon")) << printed_;
  EXPECT_EQ(converted(write("off.yaml", "model_name_or_path: m\nstage: sft\nuse_muon: false\n")).run.optim.name,
            "adamw");
  const ResolvedConfig axolotl =
      converted(write("axolotl.yml", "base_model: m\nsequence_len: 512\noptimizer: muon\nlearning_rate: 1e-4\n"));
  EXPECT_EQ(axolotl.run.optim.name, "muon");
  EXPECT_TRUE(has(printed_, "Axolotl's Muon has other coefficients")) << printed_;
}

TEST_F(ConvertConfig, RefusesWhatWouldChangeWhatIsLearnt) {
  const std::string file = write("axolotl.yml",
                                 "base_model: m\nsequence_len: 512\nmicro_batch_size: 1\nlearning_rate: 1e-4\n"
                                 "rl: dpo\nrelora: true\nlr_groups: [{name: a}]\n");
  EXPECT_EQ(refused(file), "3 of the settings would change what is learnt, and cannot be kept");
  EXPECT_TRUE(has(printed_, "axolotl.yml:5): only supervised fine-tuning")) << printed_;
  const ResolvedConfig config = converted(file, true);
  EXPECT_EQ(config.run.data.max_length, 512);
  EXPECT_TRUE(has(text_, "# LEFT OUT, and something else is learnt without"));
  EXPECT_TRUE(has(text_, "#   relora: true"));
}

TEST_F(ConvertConfig, RefusesKeysThatNobodyKnows) {
  EXPECT_FALSE(refused(write("x.yml", "base_model: m\nsequence_len: 8\nlerning_rate: 1\n")).empty());
  EXPECT_TRUE(has(printed_, "Did you mean 'learning_rate'")) << printed_;
}

TEST_F(ConvertConfig, TranslatesLlamaFactoryWithItsDatasetInfo) {
  write("data/dataset_info.json",
        R"({"chats": {"file_name": "chats.json", "formatting": "sharegpt"}, "plain": {"file_name": "plain.json"}})");
  const ResolvedConfig config = converted(write("sft.yaml",
                                                "model_name_or_path: m\nstage: sft\ndo_train: true\n"
                                                "finetuning_type: lora\nlora_target: all\nlora_rank: 4\n"
                                                "dataset: chats\ntemplate: qwen3\ncutoff_len: 1024\n"
                                                "output_dir: saves\nper_device_train_batch_size: 1\n"),
                                          true);
  EXPECT_EQ(config.run.lora.alpha, 8.0) << "twice the rank, as LLaMA-Factory has it";
  EXPECT_EQ(config.run.schedule.lr_scheduler_type, "linear");
  EXPECT_EQ(config.run.schedule.warmup_ratio, 0.0);
  EXPECT_EQ(config.run.data.overlength, "truncate_right");
  EXPECT_FALSE(config.run.data.packing);
  EXPECT_TRUE(has(config.run.data.datasets.front().path, "data/chats.json"));
  EXPECT_EQ(config.run.data.datasets.front().name, "chats");
  EXPECT_EQ(config.run.data.chat_template, "qwen3");
}

TEST_F(ConvertConfig, KeepsNamesOfTemplatesThatAreBuiltIn) {
  const auto of_axolotl = [&](const std::string& name) {
    return converted(write("a.yml", "base_model: m\nsequence_len: 8\nchat_template: " + name +
                                        "\ndatasets: [{path: d.jsonl, type: chat_template}]\n"),
                     true)
        .run.data.chat_template;
  };
  EXPECT_EQ(of_axolotl("chatml"), "chatml");
  EXPECT_EQ(of_axolotl("mistral_v2v3"), "mistral_v2v3");
  EXPECT_FALSE(has(text_, "the model's own chat template is used instead"));
  EXPECT_EQ(of_axolotl("tokenizer_default"), "");
  EXPECT_FALSE(has(text_, "the model's own chat template is used instead"));
  EXPECT_EQ(of_axolotl("exaone4"), "");
  EXPECT_TRUE(has(text_, "the model's own chat template is used instead"));
  const auto of_factory = [&](const std::string& name) {
    return converted(write("f.yml",
                           "model_name_or_path: m\nstage: sft\ndataset: d\ndataset_dir: .\ncutoff_len: 8\n"
                           "template: " +
                               name + "\n"),
                     true)
        .run.data.chat_template;
  };
  write("dataset_info.json", R"({"d": {"file_name": "d.json", "formatting": "sharegpt"}})");
  EXPECT_EQ(of_factory("llama3"), "llama3");
  EXPECT_EQ(of_factory("phi"), "phi_35") << "the format of this name";
  for (const char* other : {"llama2", "default", "vicuna"}) {
    EXPECT_EQ(of_factory(other), "") << other << " of LLaMA-Factory has another format than Hone's, if any";
    EXPECT_TRUE(has(text_, "the model's own chat template is used instead")) << other;
  }
}

TEST_F(ConvertConfig, TranslatesTrl) {
  const ResolvedConfig config = converted(write("trl.yaml",
                                                "model_name_or_path: m\ndataset_name: chat.jsonl\nuse_peft: true\n"
                                                "assistant_only_loss: true\nlearning_rate: 1e-4\n"
                                                "output_dir: out\npacking: true\n"));
  EXPECT_EQ(config.run.model.finetuning_type, "lora");
  EXPECT_EQ(config.run.data.train_on, "assistant");
  EXPECT_EQ(config.run.data.max_length, 1024);
  EXPECT_EQ(config.run.lora.alpha, 32.0);
  EXPECT_EQ(config.run.lora.dropout, 0.05);
  EXPECT_EQ(config.run.schedule.per_device_train_batch_size, 8);
  const std::vector<std::string> targets = {"q_proj", "v_proj"};
  EXPECT_EQ(config.run.lora.target_modules, targets) << "what PEFT adapts without being told";
}

TEST_F(ConvertConfig, TranslatesExcludedModules) {
  const std::string trl =
      "model_name_or_path: m\ndataset_name: chat.jsonl\nuse_peft: true\nassistant_only_loss: true\n";
  const auto excluded = [&](const std::string& line) {
    return converted(write("trl.yaml", trl + line), true).run.lora.exclude_modules;
  };
  using List = std::vector<std::string>;
  EXPECT_EQ(excluded("exclude_modules: [q_proj, layers.1.self_attn.v_proj]\n"),
            (List{"q_proj", "layers.1.self_attn.v_proj"}));
  EXPECT_EQ(excluded("exclude_modules: q_proj,v_proj\n"), (List{"q_proj", "v_proj"}));
  EXPECT_EQ(excluded("exclude_modules: '.*visual.*'\n"), List{"re:^(?:.*visual.*)$"});
  EXPECT_EQ(excluded("exclude_modules: 'model\\.layers\\.(0|1),?.*'\n"), List{"re:^(?:model\\.layers\\.(0|1),?.*)$"});
  EXPECT_EQ(converted(write("v1.yaml",
                            "model: m\nmodel_class: llm\ntrain_dataset: d.jsonl\nsample_backend: hf\n"
                            "peft_config: {name: lora, r: 4, target_modules: all, exclude_modules: [o_proj]}\n"),
                      true)
                .run.lora.exclude_modules,
            List{"o_proj"});
}

TEST_F(ConvertConfig, TranslatesTrainingArguments) {
  const ResolvedConfig config =
      converted(write("args.json",
                      R"({"output_dir": "out", "per_device_train_batch_size": 2, "num_train_epochs": 2,
                          "lr_scheduler_type": "cosine", "warmup_ratio": 0.1, "logging_steps": 5, "save_steps": 50,
                          "gradient_checkpointing": true, "ddp_timeout": 99, "group_by_length": true})"));
  EXPECT_TRUE(has(printed_, "Hugging Face TrainingArguments"));
  EXPECT_EQ(config.run.schedule.learning_rate, 5e-5);
  EXPECT_EQ(config.run.checkpoint.save_steps, 50);
}

TEST_F(ConvertConfig, TranslatesASwiftScript) {
  const ResolvedConfig config = converted(write("train.sh",
                                                "#!/bin/bash\n"
                                                "NPROC_PER_NODE=4 \\\n"
                                                "swift sft \\\n"
                                                "  --model ./Qwen3-30B-A3B --train_type lora \\\n"
                                                "  --dataset a.jsonl#500 'b c.jsonl' \\\n"
                                                "  --gradient_accumulation_steps 2 --learning_rate 1e-4 # why\n"));
  EXPECT_EQ(config.run.schedule.gradient_accumulation_steps, 8) << "2 on each of 4 devices";
  EXPECT_EQ(config.run.schedule.global_batch_size, 8 * config.run.schedule.per_device_train_batch_size)
      << "the same on any number of ranks";
  EXPECT_EQ(config.run.schedule.per_device_train_batch_size, 1);
  EXPECT_EQ(config.run.optim.weight_decay, 0.1);
  EXPECT_EQ(config.run.optim.adam_beta2, 0.95);
  ASSERT_EQ(config.run.data.datasets.size(), 2u);
  EXPECT_EQ(config.run.data.datasets[0].samples, 500);
  EXPECT_EQ(config.run.data.datasets[1].path, "b c.jsonl");
}

TEST_F(ConvertConfig, TranslatesTheFastSftScript) {
  write("zero3.json", R"({"zero_optimization": {"stage": 3, "overlap_comm": true}, "gradient_clipping": 0.5,
                          "bf16": {"enabled": "auto"}, "train_batch_size": "auto"})");
  const std::string script = write("run.sh",
                                   "MODEL=${MODEL_PATH:-./Qwen3-30B-A3B}\n"
                                   "ARGS=(--use_fast_moe_block --use_packing\n  --use_lora)\n"
                                   "torchrun --standalone --nproc_per_node=8 qwen3_sft.py \"${ARGS[@]}\" \\\n"
                                   "  --model_path \"$MODEL\" --dataset_path $DATA_PATH/x.json \\\n"
                                   "  --deepspeed_config zero3.json --train_steps 50\n");
  const ConvertOptions options = {script, {}, "auto", (folder_ / "run.yaml").string(), 0, false, false};
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_convert_config(options), 0) << "nothing in it changes what is learnt";
  printed_ = testing::internal::GetCapturedStdout();
  const std::string text = read(options.output);
  EXPECT_TRUE(has(text, "model_name_or_path: \"${MODEL_PATH:-./Qwen3-30B-A3B}\"")) << text;
  EXPECT_TRUE(has(text, "{path: \"${DATA_PATH}/x.json\"}")) << text;
  EXPECT_TRUE(has(text, "max_grad_norm: 0.5")) << text;
  EXPECT_FALSE(has(text, "gradient_accumulation_steps")) << "the batch of 128 is that of all devices";
  EXPECT_TRUE(has(text, "packing: true")) << text;
}

TEST_F(ConvertConfig, KeepsVariablesOfAScriptForLater) {
  const std::string script =
      write("run.sh", "python qwen3_sft.py --model_path $MODEL_PATH --use_lora --train_steps 5\n");
  ConvertOptions options;
  options.input = script;
  options.output = (folder_ / "run.yaml").string();
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_convert_config(options), 0);
  printed_ = testing::internal::GetCapturedStdout();
  const std::string text = read(options.output);
  EXPECT_TRUE(has(text, "model_name_or_path: \"${MODEL_PATH}\"")) << text;
  EXPECT_TRUE(has(text, "lora_alpha: 0.5")) << text;
  EXPECT_TRUE(has(text, "global_batch_size: 128")) << text;
}

TEST_F(ConvertConfig, ReadsDeepSpeedFilesItIsPointedTo) {
  write("ds.json",
        R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "gradient_clipping": 0.5,
                       "train_micro_batch_size_per_gpu": 2, "fp16": {"enabled": false},
                       "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.95]}}})");
  const ResolvedConfig config =
      converted(write("args.yaml", "output_dir: o\nnum_train_epochs: 1\nlogging_steps: 1\ndeepspeed: ds.json\n"));
  EXPECT_EQ(config.run.optim.max_grad_norm, 0.5);
  EXPECT_EQ(config.run.optim.adam_beta2, 0.95);
  EXPECT_EQ(config.run.schedule.learning_rate, 3e-5);
  EXPECT_EQ(config.run.schedule.per_device_train_batch_size, 2);
  EXPECT_EQ(config.run.machine.zero_stage, "3");
  EXPECT_EQ(config.run.machine.cpu_offload, std::vector<std::string>{"optimizer"});
}

TEST_F(ConvertConfig, KeepsWhatRanksShare) {
  const std::string head = "output_dir: o\nnum_train_epochs: 1\nlogging_steps: 1\n";
  write("ds.json", R"({"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 2})");
  EXPECT_EQ(converted(write("args.yaml", head + "deepspeed: ds.json\n")).run.machine.zero_stage, "1");
  write("ds.json", R"({"zero_optimization": {"stage": 0}, "train_micro_batch_size_per_gpu": 2})");
  EXPECT_EQ(converted(write("args.yaml", head + "deepspeed: ds.json\n")).run.machine.zero_stage, "0");
  const std::string fsdp = "fsdp_config: {sharding_strategy: ";
  EXPECT_EQ(converted(write("args.yaml", head + fsdp + "NO_SHARD}\n")).run.machine.zero_stage, "0");
  EXPECT_EQ(converted(write("args.yaml", head + fsdp + "FULL_SHARD}\n")).run.machine.zero_stage, "3");
  EXPECT_EQ(converted(write("args.yaml", head + fsdp + "SHARD_GRAD_OP}\n")).run.machine.zero_stage, "2");
  RunConfig::Machine hybrid = converted(write("args.yaml", head + fsdp + "HYBRID_SHARD}\n")).run.machine;
  EXPECT_EQ(hybrid.zero_stage, "3");
  EXPECT_EQ(hybrid.dp_shard_size, "host");
  hybrid = converted(write("args.yaml", head + "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false, "
                                               "fsdp_offload_params: true}\n"))
               .run.machine;
  EXPECT_EQ(hybrid.zero_stage, "2");
  EXPECT_EQ(hybrid.cpu_offload, (std::vector<std::string>{"params", "optimizer"}));
  EXPECT_EQ(converted(write("args.yaml", head + "fsdp: hybrid_shard offload\n")).run.machine.dp_shard_size, "host");
  write("ds.json", R"({"zero_optimization": {"stage": 3, "mics_shard_size": 8, "zero_hpz_partition_size": 4}})");
  EXPECT_EQ(converted(write("args.yaml", head + "deepspeed: ds.json\n")).run.machine.dp_shard_size, "8");
  EXPECT_TRUE(has(printed_, "not here yet    zero_optimization.zero_hpz_partition_size")) << printed_;
}

TEST_F(ConvertConfig, AFileThatContradictsItsDeepSpeedFileIsAnError) {
  write("ds.json", R"({"gradient_clipping": 0.5, "zero_optimization": {"stage": 2}})");
  EXPECT_TRUE(
      has(refused(write("args.yaml", "output_dir: o\nnum_train_epochs: 1\nmax_grad_norm: 1\ndeepspeed: ds.json\n")),
          "max_grad_norm is stated twice"));
}

TEST_F(ConvertConfig, TranslatesKTransformers) {
  const std::string head =
      "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nlora_target: all\ncutoff_len: 64\nuse_kt: true\n";
  const ResolvedConfig config = converted(write("kt.yaml", head + "kt_backend: AMXBF16\nkt_share_cache_pool: true\n"));
  const std::vector<std::string> targets = {"all-linear", "all-experts"};
  EXPECT_EQ(config.run.lora.target_modules, targets);
  EXPECT_EQ(config.run.model.expert_weight_dtype, "bfloat16");
  for (const char* said :
       {"kt_backend: AMXINT8\n", "kt_expert_weight_format: int8\n", "kt_config: {kt_backend: AMXINT8}\n"}) {
    EXPECT_EQ(converted(write("int8.yaml", head + said)).run.model.expert_weight_dtype, "int8") << said;
  }
  EXPECT_FALSE(refused(write("other.yaml", head + "kt_backend: AMXINT4\n")).empty());
  EXPECT_FALSE(refused(write("small.yaml", head + "kt_use_lora_experts: true\n")).empty());
}

TEST_F(ConvertConfig, TranslatesTheGuides) {
  const ResolvedConfig nodes = converted(
      write("config.json", R"({"model_args": {"model_name_or_path": "m"}, "data_args": {"dataset_path": "d.jsonl"},
                         "training_args": {"output_dir": "o", "learning_rate": 1e-5, "deepspeed": "auto"}})"),
      true);
  EXPECT_EQ(nodes.run.schedule.gradient_accumulation_steps, 8);
  EXPECT_EQ(nodes.run.schedule.min_lr, 1e-7);
  EXPECT_EQ(nodes.run.data.chat_template_kwargs["enable_thinking"], false);
  const ResolvedConfig mixtral = converted(write("config.yaml",
                                                 "model: {name: m, max_seq_length: 2048}\nlora: {r: 8, alpha: 16}\n"
                                                 "training: {learning_rate: 1e-4, min_learning_rate: 1e-6}\n"
                                                 "moe: {use_auxiliary_loss: true, auxiliary_loss_weight: 0.01}\n"
                                                 "inference: {temperature: 0.7, top_k: 50}\n"
                                                 "hardware: {}\n"),
                                           true);
  EXPECT_EQ(mixtral.run.lora.alpha, 16.0);
  EXPECT_EQ(mixtral.run.model.router_aux_loss_coef, 0.01);
  EXPECT_EQ(mixtral.run.generation.top_k, 50);
}

TEST_F(ConvertConfig, TranslatesFmsFlags) {
  const ResolvedConfig config =
      converted(write("fms.sh",
                      "accelerate launch --num_processes 2 -m tuning.sft_trainer \\\n"
                      "  --model_name_or_path m --training_data_path d.jsonl --fast_moe 2 \\\n"
                      "  --padding_free huggingface --multipack 16 --max_seq_length 512 \\\n"
                      "  --fast_kernels True True True --peft_method lora --r 4\n"),
                false, 0, {2, 2});
  EXPECT_EQ(config.run.machine.expert_parallel_size, 2);
  EXPECT_EQ(config.run.lora.r, 4);
  EXPECT_EQ(config.run.data.max_length, 512);
  EXPECT_FALSE(config.run.data.packing) << "padding_free packs nothing";
  EXPECT_EQ(config.run.schedule.global_batch_size, 16);
}

TEST_F(ConvertConfig, CommandLineFlagsWinOverTheFile) {
  ConvertOptions options;
  options.input = write("a.yml", "base_model: m\nsequence_len: 512\nmicro_batch_size: 1\n");
  options.flags = {"--sequence-len=64"};
  options.output = (folder_ / "run.yaml").string();
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_convert_config(options), 0);
  (void)testing::internal::GetCapturedStdout();
  EXPECT_TRUE(has(read(options.output), "max_length: 64"));
}

TEST_F(ConvertConfig, BadInputIsExplained) {
  EXPECT_TRUE(has(refused(write("nothing.yaml", "")), "nothing to translate"));
  EXPECT_TRUE(has(refused(write("nothing.sh", "ls -l\necho hi\n")), "starts no training"));
  EXPECT_TRUE(has(refused((folder_ / "absent.yaml").string()), "cannot read"));
  EXPECT_TRUE(has(refused(write("list.yaml", "- a\n- b\n")), "mapping"));
  EXPECT_TRUE(has(refused(write("other.yaml", "zebra: 1\n")), "no tool is known"));
  EXPECT_TRUE(has(refused(write("binary.sh", std::string("a\0b", 3))), "not text"));
}

TEST(DetectTool, NamesTheToolByWhatOnlyItHas) {
  const auto detected = [](const std::string& yaml) {
    return detect_tool(parse_config_text(yaml, "x.yaml"), "", "x.yaml").tool->name;
  };
  EXPECT_EQ(detected("base_model: m\nsequence_len: 8\nlearning_rate: 1"), "axolotl");
  EXPECT_EQ(detected("model_name_or_path: m\nstage: sft\ncutoff_len: 8"), "llama-factory");
  EXPECT_EQ(detected("model_name_or_path: m\nstage: sft\ncutoff_len: 8\nuse_kt: true"), "kt");
  EXPECT_EQ(detected("{zero_optimization: {stage: 3}, gradient_clipping: auto}"), "deepspeed");
  EXPECT_EQ(detected("{backward_prefetch: backward_pre, forward_prefetch: 'true'}"), "fsdp");
  EXPECT_EQ(detected("compute_environment: LOCAL_MACHINE\nnum_processes: 4\nfsdp_config: {}"), "accelerate");
  EXPECT_EQ(detected("model: m\ntrain_type: lora\ntorch_dtype: bfloat16"), "swift");
  EXPECT_EQ(detected("training: {}\nmoe: {}\nlora: {}\ninference: {}"), "mixtral-guide");
}

TEST(ShellScript, PutsVariablesArraysAndContinuedLinesTogether) {
  const TrainingCommand command = read_shell_script(
      "A=1 # one\nexport B=\"x y\"\nLIST=(--two \"$B\"\n  --three)\nif true; then\n"
      "deepspeed --num_gpus=2 train/qwen3_sft.py --one $A \"${LIST[@]}\" \\\n  --four=${C:-d} --five $UNKNOWN | tee "
      "log\nfi\n",
      "run.sh");
  EXPECT_EQ(command.program, "qwen3_sft.py");
  EXPECT_EQ(command.devices, 2);
  std::string words;
  for (const ShellWord& word : command.arguments) words += "[" + word.text + "]";
  EXPECT_EQ(words, "[--one][1][--two][x y][--three][--four=${C:-d}][--five][${UNKNOWN}]");
  EXPECT_EQ(command.arguments.back().where, "run.sh:7");
}

TEST(ShellScript, SurvivesRubbish) {
  for (const std::string text : {"python a.py --x \"unclosed", "python a.py --x 'y", "python a.py --x ${",
                                 "python a.py --x $(a (b", "A=( --x", "\\", "python a.py --x \\"}) {
    try {
      (void)read_shell_script(text, "x.sh");
    } catch (const UserError&) {
    }
  }
}

TEST(Tools, EveryDefaultIsAKeyWithAValueOfItsType) {
  for (const Tool& tool : tools()) {
    EXPECT_FALSE(tool.rules.empty()) << tool.name;
    for (const ConfigNode* defaults : {&tool.defaults, &tool.lora_defaults}) {
      for (const auto& [name, value] : defaults->members) {
        EXPECT_NO_THROW((void)resolve_config(*defaults, ConfigNode{})) << tool.name << " " << name;
        EXPECT_EQ(key_spec(name).status, KeyStatus::kSupported) << tool.name << " " << name;
      }
    }
  }
}

TEST(Tools, NoNameHasTwoRules) {
  for (const Tool& tool : tools()) {
    std::set<std::string> names;
    for (const ToolRule& rule : tool.rules)
      EXPECT_TRUE(names.insert(rule.name).second) << tool.name << " " << rule.name;
  }
}

// Tests of convert-config for data sets, tokens and targets of other tools.

using testing::ElementsAre;

const std::string kHead = "base_model: m\nsequence_len: 64\nmicro_batch_size: 1\n";

TEST_F(ConvertConfig, AxolotlsAlpacaIsAlpacasOwnPrompt) {
  const ResolvedConfig config = converted(write("a.yml", kHead + "datasets:\n"
                                                                 "  - {path: a.jsonl, type: alpaca}\n"
                                                                 "  - {path: b.jsonl, type: 'alpaca:chat'}\n"
                                                                 "  - {path: c.jsonl, type: chat_template.default}\n"));
  EXPECT_EQ(config.run.data.datasets[0].type, "alpaca");
  EXPECT_EQ(config.run.data.datasets[0].prompt_template, "alpaca");
  EXPECT_EQ(config.run.data.datasets[1].prompt_template, "alpaca_chat");
  EXPECT_EQ(config.run.data.datasets[2].type, "messages");
  EXPECT_TRUE(config.run.data.datasets[2].prompt_template.is_null());
}

TEST_F(ConvertConfig, AxolotlsUserDefinedPromptsAreWrittenOut) {
  const ResolvedConfig config =
      converted(write("a.yml", kHead + "datasets:\n  - path: a.jsonl\n    type:\n      system_prompt: Be brief.\n"
                                       "      field_instruction: question\n      field_output: answer\n"
                                       "      format: '[INST] {instruction} [/INST]'\n"));
  const DatasetConfig& entry = config.run.data.datasets[0];
  EXPECT_EQ(entry.type, "alpaca");
  EXPECT_EQ(entry.column_mapping, (Json{{"instruction", "question"}, {"output", "answer"}}));
  EXPECT_EQ(entry.prompt_template, (Json{{"format", "[INST] {instruction} [/INST]"},
                                         {"no_input_format", "{instruction} "},
                                         {"system_prompt", "Be brief."}}));
  EXPECT_TRUE(has(refused(write("b.yml", kHead + "datasets: [{path: a, type: {format: x, weird: 1}}]\n")),
                  "would change what is learnt"));
  EXPECT_TRUE(has(printed_, "datasets: type: weird: 1")) << printed_;
}

TEST_F(ConvertConfig, AxolotlsTokensAndThoughtsAreKept) {
  const ResolvedConfig config =
      converted(write("a.yml", kHead + "eot_tokens: ['<|end|>']\n"
                                       "special_tokens: {eos_token: '<|im_end|>', pad_token: null}\n"
                                       "datasets:\n"
                                       "  - {path: a, type: chat_template, field_thinking: thinking, "
                                       "template_thinking_key: thinking}\n"
                                       "  - {path: b, type: chat_template, field_thinking: thoughts, "
                                       "template_thinking_key: reasoning_content, roles: {user: [human]}}\n"));
  EXPECT_THAT(config.run.data.eot_tokens, ElementsAre("<|end|>"));
  EXPECT_EQ(config.run.data.special_tokens, (Json{{"eos_token", "<|im_end|>"}}));
  EXPECT_TRUE(config.run.data.datasets[0].column_mapping.empty()) << "the key reaches the template as it is";
  EXPECT_EQ(config.run.data.datasets[1].column_mapping["reasoning_content"], "thoughts");
  EXPECT_EQ(config.run.data.datasets[1].column_mapping["roles"]["user"], Json::array({"human"}));
  converted(write("c.yml", kHead + "tokens: ['<|x|>']\nspecial_tokens: {additional_special_tokens: ['<|y|>']}\n"));
  EXPECT_TRUE(has(printed_, "look at         tokens.0: <|x|>")) << printed_;
}

TEST_F(ConvertConfig, AllLinearAsksAboutTheExperts) {
  const ResolvedConfig axolotl =
      converted(write("a.yml", kHead + "adapter: lora\nlora_target_linear: true\nlora_target_modules: [w1]\n"));
  EXPECT_THAT(axolotl.run.lora.target_modules, ElementsAre("all-linear", "w1")) << "Axolotl adds them up";
  EXPECT_TRUE(has(printed_, "look at         lora_target_linear: true")) << printed_;
  EXPECT_TRUE(has(printed_, "transformers 4: add all-experts")) << printed_;
  const std::string lf = "model_name_or_path: m\nstage: sft\ncutoff_len: 64\nfinetuning_type: lora\n";
  EXPECT_THAT(converted(write("l.yaml", lf + "lora_target: all\n")).run.lora.target_modules, ElementsAre("all-linear"));
  EXPECT_TRUE(has(printed_, "add all-experts")) << printed_;
  converted(write("l.yaml", lf + "lora_target: q_proj\n"));
  EXPECT_FALSE(has(printed_, "add all-experts")) << printed_;
}

TEST_F(ConvertConfig, WhatIsAboutMemoryAndRanksHasNoEffect) {
  converted(write("a.yml", kHead + "adapter: lora\nuse_scattermoe: true\nuse_sonicmoe: true\ntensor_parallel_size: 1\n"
                                   "expert_parallel_size: 1\ndsv4_fp4_grouped_mode: nvfp4\n"
                                   "resize_token_embeddings_to_32x: true\nactivation_offloading: true\n"));
  EXPECT_FALSE(has(printed_, "not here yet")) << printed_;
  EXPECT_EQ(converted(write("g.yml", kHead + "gradient_checkpointing: offload\n")).run.model.gradient_checkpointing,
            "true");
  EXPECT_EQ(converted(write("g.yml", kHead + "gradient_checkpointing: false\n"
                                             "fsdp_config: {activation_checkpointing: true}\n"))
                .run.model.gradient_checkpointing,
            "true");
  converted(write("m.yaml",
                  "model_name_or_path: m\nstage: sft\ndataset: a\ncutoff_len: 64\nfinetuning_type: full\n"
                  "tensor_model_parallel_size: 1\nsequence_parallel: false\npipeline_model_parallel_size: 4\n"
                  "bias_activation_fusion: true\nuse_distributed_optimizer: true\noverlap_grad_reduce: true\n"
                  "moe_grouped_gemm: true\nmoe_token_dispatcher_type: alltoall\nrecompute_granularity: full\n"));
  EXPECT_TRUE(has(refused(write("q.yml", kHead + "use_onebitllms: true\n")), "1 of the settings"));
  EXPECT_EQ(converted(write("q.yml", kHead + "adapter: lora\nload_in_4bit: true\n")).run.model.base_weight_dtype,
            "nf4");
  EXPECT_EQ(converted(write("q.yml", kHead + "adapter: qlora\nload_in_4bit: true\nquantize_moe_experts: true\n"))
                .run.model.base_weight_dtype,
            "nf4");
}

TEST_F(ConvertConfig, FourBitsHaveTheScalesOfTheirTool) {
  const auto base = [&](const std::string& path) { return converted(path).run.model.base_weight_dtype; };
  const std::string llama = "model_name_or_path: m\nstage: sft\ndataset: a\ncutoff_len: 64\nquantization_bit: 4\n";
  EXPECT_EQ(base(write("q.yml", kHead + "adapter: qlora\nload_in_4bit: true\n")), "nf4");
  EXPECT_EQ(base(write("q.yml", kHead + "adapter: qlora\nload_in_4bit: true\n"
                                        "bnb_config_kwargs: {bnb_4bit_use_double_quant: false}\n")),
            "nf4_float_scales");
  EXPECT_EQ(base(write("m.yaml", llama)), "nf4");
  EXPECT_EQ(base(write("m.yaml", llama + "double_quantization: false\n")), "nf4_float_scales");
  const std::string trl =
      "model_name_or_path: m\ndataset_name: a\nuse_peft: true\npacking_strategy: bfd\n"
      "load_in_4bit: true\n";
  EXPECT_EQ(base(write("t.yaml", trl)), "nf4_float_scales");
  EXPECT_EQ(base(write("t.yaml", trl + "use_bnb_nested_quant: true\n")), "nf4");
}

TEST_F(ConvertConfig, EmptyKeysSayNothingAndGetNoOtherReason) {
  converted(write("a.yml", kHead + "lora_fan_in_fan_out:\nstrict: false\ngptq_groupsize:\nno_such_key:\n"));
  EXPECT_TRUE(has(text_, "lora_fan_in_fan_out (")) << text_;
  EXPECT_TRUE(has(text_, "it is empty")) << text_;
  EXPECT_FALSE(has(text_, "adapters are float32")) << text_;
  EXPECT_TRUE(has(text_, "strict: false (")) << text_;
  EXPECT_TRUE(has(text_, "an unknown key is always an error")) << text_;
}

TEST_F(ConvertConfig, ReadsUnderscoresInNumbersAndZeroForNever) {
  const ResolvedConfig config =
      converted(write("a.yml", "base_model: m\nmicro_batch_size: 1\nsequence_len: 16_384\nevals_per_epoch: 0\n"));
  EXPECT_EQ(config.run.data.max_length, 16384);
  EXPECT_EQ(config.run.eval.evals_per_epoch, std::nullopt);
}

TEST_F(ConvertConfig, TextsToContinueAreADataSet) {
  const ResolvedConfig config =
      converted(write("p.yml", kHead + "pretraining_dataset:\n  - {path: c4, text_column: body, type: pretrain}\n"));
  EXPECT_EQ(config.run.data.datasets[0].type, "text");
  EXPECT_EQ(config.run.data.datasets[0].column_mapping["text"], "body");
  EXPECT_TRUE(has(printed_, "do not see each other")) << printed_;
}

TEST_F(ConvertConfig, TranslatesLlamaFactorysSecondTrainer) {
  write("data/list.yaml",
        "demo:\n  path: data/demo.json\n  source: local\n  converter: alpaca\n  size: 500\n"
        "chats:\n  path: chats.jsonl\n  converter: sharegpt\n");
  const ResolvedConfig config = converted(
      write("v1.yaml",
            "model: m\nmodel_class: llm\npeft_config: {name: lora, r: 4, lora_alpha: 8, target_modules: all}\n"
            "kernel_config: {name: auto}\nquant_config: null\ndist_config: {name: fsdp2, dcp_path: null}\n"
            "train_dataset: data/list.yaml\noutput_dir: o\nmicro_batch_size: 2\ncutoff_len: 512\nmax_steps: 10\n"
            "sample_backend: hf\nmax_new_tokens: 128\n"));
  EXPECT_TRUE(has(printed_, "LLaMA-Factory (v1)")) << printed_;
  EXPECT_EQ(config.run.model.finetuning_type, "lora");
  EXPECT_EQ(config.run.lora.r, 4);
  ASSERT_EQ(config.run.data.datasets.size(), 2u);
  EXPECT_EQ(config.run.data.datasets[0].samples, 500);
  EXPECT_EQ(config.run.data.datasets[0].name, "demo");
  EXPECT_EQ(config.run.data.datasets[1].type, "sharegpt");
  EXPECT_EQ(config.run.schedule.lr_scheduler_type, "constant");
  EXPECT_EQ(config.run.optim.weight_decay, 0.01) << "torch's AdamW";
  EXPECT_TRUE(config.run.optim.decay_norms_and_biases);
  EXPECT_FALSE(refused(write("dpo.yaml", "model: m\nmodel_class: llm\nstage: dpo\ntrain_dataset: x\n")).empty());
  const std::string quantised = "model: m\nmodel_class: llm\npeft_config: {name: lora}\ntrain_dataset: x\n";
  EXPECT_EQ(converted(write("q.yaml", quantised + "quant_config: {name: bnb, quantization_bit: 4}\n"))
                .run.model.base_weight_dtype,
            "nf4");
}

TEST_F(ConvertConfig, LlamaFactoryLearnsTheEmptyThinkBlockUnlessThinkingIsOff) {
  write("d.jsonl", "{\"messages\": []}\n");
  write("dataset_info.json", R"({"d": {"file_name": "d.jsonl", "formatting": "sharegpt"}})");
  const std::string text =
      "model_name_or_path: m\nstage: sft\ntemplate: qwen3\ndataset: d\ndataset_dir: .\ncutoff_len: 64\n";
  EXPECT_TRUE(converted(write("default.yaml", text)).run.data.learn_empty_thinking);
  const ResolvedConfig off = converted(write("off.yaml", text + "enable_thinking: false\n"));
  EXPECT_FALSE(off.run.data.learn_empty_thinking);
  EXPECT_EQ(off.run.data.chat_template_kwargs["enable_thinking"], false);
  const ResolvedConfig on = converted(write("on.yaml", text + "enable_thinking: true\n"));
  EXPECT_TRUE(on.run.data.learn_empty_thinking);
  EXPECT_EQ(on.run.data.chat_template_kwargs["enable_thinking"], true);
}

TEST_F(ConvertConfig, LlamaFactorysPretrainingIsText) {
  write("data/dataset_info.json", R"({"c4": {"file_name": "c4.jsonl", "columns": {"prompt": "body"}}})");
  const ResolvedConfig config = converted(
      write("pt.yaml", "model_name_or_path: m\nstage: pt\ncutoff_len: 64\nfinetuning_type: full\ndataset: c4\n"));
  EXPECT_EQ(config.run.data.datasets[0].type, "text");
  EXPECT_EQ(config.run.data.datasets[0].column_mapping, (Json{{"text", "body"}}));
  EXPECT_TRUE(config.run.data.packing);
  EXPECT_EQ(config.run.data.overlength, "split");
  EXPECT_TRUE(has(printed_, "do not see each other")) << printed_;
}

TEST_F(ConvertConfig, AConstantRateHasNoWarmupToKeep) {
  const ResolvedConfig config = converted(write("a.yml", kHead + "lr_scheduler: constant\nwarmup_steps: 10\n"));
  EXPECT_EQ(config.run.schedule.lr_scheduler_type, "constant");
  EXPECT_EQ(config.run.schedule.warmup_steps, std::nullopt);
  EXPECT_TRUE(has(text_, "a constant schedule has no warm-up")) << text_;
}

TEST_F(ConvertConfig, ADataSetOfTheHubIsToBeLookedAt) {
  write("data/dataset_info.json",
        R"({"zh": {"hf_hub_url": "org/zh"}, "mm": {"file_name": "mm.json", "columns": {"images": "images"}}})");
  const std::string lf = "model_name_or_path: m\nstage: sft\ncutoff_len: 64\nfinetuning_type: full\ndataset: ";
  EXPECT_EQ(converted(write("hub.yaml", lf + "zh\n")).run.data.datasets[0].path, "org/zh");
  EXPECT_TRUE(has(printed_, "hf download --repo-type dataset")) << printed_;
  EXPECT_TRUE(has(refused(write("mm.yaml", lf + "mm\n")), "would change what is learnt"));
  EXPECT_TRUE(has(printed_, "not trained on in this version")) << printed_;
}

const std::string kTrl = R"(
from trl import SFTConfig, SFTTrainer   # SFTTrainer(lr=1) in a comment
model_id = "Qwen/Qwen3-30B-A3B"
LR: float = 2e-4
steps = 2 * (50 + 10)
args = SFTConfig(
    "out/run",
    learning_rate=LR, max_steps=steps, per_device_train_batch_size=2,
    bf16=True, max_length=1_024, packing=False, warmup_ratio=0.1,
    report_to=["tensorboard"], seed=compute_seed(),
)
peft_config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", 'v_' 'proj'], lora_dropout=0.0)
dataset = load_dataset("json", data_files="chat.jsonl", split="train[:200]")
model = AutoModelForCausalLM.from_pretrained(model_id, torch_dtype=torch.bfloat16)
trainer = SFTTrainer(model=model, args=args, train_dataset=dataset, peft_config=peft_config,
                     formatting_func=make_text)
trainer.train()
)";

TEST_F(ConvertConfig, ReadsTrlScriptsWhereArgumentsAreLiterals) {
  const ResolvedConfig config = converted(write("train.py", kTrl));
  EXPECT_TRUE(has(printed_, "TRL")) << printed_;
  EXPECT_EQ(config.run.model.model_name_or_path, "Qwen/Qwen3-30B-A3B");
  EXPECT_EQ(config.run.model.finetuning_type, "lora");
  EXPECT_EQ(config.run.schedule.learning_rate, 2e-4);
  EXPECT_EQ(config.run.schedule.max_steps, 120);
  EXPECT_EQ(config.run.data.max_length, 1024);
  EXPECT_THAT(config.run.lora.target_modules, ElementsAre("q_proj", "v_proj"));
  EXPECT_EQ(config.run.data.datasets[0].path, "chat.jsonl");
  EXPECT_EQ(config.run.data.datasets[0].samples, 200);
  EXPECT_EQ(config.run.report.output_dir, "out/run");
  EXPECT_TRUE(has(printed_, "look at         seed = compute_seed()")) << printed_;
  EXPECT_TRUE(has(printed_, "formatting_func = make_text")) << printed_;
}

const std::string kUnsloth = R"(
from unsloth import FastLanguageModel
max_seq_length = 2048
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/Qwen3-30B-A3B", max_seq_length = max_seq_length, dtype = None, load_in_4bit = False)
model = FastLanguageModel.get_peft_model(model, r = 16,
    target_modules = ["q_proj", "k_proj"], lora_alpha = 16, lora_dropout = 0, bias = "none",
    use_gradient_checkpointing = "unsloth", random_state = 3407, use_rslora = False, loftq_config = None)
trainer = SFTTrainer(model = model, tokenizer = tokenizer, train_dataset = dataset, dataset_text_field = "text",
    args = TrainingArguments(per_device_train_batch_size = 2, gradient_accumulation_steps = 4, warmup_steps = 5,
        max_steps = 60, learning_rate = 2e-4, fp16 = not is_bfloat16_supported(), bf16 = is_bfloat16_supported(),
        optim = "adamw_8bit", weight_decay = 0.01, lr_scheduler_type = "linear", seed = 3407, output_dir = "outputs"))
trainer = train_on_responses_only(trainer, instruction_part = "<|im_start|>user\n")
)";

TEST_F(ConvertConfig, ReadsUnslothScripts) {
  const ResolvedConfig config = converted(write("train.py", kUnsloth));
  EXPECT_TRUE(has(printed_, "Unsloth")) << printed_;
  EXPECT_EQ(config.run.model.model_name_or_path, "unsloth/Qwen3-30B-A3B");
  EXPECT_EQ(config.run.data.max_length, 2048);
  EXPECT_EQ(config.run.optim.name, "adamw_8bit");
  EXPECT_EQ(config.run.machine.seed, 3407);
  EXPECT_EQ(config.run.data.train_on, "assistant");
  EXPECT_EQ(config.run.schedule.global_batch_size, 8);
  EXPECT_EQ(config.run.model.gradient_checkpointing, "true");
}

TEST_F(ConvertConfig, UnslothsBaseOfFourBitsIsMeantThoughItIsNotStated) {
  std::string script = kUnsloth;
  const std::string stated = ", load_in_4bit = False";
  script.erase(script.find(stated), stated.size());
  EXPECT_EQ(converted(write("train.py", script)).run.model.base_weight_dtype, "nf4");
  EXPECT_TRUE(has(text_, "Unsloth's default")) << text_;
}

TEST_F(ConvertConfig, AScriptIsReadAndNeverRun) {
  EXPECT_TRUE(has(refused(write("none.py", "print('hello')\n")), "starts no supervised training"));
  EXPECT_TRUE(has(refused(write("dpo.py", "t = DPOTrainer(model, beta=0.1)\n")), "not supervised fine-tuning"));
  for (const std::string text :
       {"SFTTrainer(", "SFTTrainer(a=[", "SFTTrainer(a={1:", "SFTTrainer(a=\"x", "SFTTrainer(a=f'{x}', b=-",
        "SFTTrainer(a=\"\"\"x", "x = (1,\n", "SFTTrainer(*args, **kw)", "SFTTrainer(a=1 if b else 2)", "x"}) {
    try {
      (void)read_python_script(text, "x.py");
    } catch (const UserError&) {
    }
  }
  EXPECT_NO_THROW((void)read_python_script("SFTTrainer(a=" + std::string(5000, '(') + ")", "x.py"));
}

TEST(PythonTokens, LeaveOutCommentsAndLineEndsInBrackets) {
  std::string text;
  for (const PythonToken& token : python_tokens("a = f(1,  # one\n  r'\\d', '''x\ny''')\nb")) {
    text += token.kind == PythonToken::Kind::kLineEnd ? ";" : "<" + token.text + ">";
  }
  EXPECT_EQ(text, "<a><=><f><(><1><,><\\d><,><x\ny><)>;<b>;<>");
}

}  // namespace
}  // namespace hone
