#include "train/saved_tokenizer.h"

#include <fstream>
#include <iterator>

#include "core/untrusted_json.h"
#include "weights/checkpoint.h"

namespace hone {

void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
    if (!std::filesystem::exists(from / name)) continue;
    std::filesystem::copy_file(from / name, to / name, std::filesystem::copy_options::overwrite_existing);
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
  std::ifstream file(from / "chat_template.jinja", std::ios::binary);
  if (file) save_chat_template(to, {std::istreambuf_iterator<char>(file), {}});
}

}  // namespace hone
