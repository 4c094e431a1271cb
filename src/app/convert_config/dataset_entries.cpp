#include "app/convert_config/dataset_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <sstream>
#include <utility>

#include "config/config_value.h"
#include "core/base/error.h"
#include "data/formats/column_mapping.h"
#include "data/readers/dataset_files.h"
#include "data/readers/split_slice.h"

namespace hone {
namespace {

using Kind = ConfigNode::Kind;

ConfigNode quoted(const ConfigNode& place, std::string text) {
  ConfigNode node = ConfigNode::scalar(std::move(text), place.where);
  node.quoted = true;
  return node;
}

ConfigNode mapping(const ConfigNode& place) { return ConfigNode::empty(Kind::kMapping, place.where); }

/// Axolotl's names of Alpaca's prompt. The part after the colon is its variant.
constexpr std::array<std::pair<const char*, const char*>, 5> kPrompts = {{{"alpaca", "alpaca"},
                                                                          {"alpaca:instruct", "alpaca"},
                                                                          {"alpaca:chat", "alpaca_chat"},
                                                                          {"alpaca:chatml", "alpaca_chatml"},
                                                                          {"alpaca:phi", "alpaca_phi"}}};

/// Whether a value is empty or `neutral`, or a list of such.
bool says_only(const ConfigNode& value, const std::string& neutral) {
  if (value.kind == Kind::kScalar) return value.text == neutral;
  return value.members.empty() && std::all_of(value.items.begin(), value.items.end(),
                                              [&](const ConfigNode& item) { return says_only(item, neutral); });
}

std::string text_of(const ConfigNode& type, const char* member, const char* otherwise) {
  const ConfigNode* found = type.find(member);
  return found && found->kind == Kind::kScalar ? found->text : otherwise;
}

/// Converts type: {field_instruction: …, format: …}, with Axolotl's defaults for missing members.
std::vector<ConfigMember> user_defined(const ConfigNode& type, Translation& result) {
  ConfigNode columns = mapping(type), prompt = mapping(type);
  for (const char* ours : {"instruction", "input", "output", "system"}) {
    const std::string column = text_of(type, (std::string("field_") + ours).c_str(), ours);
    if (column != ours) columns.members.emplace_back(ours, quoted(type, column));
  }
  prompt.members.emplace_back("format", quoted(type, text_of(type, "format", "{instruction} {input} ")));
  prompt.members.emplace_back("no_input_format", quoted(type, text_of(type, "no_input_format", "{instruction} ")));
  for (const char* name : {"system_format", "system_prompt"}) {
    const std::string text = text_of(type, name, "");
    if (!text.empty()) prompt.members.emplace_back(name, quoted(type, text));
  }
  for (const auto& [name, value] : type.members) {
    const bool known = name.starts_with("field_") || name == "format" || name == "no_input_format" ||
                       name == "system_format" || name == "system_prompt";
    if (!known && value.kind != Kind::kNull) {
      result.refused.push_back({fmt::format("datasets: type: {}: {}", name, shown(value)), value.where,
                                "no key of a prompt that is known here"});
    }
  }
  std::vector<ConfigMember> members = {{"type", quoted(type, "alpaca")}, {"prompt_template", std::move(prompt)}};
  if (!columns.members.empty()) members.emplace_back("column_mapping", std::move(columns));
  return members;
}

}  // namespace

std::vector<ConfigMember> members_of_type(const ConfigNode& type, Translation& result) {
  if (type.kind == Kind::kMapping) return user_defined(type, result);
  if (type.kind != Kind::kScalar) return {};
  for (const auto& [name, prompt] : kPrompts) {
    if (type.text == name) return {{"type", quoted(type, "alpaca")}, {"prompt_template", quoted(type, prompt)}};
  }
  if (type.text == "chat_template.default") return {{"type", quoted(type, "messages")}};
  if (type.text == "pretrain") {
    result.look.push_back({"datasets: type: pretrain", type.where,
                           "texts need not run on from one to the next: they do not see each other here"});
    return {{"type", quoted(type, "text")}};
  }
  return {};
}

void add_thinking(const ConfigNode& item, ConfigNode& entry, Translation& result) {
  const std::string field = text_of(item, "field_thinking", "reasoning_content");
  const std::string key = text_of(item, "template_thinking_key", "reasoning_content");
  if (field == key) return;  // the template gets keys of a message under their own names
  if (key != "reasoning_content" && key != "thinking") {
    const ConfigNode* place = item.find("template_thinking_key");
    result.refused.push_back({fmt::format("datasets: template_thinking_key: {}", key), place->where,
                              fmt::format("call the key of the rows {}, as the template does", key)});
    return;
  }
  ConfigNode columns = mapping(item);
  columns.members.emplace_back(key, quoted(item, field));
  entry.members.emplace_back("column_mapping", std::move(columns));
}

namespace {

ConfigNode scalar(const ConfigNode& place, std::string text) {
  return ConfigNode::scalar(std::move(text), place.where);
}

bool is_v1(const Tool& tool) { return tool.name == "llama-factory-v1"; }

bool reads_dataset_info(const Tool& tool) {
  return tool.name == "llama-factory" || (!tool.base.empty() && reads_dataset_info(*find_tool(tool.base)));
}

class EntryReader {
 public:
  EntryReader(const DatasetSource& source, Translation& result) : source_(source), result_(result) {}

  ConfigNode read(const ConfigNode& value) {
    ConfigNode list = ConfigNode::empty(Kind::kSequence, value.where);
    const auto add = [&](const ConfigNode& item) {
      if (is_v1(source_.tool) && item.text.ends_with(".yaml")) return add_listed(item, list);
      if (item.kind == Kind::kMapping) return list.items.push_back(entry(item));
      for (const std::string& name : names_in(item.text)) {
        const bool is_file = kind_of_file(name) != FileKind::kOther;
        list.items.push_back(is_file ? looked_for(scalar(item, name)) : named(scalar(item, name)));
      }
    };
    for (const ConfigNode& item : value.listed()) add(item);
    return list;
  }

 private:
  /// Adds the entries of a file of LLaMA-Factory's v1: names, each with path, source, converter and size.
  void add_listed(const ConfigNode& file, ConfigNode& list) {
    for (const std::filesystem::path& place :
         {std::filesystem::path(source_.folder) / file.text, std::filesystem::path(file.text)}) {
      if (!std::filesystem::is_regular_file(place)) continue;
      for (const auto& [name, info] : read_config_file(place.string(), Variables::kKeep).members)
        list.items.push_back(of_v1(name, info));
      return;
    }
    result_.look.push_back({"train_dataset: " + file.text, file.where,
                            "the list of data sets is not here: put the path and the type of each"});
    list.items.push_back(scalar(file, file.text));
  }

  ConfigNode of_v1(const std::string& name, const ConfigNode& info) {
    ConfigNode entry = mapping(info);
    // The name of a data set of the hub is its configuration.
    const ConfigNode* source = info.find("source");
    if (source == nullptr || source->text != "hf_hub") entry.members.emplace_back("name", scalar(info, name));
    for (const auto& [key, value] : info.members) {
      const std::string said = fmt::format("{}: {}: {}", name, key, shown(value));
      if (key == "path") {
        entry.members.emplace_back("path", value);
        look_for(value);
      } else if (key == "converter" && value.text != "pair") {
        entry.members.emplace_back("type", value);
      } else if (key == "size" || key == "split") {
        entry.members.emplace_back(key == "size" ? "samples" : "split", value);
      } else if (key == "weight" && value.text != "1" && value.text != "1.0") {
        entry.members.emplace_back(key, value);
      } else if (key == "source" || key == "weight" || key == "streaming" || value.kind == Kind::kNull) {
        continue;
      } else {
        const char* pairs = "preference pairs are not trained on in this version";
        result_.refused.push_back(
            {said, value.where, key == "converter" ? pairs : "no key of a data set that is known here"});
      }
    }
    return checked(entry);
  }

  /// Splits LLaMA-Factory's names at commas; in other tools the text is one path.
  std::vector<std::string> names_in(const std::string& text) const {
    if (!reads_dataset_info(source_.tool)) return {text};
    std::vector<std::string> names;
    std::stringstream stream(text);
    for (std::string name; std::getline(stream, name, ',');) {
      const size_t first = name.find_first_not_of(' ');
      if (first != std::string::npos) names.push_back(name.substr(first, name.find_last_not_of(' ') - first + 1));
    }
    return names;
  }

  ConfigNode named(const ConfigNode& name) {
    if (!reads_dataset_info(source_.tool)) return looked_for(name);
    const ConfigNode* folder = source_.root.find("dataset_dir");
    const std::filesystem::path data = folder ? folder->text : "data";
    const ConfigNode* most = source_.root.find("max_samples");
    ConfigNode result = mapping(name);
    for (const std::filesystem::path& place : {std::filesystem::path(source_.folder) / data, data}) {
      const std::filesystem::path info = place / "dataset_info.json";
      if (!std::filesystem::is_regular_file(info)) continue;
      const ConfigNode all = read_config_file(info.string(), Variables::kKeep);
      const ConfigNode* found = all.find(name.text);
      if (!found) throw UserError(fmt::format("there is no data set '{}'", name.text), info.string());
      result = from_info(*found, place, name);
      break;
    }
    if (!result.find("path")) {
      result.members.emplace_back("path", scalar(name, (data / (name.text + ".json")).string()));
      result_.look.push_back({"dataset: " + name.text, name.where,
                              "dataset_info.json is missing: state the path and the type of the file"});
    }
    if (most && most->kind == Kind::kScalar && !result.find("samples")) result.members.emplace_back("samples", *most);
    return result;
  }

  /// Converts an entry of dataset_info.json.
  ConfigNode from_info(const ConfigNode& info, const std::filesystem::path& folder, const ConfigNode& name) {
    ConfigNode entry = mapping(name);
    for (const auto& [key, value] : info.members) {
      if (key == "file_name" && info.find("hf_hub_url") != nullptr) {
        continue;
      } else if (key == "file_name") {
        entry.members.emplace_back("path", scalar(value, (folder / value.text).string()));
      } else if (key == "formatting") {
        entry.members.emplace_back("type", value);
      } else if (key == "ranking" && value.text != "true") {
        continue;
      } else if (key == "columns" || key == "tags" || key == "num_samples" || key == "split") {
        add_member(entry, key, value);
      } else if (key == "hf_hub_url") {
        entry.members.emplace_back("path", value);
        if (const ConfigNode* subset = info.find("subset")) entry.members.emplace_back("name", *subset);
        if (info.find("split") == nullptr) entry.members.emplace_back("split", scalar(value, "train"));
      } else if (key.ends_with("hub_url") && !info.find("hf_hub_url") && !entry.find("path")) {
        entry.members.emplace_back("path", value);
        result_.look.push_back({fmt::format("{}: {}: {}", name.text, key, shown(value)), value.where,
                                "it is of another hub than Hugging Face's: download it there, and put its path"});
      } else if (key == "ranking") {
        result_.refused.push_back({fmt::format("{}: {}: {}", name.text, key, shown(value)), value.where,
                                   "preference pairs are not trained on in this version"});
      } else if (key != "subset" && key != "folder" && !key.ends_with("hub_url")) {
        result_.refused.push_back(
            {fmt::format("{}: {}: {}", name.text, key, shown(value)), value.where, "data sets are files here"});
      }
    }
    const ConfigNode* stage = source_.root.find("stage");
    if (stage && stage->text == "pt") {
      go_on_with_texts(info, entry, name);
    } else if (!entry.find("type")) {
      entry.members.emplace_back("type", scalar(name, "alpaca"));
    }
    // The name of a data set of the hub is its configuration.
    if (info.find("hf_hub_url") == nullptr) entry.members.emplace_back("name", name);
    return checked(entry);
  }

  /// Stage pt: uses the prompt's column as the text.
  static void go_on_with_texts(const ConfigNode& info, ConfigNode& entry, const ConfigNode& name) {
    const ConfigNode* columns = info.find("columns");
    const ConfigNode* prompt = columns ? columns->find("prompt") : nullptr;
    std::erase_if(entry.members, [](const ConfigMember& member) {
      return member.name == "type" || member.name == "columns" || member.name == "tags";
    });
    entry.members.emplace_back("type", scalar(name, "text"));
    ConfigNode text = mapping(name);
    text.members.emplace_back("text", prompt ? *prompt : scalar(name, "instruction"));
    entry.members.emplace_back("column_mapping", std::move(text));
  }

  ConfigNode entry(const ConfigNode& item) {
    ConfigNode entry = mapping(item);
    const bool axolotl = source_.tool.name == "axolotl";
    if (axolotl) add_thinking(item, entry, result_);
    for (const auto& [raw, value] : item.members) {
      const std::string name = config_name(raw);
      if (axolotl && (name == "field_thinking" || name == "template_thinking_key")) continue;
      const std::vector<ConfigMember> typed =
          axolotl && name == "type" ? members_of_type(value, result_) : std::vector<ConfigMember>();
      if (!typed.empty()) {
        entry.members.insert(entry.members.end(), typed.begin(), typed.end());
        continue;
      }
      const ToolRule* rule = find_rule(source_.tool, "datasets." + name);
      if (!rule) {
        add_member(entry, name, value);
      } else if (!says_only(value, rule->neutral)) {
        auto& remarks = rule->kind == ToolRule::Kind::kLook ? result_.look : result_.refused;
        remarks.push_back({fmt::format("datasets: {}: {}", name, shown(value)), value.where, rule->why});
      }
    }
    if (const ConfigNode* path = entry.find("path")) look_for(*path);
    return checked(entry);
  }

  void add_member(ConfigNode& entry, const std::string& name, const ConfigNode& value) {
    const FoundKey found = find_key(dataset_schema(), "", name);
    if (!found.key) {
      result_.refused.push_back({fmt::format("datasets: {}: {}", name, shown(value)), value.where,
                                 fmt::format("no key of an entry that is known here.{}",
                                             did_you_mean(name, writable_names(dataset_schema())))});
      return;
    }
    if (found.key->status == KeyStatus::kNoEffect) return;
    entry.members.emplace_back(found.alias && found.alias->rewrite ? found.key->name : name,
                               found.alias && found.alias->rewrite ? found.alias->rewrite(value).value : value);
  }

  /// The entry without invalid members; adds a remark for each of them.
  ConfigNode checked(const ConfigNode& entry) {
    ConfigNode kept = entry;
    kept.members.clear();
    for (const auto& [name, value] : entry.members) {
      ConfigNode alone = entry;
      alone.members = {{name, value}};
      if (name != "path") alone.members.emplace_back("path", scalar(entry, "x"));
      try {
        const std::optional<Json> read = parse_value(key_spec("datasets"), alone, "datasets");
        if (name == "column_mapping" || name == "columns")
          (void)ColumnMapping::parse(read->front().value("column_mapping", Json()), value.where);
        if (name == "split" || name == "train_on_split") (void)parse_split(value.text);
        kept.members.emplace_back(name, value);
      } catch (const UserError& error) {
        const bool prompt = name == "type" && source_.tool.name == "axolotl";
        const std::string why =
            prompt ? "this type of Axolotl's is not here; a prompt of one's own is written as type: {format: …}"
                   : error.message();
        result_.refused.push_back({fmt::format("datasets: {}: {}", name, shown(value)), value.where, why});
      }
    }
    return kept;
  }

  /// A path as it is.
  ConfigNode looked_for(const ConfigNode& path) {
    look_for(path);
    return path;
  }

  void look_for(const ConfigNode& path) {
    std::string file = path.text.substr(0, path.text.rfind('#'));
    if (file.find("${") != std::string::npos || std::filesystem::exists(file)) return;
    result_.look.push_back(
        {"datasets: " + path.text, path.where, "the file does not exist: state the path of the data"});
  }

  const DatasetSource& source_;
  Translation& result_;
};

}  // namespace

ConfigNode dataset_entries(const DatasetSource& source, const ConfigNode& value, Translation& result) {
  if (value.kind == Kind::kNull) return value;
  return EntryReader(source, result).read(value);
}

}  // namespace hone
