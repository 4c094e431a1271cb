#include "config/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <unordered_map>
#include <utility>

#include "config/schema_builder.h"
#include "core/base/error.h"
#include "core/base/printable.h"

namespace hone {
namespace {

std::vector<KeySpec> build_schema() {
  std::vector<KeySpec> table;
  add_model_keys(table);
  add_data_keys(table);
  add_train_keys(table);
  add_run_keys(table);
  add_foreign_keys(table);
  add_ignored_keys(table);
  return table;
}

using Index = std::unordered_map<std::string_view, FoundKey>;

Index build_index(const std::vector<KeySpec>& table) {
  Index index;
  for (const KeySpec& key : table) {
    HONE_ASSERT(index.emplace(key.name, FoundKey{&key, nullptr}).second, key.name);
    for (const Alias& alias : key.aliases) {
      HONE_ASSERT(index.emplace(alias.name, FoundKey{&key, &alias}).second, alias.name);
    }
  }
  return index;
}

const Index& index_of(const std::vector<KeySpec>& table) {
  static const Index of_schema = build_index(schema());
  static const Index of_datasets = build_index(dataset_schema());
  return &table == &schema() ? of_schema : of_datasets;
}

std::string number_range(const KeySpec& key, std::string noun) {
  const Range& range = key.range;
  if (range.minimum && range.maximum) {
    return fmt::format("{} in {}{}, {}{}", noun, range.minimum_open ? '(' : '[', *range.minimum, *range.maximum,
                       range.maximum_open ? ')' : ']');
  }
  if (range.minimum) return fmt::format("{} {} {}", noun, range.minimum_open ? "above" : "of at least", *range.minimum);
  return noun;
}

}  // namespace

/// Further keys of an entry of type code.
constexpr const char* kCodeKeys[] = {"languages",  "kinds",         "max_tokens",       "overlap",
                                     "min_tokens", "include_tests", "exclude_patterns", "max_file_size"};

Json FieldCodec<std::vector<DatasetConfig>>::to_json(const std::vector<DatasetConfig>& field) {
  Json list = Json::array();
  for (const DatasetConfig& entry : field) {
    Json object = {{"path", entry.path}, {"type", entry.type}};
    if (entry.samples) object["samples"] = *entry.samples;
    if (!entry.name.empty()) object["name"] = entry.name;
    if (!entry.revision.empty()) object["revision"] = entry.revision;
    if (!entry.split.empty()) object["split"] = entry.split;
    if (entry.weight) object["weight"] = *entry.weight;
    if (!entry.column_mapping.empty()) object["column_mapping"] = entry.column_mapping;
    if (!entry.ignore_columns.empty()) object["ignore_columns"] = entry.ignore_columns;
    if (!entry.delimiter.empty()) object["delimiter"] = entry.delimiter;
    if (!entry.prompt_template.is_null()) object["prompt_template"] = entry.prompt_template;
    if (entry.drop_system_message) object["drop_system_message"] = true;
    for (const auto& [name, value] : entry.code->items()) object[name] = value;
    list.push_back(std::move(object));
  }
  return list;
}

std::vector<DatasetConfig> FieldCodec<std::vector<DatasetConfig>>::from_json(const Json& json) {
  std::vector<DatasetConfig> list;
  for (const Json& object : json) {
    DatasetConfig entry;
    entry.path = object.at("path");
    entry.type = object.value("type", entry.type);
    if (object.contains("samples")) entry.samples = object["samples"].get<int64_t>();
    entry.name = object.value("name", "");
    entry.revision = object.value("revision", "");
    entry.split = object.value("split", "");
    if (object.contains("weight")) entry.weight = object["weight"].get<double>();
    entry.column_mapping = object.value("column_mapping", *entry.column_mapping);
    entry.ignore_columns = object.value("ignore_columns", entry.ignore_columns);
    entry.delimiter = object.value("delimiter", "");
    entry.prompt_template = object.value("prompt_template", *entry.prompt_template);
    entry.drop_system_message = object.value("drop_system_message", false);
    for (const char* name : kCodeKeys) {
      if (object.contains(name)) entry.code[name] = object[name];
    }
    list.push_back(std::move(entry));
  }
  return list;
}

bool KeySpec::is_choice(std::string_view value) const {
  const size_t colon = value.find(':');
  if (!numbered_choice.empty() && colon != std::string_view::npos && value.substr(0, colon) == numbered_choice) {
    const std::string_view number = value.substr(colon + 1);
    return !number.empty() && number.size() <= 3 && number.find_first_not_of("0123456789") == std::string_view::npos;
  }
  return std::find(choices.begin(), choices.end(), value) != choices.end();
}

const std::vector<KeySpec>& schema() {
  static const std::vector<KeySpec> table = build_schema();
  return table;
}

const std::vector<KeySpec>& dataset_schema() {
  static const std::vector<KeySpec> table = [] {
    std::vector<KeySpec> keys;
    add_dataset_keys(keys);
    return keys;
  }();
  return table;
}

const std::vector<std::string>& section_names() {
  static const std::vector<std::string> names = {
      "model",
      "model_args",
      "method",
      "lora",
      "peft",
      "moe",
      "scattermoe",
      "data",
      "data_args",
      "dataset",
      "training",
      "training_args",
      "train",
      "trainer",
      "optimizer",
      "scheduler",
      "lr_scheduler_kwargs",
      "advanced",
      "validation",
      "evaluation",
      "eval",
      "checkpoint",
      "logging",
      "output",
      "inference",
      "generation",
      "generating_args",
      "finetuning_args",
      "post_training",
      "hardware",
      "repository",
      "tokenizer",
      "wandb",
      "mlflow",
      "kt_config",
  };
  return names;
}

bool is_section(std::string_view name) {
  const auto& names = section_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string config_name(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  const bool shouted = std::none_of(name.begin(), name.end(), [](unsigned char c) { return std::islower(c); });
  return shouted ? in_lower_case(std::move(name)) : name;
}

bool takes_mapping(const KeySpec& key, const ConfigNode& value) {
  return key.type == KeyType::kMapping || (key.type == KeyType::kDatasets && value.find("path"));
}

const std::vector<std::vector<std::string>>& key_families() {
  static const std::vector<std::vector<std::string>> families = {
      {"warmup_steps", "warmup_ratio"},
      {"min_lr", "min_lr_ratio"},
      {"gradient_accumulation_steps", "global_batch_size", "tokens_per_step"},
      {"chat_template", "chat_template_file"},
      {"num_train_epochs", "max_steps"},
      {"save_steps", "saves_per_epoch", "save_steps_ratio"},
      {"eval_steps", "evals_per_epoch", "eval_steps_ratio"},
      {"logging_steps", "logging_steps_ratio"},
  };
  return families;
}

const std::vector<AmbiguousName>& ambiguous_names() {
  static const std::vector<AmbiguousName> names = {
      {"batch_size", "some tools mean one micro-batch on one device by it, others a whole optimizer step: which is it?",
       "write per_device_train_batch_size for the first, global_batch_size for the second"},
      {"train_batch_size",
       "some tools mean one micro-batch on one device by it, others a whole optimizer step: which is it?",
       "write per_device_train_batch_size for the first, global_batch_size for the second"},
  };
  return names;
}

FoundKey find_key(const std::vector<KeySpec>& table, std::string_view section, std::string_view name) {
  const Index& index = index_of(table);
  if (!section.empty()) {
    const auto qualified = index.find(fmt::format("{}.{}", section, name));
    if (qualified != index.end()) return qualified->second;
  }
  const auto plain = index.find(name);
  return plain == index.end() ? FoundKey{} : plain->second;
}

const KeySpec& key_spec(std::string_view name) {
  const KeySpec* key = find_key(schema(), "", name).key;
  HONE_ASSERT(key != nullptr, std::string(name));
  return *key;
}

std::vector<std::string> writable_names(const std::vector<KeySpec>& table) {
  std::vector<std::string> names;
  for (const KeySpec& key : table) names.push_back(key.name);
  for (const KeySpec& key : table) {
    for (const Alias& alias : key.aliases) names.push_back(alias.name);
  }
  return names;
}

std::string expectation(const KeySpec& key) {
  switch (key.type) {
    case KeyType::kBool:
      return "true or false";
    case KeyType::kInteger:
      return number_range(key, "an integer");
    case KeyType::kNumber:
      return number_range(key, "a number");
    case KeyType::kSize:
      return "a size such as 5GB, 500MiB or a number of bytes";
    case KeyType::kString:
      return "text";
    case KeyType::kPath:
      return "a path";
    case KeyType::kChoice:
      return fmt::format("one of {}{}", fmt::join(key.choices, ", "),
                         key.numbered_choice.empty() ? "" : fmt::format(", {}:N", key.numbered_choice));
    case KeyType::kStringList:
      if (!key.choices.empty()) return fmt::format("a list out of {}", fmt::join(key.choices, ", "));
      return "a list of texts";
    case KeyType::kMapping:
      return "a mapping";
    case KeyType::kNamed:
      return "a name or a mapping";
    case KeyType::kDatasets:
      return "a path, a list of paths, or a list of entries with path";
  }
  return "";
}

}  // namespace hone
