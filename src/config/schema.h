// The schema: one table of all configuration keys. Parsing (resolve.h), docs/config.md and the JSON Schema
// (schema_docs.h), and config.resolved.yaml (resolved_yaml.h) use it.
#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/config_reader.h"
#include "config/run_config.h"
#include "core/text/json_value.h"

namespace hone {

/// kNamed: a name, or the mapping that the name abbreviates.
enum class KeyType {
  kBool,
  kInteger,
  kNumber,
  kSize,
  kString,
  kPath,
  kChoice,
  kStringList,
  kMapping,
  kNamed,
  kDatasets
};

enum class KeyStatus {
  kSupported,
  kLater,     ///< known, not in this version: any value but a neutral one is refused
  kNoEffect,  ///< accepted with an info line, because it cannot change the mathematics
};

/// The precedence of a statement among several about one key. Two of the same emphasis must agree.
enum class Emphasis {
  kNothing,  ///< states nothing ("adapter: null")
  kWeak,     ///< yields to any other ("assistant_only_loss: false")
  kPlain,
  kDecisive,  ///< has precedence ("use_auxiliary_loss: false" with a weight)
};

/// The meaning of an alias's value for its key.
struct Rewritten {
  ConfigNode value;
  Emphasis emphasis = Emphasis::kPlain;
};

/// A rule that rewrites values; empty: no rewriting.
class Rewrite {
 public:
  Rewrite() = default;
  /// `of_switch`: the rule rewrites true and false.
  template <class Rule>
  requires(!std::same_as<Rule, Rewrite>) Rewrite(Rule rule, bool of_switch = false)
      : rule_(std::move(rule)), of_switch_(of_switch) {}

  explicit operator bool() const { return static_cast<bool>(rule_); }
  Rewritten operator()(const ConfigNode& node) const { return rule_(node); }
  bool of_switch() const { return of_switch_; }

 private:
  std::function<Rewritten(const ConfigNode&)> rule_;
  bool of_switch_ = false;
};

/// What the value of an alias states about a key other than the alias's.
struct AlsoStates {
  std::string key;
  Rewrite rewrite;
};

/// Another name of a key. `name` may be qualified by its section ("moe.enabled"); dashes are read as underscores.
struct Alias {
  std::string name;
  Rewrite rewrite;  ///< empty: the value means the same under both names
  std::vector<AlsoStates> also = {};
};

struct Range {
  std::optional<double> minimum, maximum;
  bool minimum_open = false, maximum_open = false;  ///< the bound itself is not allowed

  /// Whether a value, as it stands, is inside.
  bool holds(double value) const {
    const bool low = minimum && (minimum_open ? value <= *minimum : value < *minimum);
    const bool high = maximum && (maximum_open ? value >= *maximum : value > *maximum);
    return !low && !high;
  }
};

/// One row of the table.
struct KeySpec {
  std::string name;  ///< canonical; "generation.top_k" is written inside the section generation
  std::string group;
  KeyType type = KeyType::kString;
  KeyStatus status = KeyStatus::kSupported;
  std::string help;          ///< one sentence; for kNoEffect: why it has no effect
  std::string instead;       ///< the hint if the value is not in this version; "" = remove it
  JsonValue default_value;   ///< null: unset
  std::string default_note;  ///< describes a default that depends on other keys, the model or the data
  bool nullable = false;     ///< null is a value of its own
  bool adds_up = false;      ///< kStringList: the items of several statements in a file are combined
  std::vector<Alias> aliases;
  std::vector<AlsoStates> also;  ///< what the value states about other keys, under any name
  Range range;
  std::vector<std::string> choices;                   ///< kChoice, and the items of a kStringList if not empty
  std::string numbered_choice;                        ///< a choice that may be followed by a number: "cuda:1"
  std::vector<std::string> later_choices;             ///< known values, not in this version
  std::map<std::string, std::string> choice_aliases;  ///< other spellings of choices
  std::vector<std::string> unset_texts;               ///< values that mean "not stated", such as -1 or auto
  Rewrite rewrite;                                    ///< applied to the value under any name
  /// The canonical name of another key to which the value belongs, or "" (warmup_steps: 0.1 is a ratio).
  std::function<std::string(const ConfigNode&)> redirect;

  /// Moves the value in and out of RunConfig; empty for keys that are not kSupported.
  std::function<void(RunConfig&, const Json&)> store;
  std::function<Json(const RunConfig&)> load;

  bool is_choice(std::string_view value) const;
};

/// Every key, in the order of the documentation.
const std::vector<KeySpec>& schema();

/// The keys of one entry of `datasets`; they have no store and load.
const std::vector<KeySpec>& dataset_schema();

/// Names of sections: mappings that only group keys.
const std::vector<std::string>& section_names();
bool is_section(std::string_view name);

/// A name in the schema's spelling: dashes become underscores, and an environment variable's name lower case.
std::string config_name(std::string name);

/// Whether a mapping under this key is its value, not a section of the same name.
bool takes_mapping(const KeySpec& key, const ConfigNode& value);

/// Keys with the same meaning in other units: an override of one replaces the file's statements of all of them.
const std::vector<std::vector<std::string>>& key_families();

/// A name with different meanings in different tools, and the question for the user.
struct AmbiguousName {
  std::string name, question, fix;
};
const std::vector<AmbiguousName>& ambiguous_names();

/// A key found under a written name; `alias` is nullptr if that is its canonical name.
struct FoundKey {
  const KeySpec* key = nullptr;
  const Alias* alias = nullptr;
};

/// Finds `name` (with underscores) inside `section` ("" at the top level); key is nullptr if it is unknown.
FoundKey find_key(const std::vector<KeySpec>& table, std::string_view section, std::string_view name);

/// The row called `name`. It must exist.
const KeySpec& key_spec(std::string_view name);

/// All accepted names, for suggestions: canonical names first, then aliases.
std::vector<std::string> writable_names(const std::vector<KeySpec>& table);

/// A phrase for the values that the key takes: "an integer of at least 1", "one of full, lora".
std::string expectation(const KeySpec& key);

}  // namespace hone
