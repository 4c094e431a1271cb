#include "train/save/saved_tokenizer.h"

#include <fstream>
#include <set>

#include "core/files/durable_file.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "models/hf_config.h"
#include "weights/checkpoint.h"

namespace hone {

void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                           "chat_template.jinja"}) {
    if (!std::filesystem::exists(from / name)) continue;
    copy_durably(from / name, to / name);
  }
}

void replace_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
                           "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json"}) {
    std::filesystem::remove(to / name);
  }
  copy_tokenizer_files(from, to);
}

void save_chat_template(const std::filesystem::path& directory, const std::string& chat_template) {
  write_text_file(directory / "chat_template.jinja", chat_template);
  const std::filesystem::path config_path = directory / "tokenizer_config.json";
  std::ifstream file(config_path);
  if (!file) return;
  Json config = parse_json(file);
  if (config.erase("chat_template") > 0) write_text_file(config_path, config.dump(2) + "\n");
}

void copy_chat_template(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (const auto text = read_whole_file_if_there(from / "chat_template.jinja")) save_chat_template(to, *text);
}

namespace {

Json read_object(const std::filesystem::path& path) {
  std::ifstream file(path);
  Json json = file ? parse_json(file) : Json::object();
  return json.is_object() ? json : Json::object();
}

}  // namespace

void save_token_choice(const std::filesystem::path& directory, const TokenChoice& choice, const Tokenizer& tokenizer) {
  if (choice.empty()) return;
  const Json roles = choice.to_json();
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::filesystem::path path = directory / name;
    if (std::string_view(name) == "special_tokens_map.json" && !std::filesystem::exists(path)) continue;
    Json config = read_object(path);
    for (const auto& [role, token] : roles.items()) {
      if (role != "eot_tokens") config[role] = token;
    }
    write_text_file(path, config.dump(2) + "\n");
  }
  if (!std::filesystem::exists(directory / "config.json")) return;  // folder of an adapter
  Json generation = read_object(directory / "generation_config.json");
  const SpecialTokens& special = tokenizer.special_tokens();
  if (special.bos) generation["bos_token_id"] = *special.bos;
  if (special.pad) generation["pad_token_id"] = *special.pad;
  generation["eos_token_id"] = special.stop;
  write_text_file(directory / "generation_config.json", generation.dump(2) + "\n");
}

void save_added_tokens(const std::filesystem::path& directory, const Tokenizer& tokenizer) {
  Json file = read_object(directory / "tokenizer.json"), config = read_object(directory / "tokenizer_config.json");
  Json& added = file["added_tokens"];
  if (!added.is_array()) added = Json::array();
  std::set<std::string> listed;
  for (const Json& entry : added) listed.insert(entry.value("content", ""));
  const bool decoder = config.contains("added_tokens_decoder") && config["added_tokens_decoder"].is_object();
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (listed.contains(token.content)) continue;
    const Json entry = {{"content", token.content}, {"single_word", token.single_word}, {"lstrip", token.lstrip},
                        {"rstrip", token.rstrip},   {"normalized", token.normalized},   {"special", token.special}};
    if (decoder) config["added_tokens_decoder"][std::to_string(token.id)] = entry;
    Json numbered = {{"id", token.id}};
    numbered.update(entry);
    added.push_back(std::move(numbered));
  }
  write_text_file(directory / "tokenizer.json", file.dump() + "\n");
  if (decoder) write_text_file(directory / "tokenizer_config.json", config.dump(2) + "\n");
}

void write_config_vocab_size(const std::filesystem::path& directory, int64_t rows) {
  const HfConfig config = HfConfig::read(directory).with_vocab_size(rows);
  write_text_file(directory / "config.json", config.json().dump(2) + "\n");
}

void copy_special_tokens(const std::filesystem::path& from, const std::filesystem::path& to) {
  const std::filesystem::path path = to / "tokenizer_config.json";
  if (!std::filesystem::exists(from / "tokenizer_config.json") || !std::filesystem::exists(path)) return;
  const Json trained = read_object(from / "tokenizer_config.json");
  Json config = read_object(path);
  bool changed = false;
  for (const char* role : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    if (!trained.contains(role) || trained[role].is_null() || config.value(role, Json()) == trained[role]) continue;
    config[role] = trained[role];
    changed = true;
  }
  if (changed) write_text_file(path, config.dump(2) + "\n");
}

}  // namespace hone
