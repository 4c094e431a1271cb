// Writes a translation as run.yaml.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "app/convert_config/translation.h"
#include "config/resolved_yaml.h"

namespace hone {
namespace {

constexpr size_t kColumn = 44;

/// Appends `comment` to a value's line, in a fixed column; for a list of data sets to its first line.
std::string commented(std::string text, const std::string& comment) {
  if (comment.empty()) return text;
  const size_t end = text.find('\n');
  const size_t padding = end < kColumn ? kColumn - end : 2;
  return text.substr(0, end) + std::string(padding, ' ') + "# " + comment + text.substr(end);
}

/// Unescapes variables of scripts: Hone reads them from its environment.
std::string with_variables(std::string text) {
  for (size_t at = 0; (at = text.find("$${", at)) != std::string::npos; ++at) text.erase(at, 1);
  return text;
}

std::string lines_of(std::vector<TranslatedKey> keys) {
  std::sort(keys.begin(), keys.end(), [](const TranslatedKey& a, const TranslatedKey& b) { return a.key < b.key; });
  std::string text, group, section;
  for (const TranslatedKey& key : keys) {
    if (key.key->group != group) text += fmt::format("\n# {}\n", group = key.key->group);
    const size_t dot = key.key->name.find('.');
    std::string line = yaml_line(*key.key, key.value);
    if (dot != std::string::npos) {  // generation: {top_k: 5} → top_k: 5 below generation:
      const std::string inside = key.key->name.substr(0, dot);
      if (inside != section) text += inside + ":\n";
      section = inside;
      line = "  " + line.substr(dot + 3, line.size() - dot - 5) + "\n";
    }
    text += commented(line, key.note);
  }
  return text;
}

std::string remarks(const char* title, const std::vector<Remark>& list) {
  if (list.empty()) return "";
  std::string text = fmt::format("\n# {}\n", title);
  for (const Remark& remark : list) text += fmt::format("#   {} ({}): {}\n", remark.said, remark.where, remark.why);
  return text;
}

}  // namespace

std::string converted_yaml(const Translation& translation, const Tool& tool, const std::string& source, int64_t devices,
                           bool expand) {
  std::string text = fmt::format(
      "# Translated from {} ({}) by hone convert-config. Next: `hone validate` with this file.\n"
      "# The comment after a key is its original name. Defaults that differ from Hone's are stated.\n",
      source, tool.title);
  std::vector<TranslatedKey> keys = translation.stated;
  keys.insert(keys.end(), translation.defaults.begin(), translation.defaults.end());
  const bool of_all = std::any_of(keys.begin(), keys.end(), [](const TranslatedKey& key) {
    return key.key->name == "global_batch_size" || key.key->name == "tokens_per_step";
  });
  if (!of_all) {
    text += fmt::format("# Its batch is that of {} device{}; --devices N says another number.\n", devices,
                        devices == 1 ? "" : "s");
  }
  const std::string lines = lines_of(std::move(keys));
  text += expand ? with_variables(lines) : lines;
  text += remarks("TO BE LOOKED AT, so that the same is learnt", translation.look);
  text += remarks("LEFT OUT, and something else is learnt without", translation.refused);
  text += remarks("Not in this version; the same is learnt without", translation.missing);
  text += remarks("No effect here", translation.no_effect);
  return text;
}

}  // namespace hone
