#include "app/quickstart/tiny_model.h"

#include "app/init/new_model.h"
#include "models/registry.h"
#include "text/bpe_trainer.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"

namespace hone {

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
