// Builders with which schema_table_*.cpp describe the rows of the schema.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/schema.h"
#include "core/text/json.h"

namespace hone {

// The parts of the schema's table, one file each. schema.cpp combines them.

void add_model_keys(std::vector<KeySpec>& table);    ///< model, method, LoRA, router, precision, parallelism
void add_data_keys(std::vector<KeySpec>& table);     ///< data sets, length, packing, templates
void add_train_keys(std::vector<KeySpec>& table);    ///< schedule, batch, optimizer, machine
void add_run_keys(std::vector<KeySpec>& table);      ///< output, checkpoints, evaluation, generation
void add_foreign_keys(std::vector<KeySpec>& table);  ///< keys that only other tools have
void add_ignored_keys(std::vector<KeySpec>& table);  ///< recognised, no effect
void add_dataset_keys(std::vector<KeySpec>& table);  ///< one entry of datasets

/// Converts a field of RunConfig to Json and back: an unset optional and an empty string are null.
template <class Field>
struct FieldCodec {
  static constexpr bool kNullable = false;
  static Json to_json(const Field& field) { return field; }
  static Field from_json(const Json& json) { return json.get<Field>(); }
};

template <>
struct FieldCodec<std::string> {
  static constexpr bool kNullable = false;
  static Json to_json(const std::string& field) { return field.empty() ? Json(nullptr) : Json(field); }
  static std::string from_json(const Json& json) { return json.is_null() ? "" : json.get<std::string>(); }
};

template <>
struct FieldCodec<BaseFormat> {
  static constexpr bool kNullable = false;
  static Json to_json(const BaseFormat& field) { return field.name(); }
  static BaseFormat from_json(const Json& json) { return BaseFormat::parse(json, "base_weight_dtype"); }
};

template <>
struct FieldCodec<ExpertFormat> {
  static constexpr bool kNullable = false;
  static Json to_json(const ExpertFormat& field) { return field.name(); }
  static ExpertFormat from_json(const Json& json) { return ExpertFormat::parse(json, "expert_weight_dtype"); }
};

template <>
struct FieldCodec<ResumeFrom> {
  static constexpr bool kNullable = false;
  static Json to_json(const ResumeFrom& field) { return FieldCodec<std::string>::to_json(field.text()); }
  static ResumeFrom from_json(const Json& json) { return ResumeFrom(FieldCodec<std::string>::from_json(json)); }
};

/// A list out of a closed set.
template <NamedChoice Value>
struct FieldCodec<std::vector<Value>> {
  static constexpr bool kNullable = false;
  static Json to_json(const std::vector<Value>& field) { return names_of(field); }
  static std::vector<Value> from_json(const Json& json) { return choices_called<Value>(json); }
};

template <std::derived_from<JsonValue> Field>
struct FieldCodec<Field> {
  static constexpr bool kNullable = false;
  static Json to_json(const Field& field) { return *field; }
  static Field from_json(const Json& json) { return json; }
};

template <class Value>
struct FieldCodec<std::optional<Value>> {
  static constexpr bool kNullable = true;
  static Json to_json(const std::optional<Value>& field) { return field ? Json(*field) : Json(nullptr); }
  static std::optional<Value> from_json(const Json& json) {
    return json.is_null() ? std::nullopt : std::optional<Value>(json.get<Value>());
  }
};

template <>
struct FieldCodec<std::vector<DatasetConfig>> {
  static constexpr bool kNullable = false;
  static Json to_json(const std::vector<DatasetConfig>& field);
  static std::vector<DatasetConfig> from_json(const Json& json);
};

template <class Field>
constexpr KeyType key_type_of() {
  if constexpr (std::is_same_v<Field, bool> || std::is_same_v<Field, std::optional<bool>>) return KeyType::kBool;
  if constexpr (std::is_same_v<Field, int64_t> || std::is_same_v<Field, std::optional<int64_t>>) {
    return KeyType::kInteger;
  }
  if constexpr (std::is_same_v<Field, double> || std::is_same_v<Field, std::optional<double>>) return KeyType::kNumber;
  if constexpr (std::is_same_v<Field, std::vector<std::string>>) return KeyType::kStringList;
  if constexpr (std::derived_from<Field, JsonValue>) return KeyType::kMapping;
  if constexpr (std::is_same_v<Field, std::vector<DatasetConfig>>) return KeyType::kDatasets;
  return KeyType::kString;
}

/// Describes one row; each call returns the row for the next.
class KeyBuilder {
 public:
  explicit KeyBuilder(KeySpec& spec) : spec_(spec) {}

  /// Binds the key to a field of RunConfig, and takes type and default from it.
  template <class Section, class Field>
  KeyBuilder& field(Section RunConfig::*section, Field Section::*member) {
    using Codec = FieldCodec<Field>;
    spec_.type = key_type_of<Field>();
    spec_.nullable = Codec::kNullable;
    spec_.store = [=](RunConfig& run, const Json& value) { (run.*section).*member = Codec::from_json(value); };
    spec_.load = [=](const RunConfig& run) { return Codec::to_json((run.*section).*member); };
    spec_.default_value = spec_.load(RunConfig());
    return *this;
  }
  /// The same for a closed set, which has all choices of the key.
  template <class Section, NamedChoice Value>
  KeyBuilder& field(Section RunConfig::*section, Value Section::*member) {
    return field(section, member, all_choices<Value>());
  }
  template <class Section, NamedChoice Value>
  KeyBuilder& field(Section RunConfig::*section, std::vector<Value> Section::*member) {
    field<Section, std::vector<Value>>(section, member);
    spec_.type = KeyType::kStringList;
    return choices(names_of(all_choices<Value>()));
  }
  /// The same, if the key takes these values of a type with name_of().
  template <class Section, class Value>
  KeyBuilder& field(Section RunConfig::*section, Value Section::*member, const std::vector<Value>& values) {
    spec_.store = [=](RunConfig& run, const Json& name) {
      (run.*section).*member = choice_called(name.get<std::string>(), values);
    };
    spec_.load = [=](const RunConfig& run) {
      return FieldCodec<std::string>::to_json(std::string(name_of((run.*section).*member)));
    };
    spec_.default_value = spec_.load(RunConfig());
    return choices(names_of(values));
  }
  /// Other names whose values have the same meaning.
  KeyBuilder& alias(std::initializer_list<const char*> names) {
    for (const char* name : names) spec_.aliases.push_back({name, {}});
    return *this;
  }
  /// Another name whose value is rewritten.
  KeyBuilder& alias(const char* name, Rewrite rewrite) {
    spec_.aliases.push_back({name, std::move(rewrite)});
    return *this;
  }
  /// The same, if the value also states other keys.
  KeyBuilder& alias(const char* name, Rewrite rewrite, std::vector<AlsoStates> also) {
    spec_.aliases.push_back({name, std::move(rewrite), std::move(also)});
    return *this;
  }
  /// The value also states other keys, under any name.
  KeyBuilder& also(std::vector<AlsoStates> states) {
    spec_.also = std::move(states);
    return *this;
  }
  KeyBuilder& adds_up() {
    spec_.adds_up = true;
    return *this;
  }
  KeyBuilder& type(KeyType type) {
    spec_.type = type;
    return *this;
  }
  KeyBuilder& choices(std::vector<std::string> values) {
    if (spec_.type != KeyType::kStringList) spec_.type = KeyType::kChoice;
    spec_.choices = std::move(values);
    return *this;
  }
  /// One of the choices may be followed by a colon and a number.
  KeyBuilder& numbered(std::string choice) {
    spec_.numbered_choice = std::move(choice);
    return *this;
  }
  KeyBuilder& later(std::vector<std::string> values) {
    spec_.later_choices = std::move(values);
    return *this;
  }
  KeyBuilder& spelled(std::map<std::string, std::string> values) {
    spec_.choice_aliases = std::move(values);
    return *this;
  }
  KeyBuilder& unset(std::vector<std::string> texts) {
    spec_.unset_texts = std::move(texts);
    return *this;
  }
  KeyBuilder& rewrite(Rewrite rule) {
    spec_.rewrite = std::move(rule);
    return *this;
  }
  KeyBuilder& at_least(double value) {
    spec_.range.minimum = value;
    return *this;
  }
  KeyBuilder& at_most(double value) {
    spec_.range.maximum = value;
    return *this;
  }
  KeyBuilder& above(double value) {
    spec_.range.minimum_open = true;
    return at_least(value);
  }
  KeyBuilder& below(double value) {
    spec_.range.maximum_open = true;
    return at_most(value);
  }
  KeyBuilder& redirect(std::function<std::string(const ConfigNode&)> rule) {
    spec_.redirect = std::move(rule);
    return *this;
  }
  KeyBuilder& default_note(std::string note) {
    spec_.default_note = std::move(note);
    return *this;
  }
  /// The hint for a feature that is not in this version.
  KeyBuilder& instead(std::string what) {
    spec_.instead = std::move(what);
    return *this;
  }
  KeyBuilder& neutral(Json value) {
    spec_.default_value = std::move(value);
    return *this;
  }

 private:
  KeySpec& spec_;
};

/// Adds the rows of one group to a table.
class GroupBuilder {
 public:
  GroupBuilder(std::vector<KeySpec>& table, std::string group) : table_(table), group_(std::move(group)) {}

  /// A supported key; bind it with field().
  KeyBuilder key(const char* name, const char* help) { return row(name, KeyStatus::kSupported, help); }

  /// A known key that is not in this version. Accepts only `neutral`, null, false, 0, "none" and empty values.
  KeyBuilder later(const char* name, KeyType type, const char* help) {
    return row(name, KeyStatus::kLater, help).type(type);
  }

  /// A key that cannot change the mathematics; `why` is the reason.
  KeyBuilder no_effect(const char* name, const char* why) { return row(name, KeyStatus::kNoEffect, why); }

 private:
  KeyBuilder row(const char* name, KeyStatus status, const char* help) {
    KeySpec& spec = table_.emplace_back();
    spec.name = name;
    spec.group = group_;
    spec.status = status;
    spec.help = help;
    return KeyBuilder(spec);
  }

  std::vector<KeySpec>& table_;
  std::string group_;
};

}  // namespace hone
