// Data sets, tokens, targets and defaults of other tools.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "app/chat/chat_model_testing.h"
#include "app/convert_config/convert_testing.h"
#include "app/convert_config/translation.h"

namespace hone {
namespace {

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
}

TEST_F(ConvertConfig, TokensThatToolsAddAreAdded) {
  const RunConfig axolotl =
      converted(write("a.yml", kHead + "tokens: ['<|x|>', '<a, b>']\n"
                                       "special_tokens: {additional_special_tokens: ['<|y|>']}\n"
                                       "resize_token_embeddings_to_32x: true\nmean_resizing_embeddings: true\n"))
          .run;
  EXPECT_THAT(axolotl.model.add_tokens, ElementsAre("<|x|>", "<a, b>"));
  EXPECT_THAT(axolotl.model.add_special_tokens, ElementsAre("<|y|>"));
  const RunConfig factory = converted(write("l.yaml",
                                            "model_name_or_path: m\nstage: sft\ncutoff_len: 64\nresize_vocab: true\n"
                                            "add_tokens: <a>,<b>\nadd_special_tokens: <c>, <d>\n"))
                                .run;
  EXPECT_TRUE(factory.model.resize_vocab);
  EXPECT_THAT(factory.model.add_tokens, ElementsAre("<a>", "<b>"));
  EXPECT_THAT(factory.model.add_special_tokens, ElementsAre("<c>", "<d>"));
}

TEST_F(ConvertConfig, SpecialTokensThatTheTokenizerLacksAreAdded) {
  write_chat_model(folder_ / "model");  // with <|end|>, <|user|> and <|model|>
  const std::string head = "base_model: " + (folder_ / "model").string() +
                           "\nsequence_len: 64\nmicro_batch_size: 1\ngradient_accumulation_steps: 1\nnum_epochs: 1\n"
                           "datasets: [{path: a, type: completion}]\nsample_packing: true\n";
  const RunConfig run = converted(write("a.yml", head + "special_tokens:\n  eos_token: <|im_end|>\n"
                                                        "  bos_token: <|user|>\n  pad_token: <|pad|>\n"
                                                        "  additional_special_tokens: [<|y|>]\n"))
                            .run;
  EXPECT_THAT(run.model.add_special_tokens, ElementsAre("<|y|>", "<|im_end|>"));
  EXPECT_EQ(run.data.special_tokens, (Json{{"eos_token", "<|im_end|>"}, {"bos_token", "<|user|>"}}));
  EXPECT_TRUE(has(text_, "no row is padded")) << text_;
}

TEST_F(ConvertConfig, AllLinearAsksAboutTheExperts) {
  const ResolvedConfig axolotl =
      converted(write("a.yml", kHead + "adapter: lora\nlora_target_linear: true\nlora_target_modules: [w1]\n"));
  EXPECT_THAT(axolotl.run.lora.target_modules, ElementsAre("all-linear", "w1")) << "Axolotl adds them up";
  EXPECT_TRUE(has(printed_, "look at         lora_target_linear: true")) << printed_;
  EXPECT_TRUE(has(printed_, "with 4 they are: add all-experts")) << printed_;
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
  EXPECT_EQ(
      name_of(converted(write("g.yml", kHead + "gradient_checkpointing: offload\n")).run.model.gradient_checkpointing),
      "true");
  EXPECT_EQ(name_of(converted(write("g.yml", kHead + "gradient_checkpointing: false\n"
                                                     "fsdp_config: {activation_checkpointing: true}\n"))
                        .run.model.gradient_checkpointing),
            "true");
  converted(write("m.yaml",
                  "model_name_or_path: m\nstage: sft\ndataset: a\ncutoff_len: 64\nfinetuning_type: full\n"
                  "tensor_model_parallel_size: 1\nsequence_parallel: false\npipeline_model_parallel_size: 4\n"
                  "bias_activation_fusion: true\nuse_distributed_optimizer: true\noverlap_grad_reduce: true\n"
                  "moe_grouped_gemm: true\nmoe_token_dispatcher_type: alltoall\nrecompute_granularity: full\n"));
  EXPECT_TRUE(has(refused(write("q.yml", kHead + "use_onebitllms: true\n")), "1 of the settings"));
  EXPECT_EQ(converted(write("q.yml", kHead + "adapter: qlora\nload_in_4bit: true\nquantize_moe_experts: true\n"))
                .run.model.base_weight_dtype.name(),
            "nf4");
}

TEST_F(ConvertConfig, FourBitsHaveTheScalesOfTheirTool) {
  const auto base = [&](const std::string& path) { return converted(path).run.model.base_weight_dtype.name(); };
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
  EXPECT_EQ(name_of(config.run.model.finetuning_type), "lora");
  EXPECT_EQ(config.run.lora.r, 4);
  ASSERT_EQ(config.run.data.datasets.size(), 2u);
  EXPECT_EQ(config.run.data.datasets[0].samples, 500);
  EXPECT_EQ(config.run.data.datasets[0].name, "demo");
  EXPECT_EQ(config.run.data.datasets[1].type, "sharegpt");
  EXPECT_EQ(name_of(config.run.schedule.lr_scheduler_type), "constant");
  EXPECT_EQ(config.run.optim.weight_decay, 0.01) << "torch's AdamW";
  EXPECT_TRUE(config.run.optim.decay_norms_and_biases);
  EXPECT_FALSE(refused(write("dpo.yaml", "model: m\nmodel_class: llm\nstage: dpo\ntrain_dataset: x\n")).empty());
  const std::string quantised = "model: m\nmodel_class: llm\npeft_config: {name: lora}\ntrain_dataset: x\n";
  EXPECT_EQ(converted(write("q.yaml", quantised + "quant_config: {name: bnb, quantization_bit: 4}\n"))
                .run.model.base_weight_dtype.name(),
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

TEST_F(ConvertConfig, AxolotlReportsToAProjectThatIsNamed) {
  using Names = std::vector<std::string>;
  const RunConfig::Report report =
      converted(write("a.yml", kHead + "wandb_project: p\nwandb_entity: e\nwandb_watch: gradients\n")).run.report;
  EXPECT_EQ(names_of(report.report_to), (Names{"jsonl", "tensorboard", "wandb"}));
  EXPECT_EQ(report.wandb_project + report.wandb_entity, "pe");
  EXPECT_EQ(
      names_of(converted(write("a.yml", kHead + "wandb_project: p\nwandb_mode: disabled\n")).run.report.report_to),
      (Names{"jsonl", "tensorboard"}));
  EXPECT_EQ(names_of(converted(write("a.yml", kHead + "wandb_project:\n")).run.report.report_to),
            (Names{"jsonl", "tensorboard"}));
}

TEST_F(ConvertConfig, LlamaFactoryTrainsAResizedVocabularyWhole) {
  const std::string lora = "model_name_or_path: m\nstage: sft\ncutoff_len: 64\nfinetuning_type: lora\n";
  EXPECT_THAT(names_of(converted(write("a.yaml", lora + "resize_vocab: true\n")).run.lora.modules_to_save),
              ElementsAre("embed_tokens", "lm_head"));
  EXPECT_TRUE(has(printed_, "look at         resize_vocab")) << printed_;
  EXPECT_THAT(names_of(converted(write("a.yaml", lora + "resize_vocab: true\nadditional_target: lm_head\n"))
                           .run.lora.modules_to_save),
              ElementsAre("lm_head"));
  EXPECT_TRUE(converted(write("a.yaml", lora + "resize_vocab: false\n")).run.lora.modules_to_save.empty());
  EXPECT_FALSE(has(printed_, "begin with noise")) << printed_;
}

TEST_F(ConvertConfig, LlamaFactorysPretrainingIsText) {
  write("data/dataset_info.json", R"({"c4": {"file_name": "c4.jsonl", "columns": {"prompt": "body"}}})");
  const ResolvedConfig config = converted(
      write("pt.yaml", "model_name_or_path: m\nstage: pt\ncutoff_len: 64\nfinetuning_type: full\ndataset: c4\n"));
  EXPECT_EQ(config.run.data.datasets[0].type, "text");
  EXPECT_EQ(config.run.data.datasets[0].column_mapping, (Json{{"text", "body"}}));
  EXPECT_TRUE(config.run.data.packing);
  EXPECT_EQ(name_of(config.run.data.overlength), "split");
  EXPECT_TRUE(has(printed_, "do not see each other")) << printed_;
}

TEST_F(ConvertConfig, AConstantRateHasNoWarmupToKeep) {
  const ResolvedConfig config = converted(write("a.yml", kHead + "lr_scheduler: constant\nwarmup_steps: 10\n"));
  EXPECT_EQ(name_of(config.run.schedule.lr_scheduler_type), "constant");
  EXPECT_EQ(config.run.schedule.warmup_steps, std::nullopt);
  EXPECT_TRUE(has(text_, "a constant schedule has no warm-up")) << text_;
}

TEST_F(ConvertConfig, ADataSetOfTheHubIsTaken) {
  write(
      "data/dataset_info.json",
      R"({"zh": {"hf_hub_url": "org/zh", "ms_hub_url": "other/zh", "subset": "small"}, "ms": {"ms_hub_url": "org/ms"}, "mm": {"file_name": "mm.json", "columns": {"images": "images"}}})");
  const std::string lf = "model_name_or_path: m\nstage: sft\ncutoff_len: 64\nfinetuning_type: full\ndataset: ";
  const DatasetConfig zh = converted(write("hub.yaml", lf + "zh\n")).run.data.datasets[0];
  EXPECT_EQ(zh.path, "org/zh");
  EXPECT_EQ(zh.name, "small");
  EXPECT_EQ(zh.split, "train");
  converted(write("ms.yaml", lf + "ms\n"));
  EXPECT_TRUE(has(printed_, "of another hub than Hugging Face's")) << printed_;
  EXPECT_TRUE(has(refused(write("mm.yaml", lf + "mm\n")), "would change what is learnt"));
  EXPECT_TRUE(has(printed_, "not trained on in this version")) << printed_;
}

}  // namespace
}  // namespace hone
