#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "config/config_testing.h"
#include "config/resolve.h"
#include "config/resolved_yaml.h"
#include "config/schedule_options.h"
#include "config/schema.h"
#include "core/text/json.h"

namespace hone {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Config, ReadsTheCanonicalExample) {
  const ResolvedConfig config = resolved(R"(
model_name_or_path: ./Qwen3-30B-A3B
finetuning_type: lora
datasets:
  - {path: data/chat.jsonl, type: auto}
val_split: 0.02
max_length: 8192
overlength: drop
packing: true
train_on: assistant
num_train_epochs: 3
per_device_train_batch_size: 1
global_batch_size: 64
learning_rate: 1.0e-4
lr_scheduler_type: cosine
min_lr_ratio: 0.1
warmup_ratio: 0.03
optim: adamw
lora_r: 16
lora_alpha: 32
lora_target_modules: [attention, all-experts]
freeze_router: true
gradient_checkpointing: true
output_dir: out/run1
save_steps: 200
save_total_limit: 3
eval_steps: 200
load_best_model_at_end: true
report_to: [jsonl, tensorboard]
)");
  EXPECT_THAT(config.notes, IsEmpty());
  const RunConfig& run = config.run;
  EXPECT_EQ(run.model.model_name_or_path, "./Qwen3-30B-A3B");
  EXPECT_EQ(run.data.datasets, (std::vector<DatasetConfig>{{"data/chat.jsonl", "auto", {}, ""}}));
  EXPECT_EQ(run.schedule.gradient_accumulation_steps, 64);
  EXPECT_EQ(run.data.max_length, 8192);
  EXPECT_EQ(name_of(run.model.gradient_checkpointing), "true");
  EXPECT_EQ(run.report.run_name, "run1");
  EXPECT_EQ(run.report.logging_dir, "out/run1/runs");
  EXPECT_EQ(name_of(run.eval.eval_strategy), "steps");
  EXPECT_THAT(run.lora.target_modules, ElementsAre("attention", "all-experts"));
}

TEST(Config, ASectionIsOnlyANamespace) {
  const ResolvedConfig config = resolved(R"(
model: {model_name_or_path: m}
training:
  learning_rate: 2e-4
  moe: {freeze_router: false}
lora: {r: 8, alpha: 8}
lr_scheduler_kwargs: {min_lr_rate: 0.1}
inference: {temperature: 0.7}
generation: {top_k: 50}
advanced:
)");
  EXPECT_EQ(config.run.model.model_name_or_path, "m");
  EXPECT_EQ(config.run.schedule.learning_rate, 2e-4);
  EXPECT_FALSE(config.run.model.freeze_router);
  EXPECT_EQ(config.run.lora.r, 8);
  EXPECT_EQ(config.run.schedule.min_lr_ratio, 0.1);
  EXPECT_EQ(config.run.generation.temperature, 0.7);
  EXPECT_EQ(config.run.generation.top_k, 50);
}

TEST(Config, RevisionsBecomeAPartOfTheName) {
  const RunConfig run = resolved(
                            "base_model: a/b\nrevision_of_model: v1\n"
                            "datasets: [{path: c/d, revision: refs/pr/1, split: train}]\n")
                            .run;
  EXPECT_EQ(run.model.model_name_or_path, "a/b@v1");
  EXPECT_EQ(run.model.model_revision, "");
  EXPECT_EQ(run.data.datasets.at(0).path, "c/d@refs/pr/1");
  EXPECT_EQ(resolved("model: ./folder\nmodel_revision: main\n").run.model.model_name_or_path, "./folder");
  EXPECT_EQ(resolved("model: a/b@v1\nmodel_revision: v1\n").run.model.model_name_or_path, "a/b@v1");
  EXPECT_THAT(refusal("model: ./folder\nmodel_revision: v1\n"), HasSubstr("./folder is a path here | run.yaml:2 |"));
  EXPECT_THAT(refusal("model: a/b@v1\nmodel_revision: v2\n"), HasSubstr("leave one of them out"));
  EXPECT_THAT(refusal("model: a/b\nmodel_revision: ../x\n"), HasSubstr("is not a revision"));
  EXPECT_THAT(refusal("datasets: [{path: d.jsonl, revision: v1}]\n"), HasSubstr("d.jsonl is a path here"));
}

TEST(Config, JsonArgumentsOfTheSourceSystemsAreSections) {
  const ConfigNode file = parse_config_text(
      R"({"model_args": {"model_name_or_path": "m"}, "data_args": {"dataset_path": "d.jsonl"}, "training_args": {"bf16": true, "tf32": true}})",
      "c.json", true);
  const ResolvedConfig config = resolve_config(file, ConfigNode());
  EXPECT_EQ(config.run.data.datasets.at(0).path, "d.jsonl");
  EXPECT_EQ(name_of(config.run.model.dtype), "bfloat16");
}

TEST(Config, AnUnknownKeyIsAnErrorWithASuggestionAndItsLine) {
  EXPECT_THAT(refusal("seed: 1\nlearning_rat: 1\n"),
              StartsWith("unknown key 'learning_rat'. Did you mean 'learning_rate'"));
  EXPECT_THAT(refusal("seed: 1\nlearning_rat: 1\n"), HasSubstr("| run.yaml:2 |"));
  EXPECT_THAT(refusal("trainin: {seed: 1}\n"), StartsWith("unknown key 'trainin'. Did you mean 'training'"));
  EXPECT_THAT(refusal("", {"--sed", "1"}), AllOf(HasSubstr("'seed'"), HasSubstr("command line: --sed 1")));
  EXPECT_THAT(refusal("training: 3\n"), StartsWith("'training' is a section"));
  EXPECT_THAT(refusal("modl: m\ndata: 3\n"), StartsWith("'data' is a section")) << "beside another unknown key";
}

TEST(Config, EveryUseOfAnAliasSaysTheCanonicalNameOnce) {
  const ResolvedConfig config = resolved("base_model: m\nlr: 1e-4\nadapter: lora\nlr: 1e-4\n");
  EXPECT_THAT(config.notes, ElementsAre("base_model is called model_name_or_path here (run.yaml:1)",
                                        "lr is called learning_rate here (run.yaml:2)",
                                        "adapter is called finetuning_type here (run.yaml:3)",
                                        "lr is called learning_rate here (run.yaml:4)"));
  EXPECT_TRUE(has_note(resolved("bf16: true\n"), "bf16: true is called dtype: bfloat16 here (run.yaml:1)"));
  EXPECT_THAT(resolved("generation: {top_k: 3}\n").notes, IsEmpty());
}

TEST(Config, TwoNamesOfOneKeyWithDifferentValuesAreAnErrorNamingBothLines) {
  EXPECT_EQ(refusal("lr: 1e-4\nseed: 1\nlearning_rate: 2e-4\n"),
            "learning_rate is stated twice with different values: 'lr: 1e-4' (run.yaml:1) and 'learning_rate: 2e-4' "
            "(run.yaml:3) | run.yaml:3 | keep one of them");
  EXPECT_THAT(refusal("seed: 1\nseed: 2\n"), HasSubstr("stated twice"));
  EXPECT_THAT(refusal("bf16: true\ndtype: float32\n"), HasSubstr("stated twice"));
  EXPECT_EQ(refusal("lr: 1e-4\nlearning_rate: 0.0001\nbf16: true\ntorch_dtype: bf16\n"), "");
}

TEST(Config, AValueOfTheWrongTypeOrRangeSaysWhatWasExpected) {
  EXPECT_THAT(refusal("seed: 1\nlr: fast\n"),
              StartsWith("lr is 'fast': expected a number of at least 0. | run.yaml:2 |"));
  EXPECT_THAT(refusal("lora_dropout: 1\n"), StartsWith("lora_dropout is '1': expected a number in [0, 1)."));
  EXPECT_THAT(refusal("num_train_epochs: 0\n"), StartsWith("num_train_epochs is '0': expected a number above 0."));
  EXPECT_THAT(refusal("seed: 1.5\n"), StartsWith("seed is '1.5': expected an integer of at least 0."));
  EXPECT_THAT(refusal("seed: \"1\"\n"), HasSubstr("expected an integer"));
  EXPECT_THAT(refusal("packing: maybe\n"), StartsWith("packing is 'maybe': expected true or false."));
  EXPECT_THAT(refusal("packing: {a: 1}\n"), HasSubstr("expected true or false"));
  EXPECT_THAT(refusal("overlength: drp\n"),
              StartsWith("overlength is 'drp': expected one of drop, truncate_left, truncate_right, split, error. Did "
                         "you mean 'drop'?"));
  EXPECT_THAT(refusal("overlength: \"\"\n"), HasSubstr("expected one of"));
  EXPECT_THAT(refusal("max_shard_size: 5XB\n"), HasSubstr("expected a size such as 5GB"));
  EXPECT_THAT(refusal("chat_template_kwargs: text\n"), HasSubstr("expected a mapping"));
  EXPECT_THAT(refusal("output_dir: [a]\n"), HasSubstr("expected a path"));
  EXPECT_THAT(refusal("report_to: [csv]\n"), HasSubstr("expected a list out of jsonl, tensorboard"));
  EXPECT_THAT(refusal("learning_rate: .inf\n"), HasSubstr("expected a number"));
}

TEST(Config, ABareBatchSizeIsAnErrorThatAsksWhich) {
  EXPECT_EQ(refusal("batch_size: 8\n"),
            "'batch_size' is ambiguous: some tools mean one micro-batch on one device by it, others a whole optimizer "
            "step: which is it? | run.yaml:1 | write per_device_train_batch_size for the first, global_batch_size for "
            "the second");
  EXPECT_THAT(refusal("", {"--batch-size", "8"}), HasSubstr("ambiguous"));
}

TEST(Config, WhatThisVersionDoesNotRunIsRefusedByName) {
  for (const char* yaml : {"dtype: fp16", "dtype: half", "fp16: true"}) {
    EXPECT_THAT(refusal(yaml), HasSubstr("float16 would need loss scaling")) << yaml;
  }
  EXPECT_EQ(
      refusal("deepspeed: ds_config.json\n"),
      "the DeepSpeed file ds_config.json is not there | run.yaml:1 | correct its path, or set zero_stage instead");
  for (const char* yaml :
       {"fp16: true", "dtype: fp8", "finetuning_type: qlora", "bnb_4bit_quant_type: fp4", "base_weight_dtype: gptq",
        "finetuning_type: freeze", "optim: normuon", "report_to: [jsonl, all]", "gradient_checkpointing: [0, 1]",
        "dtype: fp16", "lora_init: pissa", "lora_bias: all", "warmup_type: log", "kt_optimize_rule: rules.yaml",
        "kt_num_gpu_experts: 4", "router_dtype: bfloat16", "packing_strategy: wrapped", "stage: dpo"}) {
    EXPECT_THAT(refusal(yaml), HasSubstr("known, not in this version")) << yaml;
  }
  for (const char* yaml : {"export_format: gguf", "save_gguf: true"}) {
    EXPECT_THAT(refusal(yaml), HasSubstr("hone export OUTPUT_DIR model.gguf")) << yaml;
  }
}

TEST(Config, EveryNameOfARecipeOfFp8MeansOneKey) {
  const auto recipe = [](const std::string& yaml) {
    return std::string(name_of(resolve_config(parse_config_text(yaml, "run.yaml"), {}).run.model.fp8));
  };
  for (const char* yaml : {"fp8: true", "use_fp8: true", "fp8: hybrid", "fp8_recipe: delayed", "fp8: tensorwise"}) {
    EXPECT_EQ(recipe(yaml), "tensorwise") << yaml;
  }
  for (const char* yaml : {"fp8: rowwise", "fp8_recipe: rowwise_with_gw_hp"})
    EXPECT_EQ(recipe(yaml), "rowwise") << yaml;
  for (const char* yaml : {"fp8: blockwise", "fp8_recipe: Float8BlockScaling"}) {
    EXPECT_EQ(recipe(yaml), "blockwise") << yaml;
  }
  for (const char* yaml : {"", "fp8: false", "fp8: off", "use_fp8: false"}) EXPECT_EQ(recipe(yaml), "off") << yaml;
  const auto of_weights = [](const std::string& yaml) {
    return resolve_config(parse_config_text(yaml, "run.yaml"), {}).run.model.fp8_weight_gradients;
  };
  EXPECT_TRUE(of_weights("fp8: rowwise"));
  for (const char* yaml :
       {"fp8: rowwise_with_gw_hp", "fp8_recipe: rowwise_with_gw_hp", "fp8: rowwise\nfp8_weight_gradients: false"}) {
    EXPECT_FALSE(of_weights(yaml)) << yaml;
  }
  EXPECT_THAT(refusal("fp8: rowwise\ndtype: float32\n"), HasSubstr("8-bit floats are rounded from bfloat16"));
  EXPECT_THAT(refusal("fp8: mxfp8\n"), HasSubstr("blockwise"));
}

TEST(Config, EveryNameOfAPackedBaseMeansOneKey) {
  const auto base = [](const std::string& yaml) {
    return resolve_config(parse_config_text(yaml, "run.yaml"), {}).run.model;
  };
  for (const char* yaml : {"adapter: qlora", "adapter: lora\nload_in_4bit: true", "lora_r: 8\nquantization_bit: 4",
                           "adapter: qlora\nload_in_4bit: true\nbnb_4bit_quant_type: nf4\n"
                           "bnb_4bit_use_double_quant: true\nload_in_8bit: false"}) {
    EXPECT_EQ(base(yaml).base_weight_dtype.name(), "nf4") << yaml;
    EXPECT_EQ(name_of(base(yaml).finetuning_type), "lora") << yaml;
  }
  EXPECT_EQ(base("lora_r: 8\nload_in_8bit: true").base_weight_dtype.name(), "int8");
  EXPECT_EQ(base("lora_r: 8\nload_in_4bit: false\nquantization_bit: ~").base_weight_dtype.name(), "dtype");
  EXPECT_THAT(refusal("load_in_4bit: true\n"), HasSubstr("frozen weights, but finetuning_type is full"));
  EXPECT_THAT(refusal("lora_r: 8\nload_in_4bit: true\nload_in_8bit: true\n"), HasSubstr("load_in_8bit"));
  EXPECT_THAT(refusal("lora_r: 8\nbase_weight_dtype: fp5\n"), HasSubstr("nf4"));
}

TEST(Config, Nf4HasFloatScalesWhereDoubleQuantisationIsSwitchedOff) {
  const auto base = [](const std::string& yaml) {
    return resolve_config(parse_config_text(yaml, "run.yaml"), {}).run.model.base_weight_dtype.name();
  };
  for (const char* four_bits : {"load_in_4bit: true", "adapter: qlora", "base_weight_dtype: nf4"}) {
    const std::string yaml = std::string("lora_r: 8\n") + four_bits;
    EXPECT_EQ(base(yaml), "nf4") << yaml;
    EXPECT_EQ(base(yaml + "\nbnb_4bit_use_double_quant: true"), "nf4") << yaml;
    for (const char* name : {"bnb_4bit_use_double_quant", "double_quantization", "use_bnb_nested_quant"}) {
      EXPECT_EQ(base(yaml + "\n" + name + ": false"), "nf4_float_scales") << yaml << name;
    }
  }
  EXPECT_EQ(base("lora_r: 8\nbase_weight_dtype: nf4_float_scales\ndouble_quantization: false"), "nf4_float_scales");
  EXPECT_THAT(refusal("lora_r: 8\nbase_weight_dtype: nf4_float_scales\ndouble_quantization: true"),
              HasSubstr("bnb_4bit_use_double_quant is true, but base_weight_dtype is nf4_float_scales"));
  EXPECT_EQ(base("lora_r: 8\nload_in_8bit: true\ndouble_quantization: false"), "int8");
}

TEST(Config, ASwitchThatIsOffIsAccepted) {
  for (const char* yaml : {"fp16: false",
                           "zero_stage: 0",
                           "load_in_4bit: false",
                           "deepspeed:",
                           "deepspeed: \"\"",
                           "fsdp: []",
                           "fsdp: no_shard",
                           "cpu_offload: []",
                           "use_dora: false",
                           "label_smoothing_factor: 0.0",
                           "ep_degree: 1",
                           "fast_moe: 1",
                           "fast_moe: true",
                           "warmup_type: linear",
                           "router_dtype: float32",
                           "packing_strategy: bfd",
                           "grad_dtype: fp32",
                           "export_format: safetensors",
                           "stage: sft",
                           "neftune_noise_alpha: null",
                           "save_gguf: false",
                           "datasets: [{path: a, weight: 1.0, split: train}]",
                           "lora_bias: none",
                           "init_lora_weights: true",
                           "quantization_bit: ~",
                           "zero_stage: false",
                           "use_lora: false"}) {
    EXPECT_EQ(refusal(yaml), "") << yaml;
  }
}

TEST(Config, WhatCannotChangeTheMathematicsIsAcceptedWithALine) {
  const ResolvedConfig config = resolved("torch_compile: true\nflash_attn: fa2\nwandb: {project: p}\n");
  EXPECT_THAT(config.notes,
              ElementsAre("torch_compile has no effect: The kernels are compiled already. (run.yaml:1)",
                          "flash_attn has no effect: Attention never builds the score matrix. (run.yaml:2)",
                          "project is called wandb_project here (run.yaml:3)",
                          "wandb_project has no effect: report_to does not name wandb (run.yaml:3)"));
}

TEST(Config, TheBackendOfMpiIsRefusedByName) {
  EXPECT_THAT(refusal("ddp_backend: mpi"), HasSubstr("'ddp_backend: mpi' is known, not in this version."));
  for (const char* other : {"nccl", "gloo", "ccl"}) {
    EXPECT_THAT(resolved(std::string("ddp_backend: ") + other).notes,
                ElementsAre(HasSubstr("ddp_backend has no effect")));
  }
}

TEST(Config, ValuesOfAliasesAreMapped) {
  EXPECT_EQ(name_of(resolved("adapter: lora").run.model.finetuning_type), "lora");
  EXPECT_EQ(name_of(resolved("lora: true").run.model.finetuning_type), "lora");
  EXPECT_EQ(name_of(resolved("use_peft: false").run.model.finetuning_type), "full");
  EXPECT_EQ(resolved("use_lora: true\nlora: {r: 4}").run.lora.r, 4);
  EXPECT_EQ(name_of(resolved("bf16: false\nfp16: false").run.model.dtype), "float32");
  EXPECT_EQ(name_of(resolved("torch_dtype: torch.bfloat16").run.model.dtype), "bfloat16");
  EXPECT_EQ(name_of(resolved("optimizer: adamw_torch_fused").run.optim.name), "adamw");
  EXPECT_EQ(name_of(resolved("train_on_inputs: true").run.data.train_on), "all");
  EXPECT_EQ(name_of(resolved("mask_history: true").run.data.train_on), "last");
  EXPECT_EQ(name_of(resolved("roles_to_train: [assistant]").run.data.train_on), "assistant");
  EXPECT_THAT(refusal("roles_to_train: [assistant, user]"), HasSubstr("expected one of"));
  EXPECT_EQ(name_of(resolved("assistant_only_loss: false\ncompletion_only_loss: true").run.data.train_on),
            "completion");
  EXPECT_EQ(name_of(resolved("completion_only_loss: false").run.data.train_on), "all");
  EXPECT_EQ(name_of(resolved("truncation_strategy: left").run.data.overlength), "truncate_left");
  EXPECT_EQ(resolved("enable_thinking: false").run.data.chat_template_kwargs, Json({{"enable_thinking", false}}));
  EXPECT_TRUE(resolved("lora: true\ntrain_router: false").run.model.freeze_router);
  EXPECT_EQ(resolved("moe: {use_auxiliary_loss: false, auxiliary_loss_weight: 0.001}").run.model.router_aux_loss_coef,
            0);
  EXPECT_EQ(resolved("moe: {use_auxiliary_loss: true, auxiliary_loss_weight: 0.001}").run.model.router_aux_loss_coef,
            0.001);
  EXPECT_EQ(name_of(resolved("use_gradient_checkpointing: unsloth").run.model.gradient_checkpointing), "true");
  EXPECT_EQ(resolved("use_cpu: true").run.machine.device, "cpu");
  EXPECT_EQ(resolved("device: gpu").run.machine.device, "cuda");
  EXPECT_EQ(resolved("device: cuda:3").run.machine.device, "cuda:3");
  EXPECT_THAT(refusal("device: cuda:x"), HasSubstr("expected one of auto, cpu, cuda, cuda:N"));
  EXPECT_THAT(refusal("device: cpu:1"), HasSubstr("expected one of"));
  EXPECT_EQ(resolved("resume: true").run.checkpoint.resume_from_checkpoint.text(), "auto");
  EXPECT_EQ(resolved("resume: out/checkpoint-9").run.checkpoint.resume_from_checkpoint.text(), "out/checkpoint-9");
  EXPECT_EQ(resolved("auto_resume_from_checkpoints: false").run.checkpoint.resume_from_checkpoint.text(), "false");
  EXPECT_EQ(name_of(resolved("saves_per_epoch: 1").run.checkpoint.save_strategy), "epoch");
  EXPECT_THAT(names_of(resolved("use_tensorboard: false").run.report.report_to), ElementsAre("jsonl"));
  EXPECT_THAT(resolved("report_to: none").run.report.report_to, IsEmpty());
  EXPECT_THAT(names_of(resolved("use_mlflow: true\nuse_tensorboard: true").run.report.report_to),
              ElementsAre("jsonl", "tensorboard", "mlflow"));
  EXPECT_EQ(resolved("report_to: [jsonl, prometheus]").run.report.metrics_port, 8000);
  EXPECT_EQ(resolved("report_to: [jsonl, prometheus]\nmetrics_port: 9").run.report.metrics_port, 9);
  EXPECT_THAT(refusal("report_to: mlflow\nmlflow_tracking_uri: sqlite:///a.db"), HasSubstr("mlflow server"));
  EXPECT_THAT(resolved("mlflow_experiment_name: e").notes,
              ::testing::Contains(HasSubstr("report_to does not name mlflow")));
  EXPECT_THAT(resolved("lora_target: q_proj,v_proj").run.lora.target_modules, ElementsAre("q_proj", "v_proj"));
  EXPECT_THAT(resolved("target_regex: (q|k),v").run.lora.target_modules, ElementsAre("re:(q|k),v"));
  EXPECT_THAT(resolved("lora_target: all").run.lora.target_modules, ElementsAre("all-linear"));
  EXPECT_EQ(resolved("adapters: [a]").run.model.adapter_name_or_path, "a");
  EXPECT_EQ(resolved("max_steps: -1\ntrain_steps: 100").run.schedule.max_steps, 100);
  EXPECT_EQ(resolved("max_shard_size: 500MiB").run.checkpoint.max_shard_size, 500 << 20);
  EXPECT_EQ(resolved("max_shard_size: 1.5 GB").run.checkpoint.max_shard_size, 1'500'000'000);
  EXPECT_EQ(resolved("logging_steps: 1e2").run.report.logging_steps, 100);
}

TEST(Config, DatasetsAreAPathAListOrEntries) {
  using Entries = std::vector<DatasetConfig>;
  EXPECT_EQ(resolved("dataset: a.jsonl#200").run.data.datasets, (Entries{{"a.jsonl", "auto", 200, ""}}));
  EXPECT_EQ(resolved("datasets: [a, b]").run.data.datasets, (Entries{{"a", "auto", {}, ""}, {"b", "auto", {}, ""}}));
  EXPECT_EQ(resolved("dataset: {path: a, type: chat_template, max_samples: 3, name: n}").run.data.datasets,
            (Entries{{"a", "messages", 3, "n"}}));
  EXPECT_EQ(resolved("dataset: {train_file: a, val_file: null, shuffle: false}", {}).run.data.datasets.size(), 1u);
  EXPECT_THAT(refusal("datasets:\n  - {pth: a}\n"),
              StartsWith("an entry of datasets has no key 'pth'. Did you mean 'path'? | run.yaml:2"));
  EXPECT_THAT(refusal("datasets: [{type: messages}]"), HasSubstr("an entry of datasets has no path"));
  EXPECT_THAT(refusal("datasets: [{path: a, type: weird}]"),
              StartsWith("datasets.type is 'weird': expected one of auto"));
  EXPECT_THAT(refusal("datasets: [{path: a#5, samples: 6}]"), HasSubstr("states samples twice"));
  EXPECT_THAT(refusal("datasets: a#0"), HasSubstr("expected a path"));
}

TEST(Config, AnEntryOfDatasetsMapsColumnsUnderTheNamesOfAnyTool) {
  const auto mapping = [](const std::string& members) {
    return resolved("datasets: [{path: a, " + members + "}]").run.data.datasets[0].column_mapping.dump();
  };
  EXPECT_EQ(mapping("column_mapping: {system: prompt, prompt: question}"),
            R"({"system":"prompt","prompt":"question"})");
  EXPECT_EQ(mapping("columns: {messages: dialog}, tags: {role_tag: from, content_tag: value, user_tag: human}"),
            R"({"messages":"dialog","role_tag":"from","content_tag":"value","user_tag":"human"})");
  EXPECT_EQ(mapping("field_messages: dialog, message_property_mappings: {role: from, content: value}, "
                    "roles: {user: [human], assistant: [gpt, model]}"),
            R"({"messages":"dialog","role":"from","content":"value","roles":{"user":["human"],)"
            R"("assistant":["gpt","model"]}})");
  EXPECT_EQ(mapping("field_instruction: i, field_output: o"), R"({"instruction":"i","output":"o"})");
  EXPECT_EQ(mapping("text_field: body"), R"({"text":"body"})");
  EXPECT_THAT(refusal("datasets: [{path: a, field_output: o, column_mapping: {output: p}}]"),
              HasSubstr("states output twice with different values"));
  EXPECT_THAT(refusal("datasets:\n  - {path: a, column_mapping: {promt: q}}"),
              AllOf(HasSubstr("column_mapping has no 'promt'. Did you mean 'prompt'"), HasSubstr("run.yaml:")));
}

TEST(Config, AMappingAtTheTopIsForTheDataSetsWithoutOne) {
  const RunConfig::Data data =
      resolved("datasets: [a, {path: b, column_mapping: {prompt: p}}]\neval_datasets: c\ndataset_text_field: body")
          .run.data;
  EXPECT_EQ(data.datasets[0].column_mapping.dump(), R"({"text":"body"})");
  EXPECT_EQ(data.datasets[1].column_mapping.dump(), R"({"prompt":"p"})");
  EXPECT_EQ(data.eval_datasets[0].column_mapping.dump(), R"({"text":"body"})");
  EXPECT_TRUE(data.column_mapping.empty());
}

TEST(Config, SharesOfDataSetsAreWeightsOrOneList) {
  const auto weights = [](const std::string& yaml) {
    std::vector<std::optional<double>> result;
    for (const DatasetConfig& entry : resolved(yaml).run.data.datasets) result.push_back(entry.weight);
    return result;
  };
  EXPECT_THAT(weights("datasets: [{path: a, weight: 2.5}, b]"), ElementsAre(2.5, std::nullopt));
  EXPECT_THAT(weights("datasets: [{path: a, fraction: 0.5, split: test}, {path: b, weight: 0.5}]"),
              ElementsAre(0.5, 0.5));
  EXPECT_THAT(weights("datasets: [a, b]\ninterleave_probs: [0.7, 0.3]"), ElementsAre(0.7, 0.3));
  EXPECT_THAT(weights("datasets: [a, b]\ninterleave_probs: 0.7,0.3"), ElementsAre(0.7, 0.3));
  EXPECT_THAT(refusal("datasets: [a, b]\ninterleave_probs: [1]"), HasSubstr("has 1 shares for 2 data sets"));
  EXPECT_THAT(refusal("datasets: [a, b]\ninterleave_probs: [1, x]"), HasSubstr("has the share 'x'"));
  EXPECT_THAT(refusal("datasets: [a, b]\ninterleave_probs: [1, 0]"), HasSubstr("has the share '0'"));
  EXPECT_THAT(refusal("datasets: [{path: a, weight: 2}, b]\ninterleave_probs: [1, 1]"),
              HasSubstr("gives a the share 1, but its weight is 2"));
  EXPECT_THAT(refusal("datasets: [{path: a, weight: 0}, b]"), HasSubstr("weight"));
  EXPECT_THAT(resolved("datasets: [{path: a, weight: 2}]").notes,
              ElementsAre(HasSubstr("the weight of a has no effect: it is the only data set")));
}

TEST(Config, PathsBelowHomeAreExpanded) {
  setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(resolved("model: ~/m").run.model.model_name_or_path, "/home/someone/m");
}

TEST(Config, OverridesReplaceTheFileUnderAnyName) {
  EXPECT_EQ(resolved("learning_rate: 1e-4", {"lr=3e-4", "--lr", "2e-4"}).run.schedule.learning_rate, 2e-4);
  EXPECT_EQ(resolved("packing: true", {"--sample-packing=false"}).run.data.packing, false);
  EXPECT_EQ(resolved("warmup_ratio: 0.1", {"warmup_steps=5"}).run.schedule.warmup_steps, 5);
  EXPECT_EQ(resolved("min_lr: 1e-6", {"min_lr_ratio=0.1"}).run.schedule.min_lr, std::nullopt);
  EXPECT_EQ(
      resolved("chat_template_kwargs: {a: 1, b: 2}", {"chat_template_kwargs={a: 3}"}).run.data.chat_template_kwargs,
      Json({{"a", 3}, {"b", 2}}));
  const auto batch = resolved("per_device_train_batch_size: 1\nglobal_batch_size: 8\ngradient_accumulation_steps: 8",
                              {"per_device_train_batch_size=2"});
  EXPECT_EQ(batch.run.schedule.gradient_accumulation_steps, 4);
}

TEST(Config, AFixIsSomethingToDo) {
  EXPECT_THAT(refusal("seed: x"), HasSubstr("| correct the value, or leave seed out, which means 42"));
  EXPECT_THAT(refusal("lora_r: x"), HasSubstr("| correct the value, or leave lora_r out"));
  // The description of a key is none.
  for (const KeySpec& key : schema()) {
    for (const char* value : {"[[]]", "x", "-7"}) {
      EXPECT_THAT(refusal(key.name + ": " + value), Not(HasSubstr("| " + key.help))) << key.name;
    }
  }
  try {
    require_keys(resolved("seed: 1"), {"datasets"});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.fix(), StartsWith("write datasets: VALUE"));
  }
}

TEST(Config, KeysOfASourceCodeRunAreObeyed) {
  const ResolvedConfig config = resolved(
      "repository: {path: repo, exclude_patterns: [docs/]}\n"
      "dataset: {max_tokens: 512, overlap: 64, min_tokens: 8, include_tests: false}\n");
  ASSERT_EQ(config.run.data.datasets.size(), 1u);
  EXPECT_EQ(config.run.data.datasets[0].path, "repo");
  EXPECT_EQ(config.run.data.datasets[0].type, "code");
  EXPECT_EQ(config.run.data.datasets[0].code, (Json{{"max_tokens", 512},
                                                    {"overlap", 64},
                                                    {"min_tokens", 8},
                                                    {"include_tests", false},
                                                    {"exclude_patterns", {"docs/"}}}));
  EXPECT_TRUE(resolved(resolved_yaml(config.run)).run == config.run);
  const RunConfig own = resolved("datasets: [{path: r, type: code, overlap: 1}]\ndataset: {overlap: 64}").run;
  EXPECT_EQ(own.data.datasets[0].code["overlap"], 1) << "what the entry says itself";
  EXPECT_THAT(refusal("datasets: chat.jsonl\ndataset: {overlap: 64}"), HasSubstr("no data set is of type code"));
  EXPECT_THAT(refusal("datasets: chat.jsonl\nrepository: {path: r}"), HasSubstr("stated twice"));
  EXPECT_THAT(refusal("repository: {path: r}\ndataset: {overlap: -1}"), HasSubstr("expected an integer of at least 0"));
}

TEST(Config, WhatStandsAroundATextIsObeyed) {
  const RunConfig::Data data = resolved("tokenizer: {add_eos_token: false, add_bos_token: true}").run.data;
  EXPECT_FALSE(data.add_eos_token);
  EXPECT_EQ(data.add_bos_token, true);
  EXPECT_EQ(resolved("").run.data.add_bos_token, std::nullopt);
}

TEST(Config, StepsBelowOneAreASharesOfAllSteps) {
  const RunConfig run = resolved("eval_steps: 0.1\nsave_steps: 0.25\nlogging_steps: 0.01\nval_split: 0.1").run;
  EXPECT_EQ(run.eval.eval_steps_ratio, 0.1);
  EXPECT_EQ(run.eval.eval_steps, std::nullopt);
  EXPECT_EQ(run.checkpoint.save_steps_ratio, 0.25);
  EXPECT_EQ(run.report.logging_steps_ratio, 0.01);
  EXPECT_EQ(resolved("eval_steps: 0.1\nval_split: 0.1", {"eval_steps=5"}).run.eval.eval_steps_ratio, std::nullopt);
  EXPECT_THAT(refusal("save_steps: 0.1\nsaves_per_epoch: 2"), HasSubstr("both say how often"));
  EXPECT_THAT(refusal("save_steps: 1.5"), HasSubstr("expected an integer"));
  EXPECT_THAT(refusal("save_steps: 0"), HasSubstr("expected an integer"));
}

TEST(Config, PromptsWrittenAsTextAreChecked) {
  const RunConfig run = resolved("datasets: [{path: a, type: alpaca, prompt_template: alpaca}]").run;
  EXPECT_EQ(run.data.datasets[0].prompt_template, "alpaca");
  EXPECT_TRUE(resolved(resolved_yaml(run)).run == run);
  EXPECT_THAT(refusal("datasets: [{path: a, prompt_template: alpacca}]"), HasSubstr("Did you mean 'alpaca'"));
  EXPECT_THAT(refusal("datasets: [{path: a, type: text, prompt_template: alpaca}]"), HasSubstr("rows of type alpaca"));
  EXPECT_THAT(refusal("datasets: [{path: a, prompt_template: {format: hello}}]"), HasSubstr("no {instruction}"));
  EXPECT_THAT(refusal("special_tokens: {mask_token: x}"), HasSubstr("has no 'mask_token'"));
}

TEST(Config, RequiredKeysAreAskedForByName) {
  const ResolvedConfig config = resolved("seed: 1");
  EXPECT_NO_THROW(require_keys(config, {"seed"}));
  EXPECT_THROW(require_keys(config, {"seed", "datasets"}), UserError);
}

TEST(Config, MappingsAddUpUnlessTheyDisagree) {
  EXPECT_EQ(resolved("enable_thinking: false\nchat_template_kwargs: {tools: [1]}").run.data.chat_template_kwargs.size(),
            2u);
  EXPECT_EQ(resolved("chat_template_kwargs: '{\"a\": 1}'").run.data.chat_template_kwargs, Json({{"a", 1}}));
  EXPECT_THAT(refusal("enable_thinking: false\nchat_template_kwargs: {enable_thinking: true}"),
              HasSubstr("stated twice"));
}

TEST(CodeDataSet, SaysWhichSamplesAndIsWrittenBack) {
  const ResolvedConfig config = resolved(
      "datasets: [{path: repo, type: code, kinds: [chunk], languages: [rust, c++], max_tokens: 100, overlap: 10, "
      "include_tests: false, exclude_patterns: ['docs/', '!build/'], max_file_size: 2MiB}]");
  const DatasetConfig& entry = config.run.data.datasets.front();
  EXPECT_EQ(entry.type, "code");
  EXPECT_EQ(entry.code, (Json{{"languages", {"rust", "cpp"}},
                              {"kinds", {"chunk"}},
                              {"max_tokens", 100},
                              {"overlap", 10},
                              {"include_tests", false},
                              {"exclude_patterns", {"docs/", "!build/"}},
                              {"max_file_size", 2 << 20}}));
  EXPECT_TRUE(resolved(resolved_yaml(config.run)).run == config.run);
  EXPECT_NE(refusal("datasets: [{path: d.jsonl, overlap: 10}]").find("overlap says something about source code"),
            std::string::npos);
  EXPECT_NE(refusal("datasets: [{path: d, type: code, kinds: [functions]}]").find("expected a list out of full_file"),
            std::string::npos);
}

// Compares learning rates from a configuration with those of transformers (tools/make_schedule_fixture.py).

using testing::HasSubstr;

TEST(ScheduleConfig, EveryShapeIsThatOfTransformersAfterAWarmUpThatStartsOneStepLater) {
  std::ifstream file(HONE_SOURCE_DIR "/tests/fixtures/schedules.json");
  const Json fixture = Json::parse(file);
  const double peak = fixture["learning_rate"];
  const int64_t total = fixture["total_steps"];
  ASSERT_GT(fixture["cases"].size(), 10u);
  for (const Json& known : fixture["cases"]) {
    Json config = known["config"];
    config["learning_rate"] = peak;
    const std::string yaml = config.dump();
    const Schedule schedule = schedule_of(resolved(yaml).run.schedule, total);
    const std::vector<double> rates = known["rates"];
    // In transformers, the warm-up of warmup_stable_decay begins at the floor.
    const bool other_warmup = schedule.type == ScheduleType::kWarmupStableDecay && schedule.min_lr > 0;
    for (int64_t step = other_warmup ? schedule.warmup_steps : 0; step < total; ++step) {
      // transformers' step 0 of a warm-up has the rate 0; step 0 here is its step 1.
      const double expected = rates[static_cast<size_t>(step < schedule.warmup_steps ? step + 1 : step)];
      // Both compute in float64 with a few roundings, including cos.
      EXPECT_NEAR(schedule.at(step), expected, 1e-13 * peak + 1e-12 * expected) << yaml << " step " << step;
    }
  }
}

TEST(ScheduleConfig, AShareOfTheRunIsRoundedUpToSteps) {
  const Schedule schedule =
      schedule_of(resolved("lr_scheduler_type: wsd\nwarmup_ratio: 0.05\nlr: 1\ndecay_type: linear").run.schedule, 101);
  EXPECT_EQ(schedule.warmup_steps, 6);
  EXPECT_EQ(schedule.decay_steps, 11);
  EXPECT_EQ(schedule.stable_steps, 84);
  EXPECT_DOUBLE_EQ(schedule.at(89), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(90), 1.0);  // the first step of the decay still has the peak, as in transformers
  EXPECT_NEAR(schedule.at(100), 1.0 / 11, 1e-12);
}

TEST(ScheduleConfig, TheCooldownThatIsWrittenAsTheType) {
  const RunConfig::Schedule schedule = resolved("lr_scheduler_type: 1-sqrt").run.schedule;
  EXPECT_EQ(name_of(schedule.lr_scheduler_type), "warmup_stable_decay");
  EXPECT_EQ(name_of(schedule.decay_type), "1-sqrt");
  EXPECT_THAT(refusal("lr_scheduler_type: 1-sqrt\ndecay_type: cosine"),
              HasSubstr("lr_scheduler_type is 1-sqrt, but decay_type is cosine | run.yaml:2"));
}

TEST(ScheduleConfig, ArgumentsAsTransformersWritesThem) {
  const RunConfig::Schedule schedule =
      resolved("lr_scheduler_type: cosine_with_restarts\nlr_scheduler_kwargs: {num_cycles: 4}").run.schedule;
  EXPECT_EQ(schedule_of(schedule, 10).num_cycles, 4);
  EXPECT_THAT(refusal("lr_scheduler_kwargs: {num_cyles: 4}"), HasSubstr("num_cycles"));
  EXPECT_TRUE(has_note(resolved("lr_scheduler_type: linear\nnum_cycles: 4"),
                       "num_cycles has no effect: lr_scheduler_type is linear (run.yaml:2)"));
}

TEST(ScheduleConfig, WhatNoScheduleCanDoIsRefused) {
  EXPECT_THAT(refusal("lr_scheduler_type: cosine_with_restarts\nnum_cycles: 1.5"),
              HasSubstr("falls a whole number of times, not 1.5 | run.yaml:2"));
  EXPECT_THAT(refusal("lr_scheduler_type: wsd\nnum_decay_steps: 3.5"),
              HasSubstr("num_decay_steps 3.5 is neither a share below 1 nor a whole number | run.yaml:2"));
  EXPECT_THAT(refusal("lr_scheduler_type: wsd\ndecay_type: exponential"), HasSubstr("one of linear, cosine, 1-sqrt"));
  EXPECT_THAT(refusal("power: 0"), HasSubstr("power is '0'"));
  const RunConfig::Schedule longer =
      resolved("lr_scheduler_type: wsd\nwarmup_steps: 5\nnum_decay_steps: 8").run.schedule;
  try {
    schedule_of(longer, 10);
    FAIL() << "a decay longer than the run";
  } catch (const UserError& error) {
    EXPECT_THAT(error.message(), HasSubstr("warm-up (5), stable part (0) and decay (8) are longer than the run of 10"));
  }
}

}  // namespace
}  // namespace hone
