#include "text/tokenizer_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>

#include "core/base/error.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
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

/// Reads "<s>" or {"content": "<s>", …}.
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

/// The text of "<s>" or {"content": "<s>", …}.
std::string token_text(const JsonCursor& json) {
  return json.value().is_object() ? json.at("content").string() : json.string();
}

/// Reads the tokens of extra_special_tokens (a list, or tokens by name) and additional_special_tokens, its older name.
void read_extra_tokens(const JsonCursor& json, TokenizerConfig& config) {
  for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
    const auto found = json.find(key);
    if (!found) continue;
    if (found->value().is_object()) {
      for (const auto& [name, value] : found->value().items())
        config.beside.extra.push_back(token_text(found->at(name)));
      continue;
    }
    for (size_t i = 0; i < found->array_size(); ++i) config.beside.extra.push_back(token_text(found->element(i)));
  }
}

/// The tokens that have a role, for example eos_token.
void read_named_tokens(const JsonCursor& json, TokenizerConfig& config) {
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    if (const auto found = json.find(key)) config.beside.named.push_back(token_text(*found));
  }
}

void sort_by_id(std::vector<AddedToken>& tokens) {
  std::stable_sort(tokens.begin(), tokens.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
}

bool is_named(const AddedToken& token, const TokensBeside& beside) {
  return std::find(beside.named.begin(), beside.named.end(), token.content) != beside.named.end();
}

/// Reads {"1500": {"content": "<s>", "special": true, …}, …}.
void read_added_tokens(const JsonCursor& json, TokenizerConfig& config) {
  const auto decoder = json.find("added_tokens_decoder");
  if (!decoder) return;
  decoder->expect_object();
  for (const auto& [id, value] : decoder->value().items()) {
    const JsonCursor entry = decoder->at(id);
    AddedToken token;
    const auto end = std::from_chars(id.data(), id.data() + id.size(), token.id);
    if (end.ec != std::errc() || end.ptr != id.data() + id.size()) entry.fail("the key is not a token id");
    token.content = entry.at("content").string();
    token.special = entry.boolean_or("special", false);
    token.normalized = entry.boolean_or("normalized", !token.special);
    token.single_word = entry.boolean_or("single_word", false);
    token.lstrip = entry.boolean_or("lstrip", false);
    token.rstrip = entry.boolean_or("rstrip", false);
    token.special = token.special || is_named(token, config.beside);
    config.beside.tokens.push_back(std::move(token));
  }
  sort_by_id(config.beside.tokens);
}

/// Reads {"<s>": 1500, …}, of older tokenizers.
void read_added_tokens_file(const JsonCursor& json, TokenizerConfig& config) {
  json.expect_object();
  const std::vector<std::string>& extra = config.beside.extra;
  for (const auto& [content, id] : json.value().items()) {
    AddedToken token;
    token.content = content;
    token.id = int32_t(json.at(content).integer(0, kMaxTokenId));
    token.special = is_named(token, config.beside) || std::find(extra.begin(), extra.end(), content) != extra.end();
    token.normalized = !token.special;
    config.beside.tokens.push_back(std::move(token));
  }
  sort_by_id(config.beside.tokens);
}

/// Reads one template, or a list of {"name", "template"}.
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
  bool has_decoder = false;
  const auto note_decoder = [&](const JsonCursor& json, TokenizerConfig&) {
    has_decoder = json.find("added_tokens_decoder").has_value();
  };
  read("tokenizer_config.json", read_special_tokens, read_chat_templates, read_named_tokens, read_extra_tokens,
       read_added_tokens, note_decoder);
  read("special_tokens_map.json", read_special_tokens);
  if (!has_decoder) {
    read("special_tokens_map.json", read_named_tokens, read_extra_tokens);
    read("added_tokens.json", read_added_tokens_file);
  }
  read("generation_config.json", read_generation_config);
  read_template_file(directory / "chat_template.jinja", config);
  return config;
}

TokenChoice TokenChoice::parse(const Json& special_tokens, std::vector<std::string> eot_tokens,
                               const std::string& where) {
  TokenChoice choice;
  choice.eot = std::move(eot_tokens);
  const std::array<std::pair<std::string_view, std::optional<std::string>*>, 4> roles = {
      {{"bos_token", &choice.bos}, {"eos_token", &choice.eos}, {"pad_token", &choice.pad}, {"unk_token", &choice.unk}}};
  for (const auto& [name, value] : special_tokens.items()) {
    std::optional<std::string>* role = nullptr;
    for (const auto& [known, member] : roles) {
      if (known == name) role = member;
    }
    if (!role) {
      throw UserError(fmt::format("special_tokens has no '{}'", name), where,
                      "use bos_token, eos_token, pad_token or unk_token; set tokens that end a turn in eot_tokens");
    }
    if (value.is_null()) continue;
    if (!value.is_string() || value == "")
      throw UserError(fmt::format("special_tokens.{} is not a token", name), where);
    *role = value.get<std::string>();
  }
  return choice;
}

Json TokenChoice::to_json() const {
  Json json = Json::object();
  const auto add = [&](const char* name, const std::optional<std::string>& token) {
    if (token) json[name] = *token;
  };
  add("bos_token", bos);
  add("eos_token", eos);
  add("pad_token", pad);
  add("unk_token", unk);
  if (!eot.empty()) json["eot_tokens"] = eot;
  return json;
}

TokenChoice TokenChoice::from_json(Json json, const std::string& where) {
  std::vector<std::string> eot;
  const Json listed = json.value("eot_tokens", Json::array());
  const bool texts =
      listed.is_array() && std::all_of(listed.begin(), listed.end(), [](const Json& one) { return one.is_string(); });
  if (!texts) throw UserError("eot_tokens is not a list of tokens", where);
  for (const Json& token : listed) eot.push_back(token);
  json.erase("eot_tokens");
  return parse(json, std::move(eot), where);
}

Json NewTokens::to_json() const { return {{"plain", plain}, {"special", special}}; }

}  // namespace hone
