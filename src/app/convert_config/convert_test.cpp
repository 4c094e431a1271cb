#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "app/convert_config/command_line.h"
#include "app/convert_config/convert_config.h"
#include "app/convert_config/convert_testing.h"
#include "app/convert_config/python_script.h"
#include "app/convert_config/translation.h"
#include "config/tools/tool.h"

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
  EXPECT_EQ(name_of(run.model.finetuning_type), "lora");
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
  EXPECT_EQ(name_of(factory.run.optim.name), "muon");
  EXPECT_EQ(factory.run.optim.args, (Json{{"adjust_lr_fn", "match_rms_adamw"}}));
  EXPECT_TRUE(factory.run.optim.decay_norms_and_biases);
  EXPECT_TRUE(has(printed_, "LLaMA-Factory steps routers by Muon")) << printed_;
  EXPECT_EQ(
      name_of(converted(write("off.yaml", "model_name_or_path: m\nstage: sft\nuse_muon: false\n")).run.optim.name),
      "adamw");
  const ResolvedConfig axolotl =
      converted(write("axolotl.yml", "base_model: m\nsequence_len: 512\noptimizer: muon\nlearning_rate: 1e-4\n"));
  EXPECT_EQ(name_of(axolotl.run.optim.name), "muon");
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
  EXPECT_EQ(name_of(config.run.schedule.lr_scheduler_type), "linear");
  EXPECT_EQ(config.run.schedule.warmup_ratio, 0.0);
  EXPECT_EQ(name_of(config.run.data.overlength), "truncate_right");
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
  EXPECT_EQ(name_of(config.run.model.finetuning_type), "lora");
  EXPECT_EQ(name_of(config.run.data.train_on), "assistant");
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
  EXPECT_EQ(name_of(config.run.machine.zero_stage), "3");
  EXPECT_EQ(names_of(config.run.machine.cpu_offload), std::vector<std::string>{"optimizer"});
}

TEST_F(ConvertConfig, KeepsWhatRanksShare) {
  const std::string head = "output_dir: o\nnum_train_epochs: 1\nlogging_steps: 1\n";
  write("ds.json", R"({"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 2})");
  EXPECT_EQ(name_of(converted(write("args.yaml", head + "deepspeed: ds.json\n")).run.machine.zero_stage), "1");
  write("ds.json", R"({"zero_optimization": {"stage": 0}, "train_micro_batch_size_per_gpu": 2})");
  EXPECT_EQ(name_of(converted(write("args.yaml", head + "deepspeed: ds.json\n")).run.machine.zero_stage), "0");
  const std::string fsdp = "fsdp_config: {sharding_strategy: ";
  EXPECT_EQ(name_of(converted(write("args.yaml", head + fsdp + "NO_SHARD}\n")).run.machine.zero_stage), "0");
  EXPECT_EQ(name_of(converted(write("args.yaml", head + fsdp + "FULL_SHARD}\n")).run.machine.zero_stage), "3");
  EXPECT_EQ(name_of(converted(write("args.yaml", head + fsdp + "SHARD_GRAD_OP}\n")).run.machine.zero_stage), "2");
  RunConfig::Machine hybrid = converted(write("args.yaml", head + fsdp + "HYBRID_SHARD}\n")).run.machine;
  EXPECT_EQ(name_of(hybrid.zero_stage), "3");
  EXPECT_EQ(hybrid.dp_shard_size, "host");
  hybrid = converted(write("args.yaml", head + "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false, "
                                               "fsdp_offload_params: true}\n"))
               .run.machine;
  EXPECT_EQ(name_of(hybrid.zero_stage), "2");
  EXPECT_EQ(names_of(hybrid.cpu_offload), (std::vector<std::string>{"params", "optimizer"}));
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
  EXPECT_EQ(config.run.model.expert_weight_dtype.name(), "bfloat16");
  for (const char* said :
       {"kt_backend: AMXINT8\n", "kt_expert_weight_format: int8\n", "kt_config: {kt_backend: AMXINT8}\n"}) {
    EXPECT_EQ(converted(write("int8.yaml", head + said)).run.model.expert_weight_dtype.name(), "int8") << said;
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

}  // namespace
}  // namespace hone
