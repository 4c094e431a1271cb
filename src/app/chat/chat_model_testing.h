// A model folder that tests talk to: random weights of a reference case, a tokenizer of bytes and a chat template.
#pragma once

#include <filesystem>
#include <fstream>

#include "core/text/json.h"
#include "text/utf8.h"

namespace hone {

inline const std::filesystem::path kChatModelCase =
    std::filesystem::path(HONE_SOURCE_DIR) / "tests/fixtures/goldens/qwen3_moe";

/// A byte-level tokenizer without merges: 3 special tokens, then the 256 bytes.
inline Json byte_tokenizer() {
  Json vocab = Json::object(), added = Json::array();
  for (const char* token : {"<|end|>", "<|user|>", "<|model|>"}) {
    const size_t id = vocab.size();
    vocab[token] = id;
    added.push_back({{"id", id},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  for (int byte = 0; byte < 256; ++byte) vocab[byte_character(static_cast<uint8_t>(byte))] = 3 + byte;
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", Json::array()}}}};
}

inline constexpr const char* kChatModelTemplate =
    "{% for message in messages %}<|{{ 'user' if message.role != 'assistant' else 'model' }}|>{{ message.content }}"
    "{% endfor %}{% if add_generation_prompt %}<|model|>{% endif %}";

inline void write_chat_model(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder.parent_path());
  std::filesystem::copy(kChatModelCase / "model", folder);
  const auto write = [&](const char* name, const std::string& content) { std::ofstream(folder / name) << content; };
  write("tokenizer.json", byte_tokenizer().dump());
  write("tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  write("generation_config.json", R"({"eos_token_id": 0})");
  write("chat_template.jinja", kChatModelTemplate);
}

}  // namespace hone
