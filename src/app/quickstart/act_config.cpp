#include "app/quickstart/act_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/init/init.h"
#include "core/text/json.h"
#include "models/registry.h"
#include "text/bpe_trainer.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"

namespace hone {
namespace {

using fmt::arg;

/// A path as a YAML scalar.
std::string quoted(const std::filesystem::path& path) { return Json(path.generic_string()).dump(); }

int64_t logging_steps(int64_t steps, const QuickstartBudget& budget) {
  return std::max<int64_t>(1, steps / budget.log_lines);
}

}  // namespace

std::string english_yaml(const std::filesystem::path& folder, const QuickstartBudget& budget,
                         const RunSettings& settings) {
  return fmt::format(
      R"(# Act 1 of the quickstart: a model with random weights learns to read English calendar entries.
# It may be run again: hone train {file}
model_name_or_path: {model}
finetuning_type: full            # all weights; act2.yaml trains small adapters instead
dtype: float32                   # bfloat16 is the default, and right for larger models

datasets:
  - path: {data}
    type: messages               # chats; a sample's text comes from the model's chat template
val_split: 200                   # samples kept back for the evaluation loss
max_length: 96                   # tokens of the longest sample
packing: true                    # short samples share a batch; they do not see each other
train_on: assistant              # answers get loss, questions do not

max_steps: {steps}
per_device_train_batch_size: 32  # sequences of max_length at once
learning_rate: 3.0e-3            # high, for a small model from scratch; 1e-5 is usual for a trained one
lr_scheduler_type: cosine
min_lr_ratio: 0.02
warmup_ratio: 0.05
weight_decay: 0.0
adam_beta2: 0.98
max_grad_norm: 1.0
seed: {seed}
device: {device}                 # auto takes a GPU if there is one

output_dir: {output}
overwrite_output_dir: true       # what an earlier run of this file left there is replaced
logging_steps: {logging}
eval_steps: {evaluation}
save_strategy: "no"              # no checkpoints on the way; the model is saved at the end
)",
      arg("file", (folder / "act1.yaml").generic_string()), arg("model", quoted(folder / "model")),
      arg("data", quoted(folder / "data" / "english_train.jsonl")), arg("steps", budget.english_steps),
      arg("seed", settings.seed), arg("device", settings.device), arg("output", quoted(folder / "act1")),
      arg("logging", logging_steps(budget.english_steps, budget)),
      arg("evaluation", std::max<int64_t>(1, budget.english_steps / 4)));
}

std::string german_yaml(const std::filesystem::path& folder, const QuickstartBudget& budget,
                        const RunSettings& settings) {
  return fmt::format(
      R"(# Act 2 of the quickstart: adapters teach the model of act 1 German, without forgetting English.
# It may be run again: hone train {file}
model_name_or_path: {model}
finetuning_type: lora            # the weights stay as they are; small matrices beside them learn
lora_r: 16
lora_alpha: 32
lora_target_modules: [attention, all-experts]
expert_lora: split               # gate, up and down of each expert have adapters of their own
freeze_router: true              # tokens keep going to the experts the model chose
dtype: float32

datasets:
  - path: {german}
    type: messages
  - path: {english}
    type: messages
    samples: {replay}            # some of what is known already, so that it is not forgotten
val_split: 200
max_length: 96
packing: true
train_on: assistant

max_steps: {steps}
per_device_train_batch_size: 32
learning_rate: 4.0e-3
lr_scheduler_type: cosine
min_lr_ratio: 0.02
warmup_ratio: 0.05
adam_beta2: 0.98
max_grad_norm: 1.0
seed: {seed}
device: {device}

output_dir: {output}
overwrite_output_dir: true       # what an earlier run of this file left there is replaced
logging_steps: {logging}
eval_steps: {evaluation}
save_strategy: "no"
)",
      arg("file", (folder / "act2.yaml").generic_string()), arg("model", quoted(folder / "act1")),
      arg("german", quoted(folder / "data" / "german_train.jsonl")),
      arg("english", quoted(folder / "data" / "english_train.jsonl")), arg("replay", budget.replay_examples),
      arg("steps", budget.german_steps), arg("seed", settings.seed), arg("device", settings.device),
      arg("output", quoted(folder / "act2")), arg("logging", logging_steps(budget.german_steps, budget)),
      arg("evaluation", std::max<int64_t>(1, budget.german_steps / 2)));
}

namespace {

constexpr const char* kUser = "<|user|>";
constexpr const char* kAssistant = "<|assistant|>";
constexpr const char* kEnd = "<|end|>";
constexpr int32_t kVocabSize = 768;
constexpr int kMaxPositions = 256;

constexpr const char* kChatTemplate =
    "{%- for message in messages %}\n"
    "{{- '<|' + message.role + '|>' + message.content + '<|end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "{{- '<|assistant|>' }}\n"
    "{%- endif %}\n";

Json model_config(int32_t end_id) {
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"model_type", "qwen3_moe"},
          {"dtype", "float32"},
          {"vocab_size", kVocabSize},
          {"hidden_size", 128},
          {"intermediate_size", 256},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 32},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"max_position_embeddings", kMaxPositions},
          {"rope_theta", 10000.0},
          {"rms_norm_eps", 1e-6},
          {"tie_word_embeddings", false},
          {"use_sliding_window", false},
          {"num_experts", 8},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 128},
          {"decoder_sparse_step", 1},
          {"mlp_only_layers", Json::array()},
          {"norm_topk_prob", true},
          {"router_aux_loss_coef", 0.01},
          {"initializer_range", 0.05},
          {"eos_token_id", end_id}};
}

void write_json(const std::filesystem::path& file, const Json& json) { write_text_file(file, json.dump(2) + "\n"); }

void write_weights(const std::filesystem::path& directory, const HfConfig& config, uint64_t seed, ThreadPool& pool) {
  const DecoderConfig decoder_config = read_decoder_config(config);
  ParameterStore store;
  Placement placement;
  const Decoder decoder(decoder_config, store, placement, DType::kF32);
  store.allocate(Device{}, true);
  initialise_weights(store, decoder_config.initializer_range, seed, pool);
  save_parameters(directory, store, nullptr, nullptr, {});
}

}  // namespace

void write_tiny_model(const std::filesystem::path& directory, const std::vector<std::string>& texts, uint64_t seed,
                      ThreadPool& pool) {
  const Json tokenizer = train_bpe(texts, {.vocab_size = kVocabSize, .special_tokens = {kUser, kAssistant, kEnd}});
  const std::string tokenizer_file = (directory / "tokenizer.json").string();
  std::filesystem::create_directories(directory);
  write_tokenizer_json(tokenizer, tokenizer_file);
  const int32_t end_id = *Tokenizer::parse(tokenizer.dump(), tokenizer_file).token_to_id(kEnd);
  write_json(directory / "tokenizer_config.json", {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                                   {"eos_token", kEnd},
                                                   {"pad_token", kEnd},
                                                   {"model_max_length", kMaxPositions},
                                                   {"chat_template", kChatTemplate}});
  write_json(directory / "generation_config.json",
             {{"do_sample", false}, {"eos_token_id", end_id}, {"pad_token_id", end_id}});
  const Json config = model_config(end_id);
  write_json(directory / "config.json", config);
  write_weights(directory, HfConfig(config, (directory / "config.json").string()), seed, pool);
}

}  // namespace hone
