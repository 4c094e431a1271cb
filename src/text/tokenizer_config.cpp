#include "text/tokenizer_config.h"

#include "core/error.h"
#include "core/file_bytes.h"
#include "core/json.h"
#include "text/json_cursor.h"
#include "text/token_model.h"
#include "text/utf8.h"

namespace hone {
namespace {

constexpr size_t kMaxConfigBytes = 64 << 20;  // tokenizer_config.json repeats every added token
constexpr size_t kMaxTemplateBytes = 4 << 20;

std::optional<IndexedJson> read_optional(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  return read_json_file(path, kMaxConfigBytes);
}

/// "<s>" or {"content": "<s>", …}.
void read_token(const JsonCursor& json, std::string_view key, std::optional<std::string>& token) {
  const auto found = json.find(key);
  if (!found || token) return;
  token = found->value().is_object() ? found->at("content").string() : found->string();
}

void read_special_tokens(const JsonCursor& json, TokenizerConfig& config) {
  json.expect_object();
  read_token(json, "bos_token", config.bos_token);
  read_token(json, "eos_token", config.eos_token);
  read_token(json, "pad_token", config.pad_token);
  read_token(json, "unk_token", config.unk_token);
}

/// One template, or a list of {"name", "template"}.
void read_chat_templates(const JsonCursor& json, TokenizerConfig& config) {
  const auto found = json.find("chat_template");
  if (!found) return;
  if (found->value().is_string()) {
    config.chat_templates.emplace_back("default", found->string());
    return;
  }
  for (size_t i = 0; i < found->array_size(); ++i) {
    const JsonCursor entry = found->element(i);
    config.chat_templates.emplace_back(entry.at("name").string(), entry.at("template").string());
  }
}

void read_template_file(const std::filesystem::path& path, TokenizerConfig& config) {
  std::optional<std::string> text = read_whole_file_if_there(path, kMaxTemplateBytes);
  if (!text) return;
  if (valid_utf8_prefix(*text) != text->size()) throw UserError("the chat template is not UTF-8", path.string());
  std::erase_if(config.chat_templates, [](const auto& entry) { return entry.first == "default"; });
  config.chat_templates.emplace_back("default", std::move(*text));
}

void read_generation_config(const JsonCursor& json, TokenizerConfig& config) {
  const auto id_of = [](const JsonCursor& value) { return int32_t(value.integer(0, kMaxTokenId)); };
  if (const auto bos = json.find("bos_token_id")) config.generation_bos_id = id_of(*bos);
  if (const auto pad = json.find("pad_token_id")) config.generation_pad_id = id_of(*pad);
  const auto eos = json.find("eos_token_id");
  if (!eos) return;
  if (!eos->value().is_array()) {
    config.generation_eos_ids.push_back(id_of(*eos));
    return;
  }
  for (size_t i = 0; i < eos->array_size(); ++i) config.generation_eos_ids.push_back(id_of(eos->element(i)));
}

}  // namespace

TokenizerConfig read_tokenizer_config(const std::filesystem::path& directory) {
  TokenizerConfig config;
  const auto read = [&](const char* name, auto... readers) {
    const std::filesystem::path path = directory / name;
    if (const auto json = read_optional(path)) (readers(JsonCursor(*json, path.string()), config), ...);
  };
  read("tokenizer_config.json", read_special_tokens, read_chat_templates);
  read("special_tokens_map.json", read_special_tokens);
  read("generation_config.json", read_generation_config);
  read_template_file(directory / "chat_template.jinja", config);
  return config;
}

}  // namespace hone
