#include "app/sweep/sweep_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>

#include "config/schema.h"
#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {
namespace {

using Kind = ConfigNode::Kind;

constexpr size_t kMostRuns = 1000, kLongestValue = 40, kLongestName = 150;
const std::vector<std::string> kSections = {"base",   "keys", "grid", "runs", "ranks", "stop_worse", "stop_worse_after",
                                            "halving"};
const std::vector<std::string> kHalvingKeys = {"at", "keep"};
/// Keys that a sweep states itself, for each run.
const std::set<std::string> kOwnKeys = {"output_dir", "run_name", "resume_from_checkpoint", "overwrite_output_dir"};

void expect_kind(const ConfigNode& node, Kind kind, const std::string& what, const std::string& fix) {
  if (node.kind == kind) return;
  throw UserError(fmt::format("{} is '{}', not a {}", what, shown(node), kind == Kind::kMapping ? "mapping" : "list"),
                  node.where, fix);
}

/// A key's canonical name, with its section.
std::string key_named(const std::string& written, const std::string& where) {
  const std::string name = config_name(written);
  const size_t dot = name.find('.');
  const bool inside = dot != std::string::npos && is_section(name.substr(0, dot));
  const FoundKey found =
      inside ? find_key(schema(), name.substr(0, dot), name.substr(dot + 1)) : find_key(schema(), "", name);
  if (!found.key) {
    throw UserError(fmt::format("'{}' is not a key of a run.{}", written, did_you_mean(name, writable_names(schema()))),
                    where, "docs/config.md lists them; a key inside a section is SECTION.KEY");
  }
  if (kOwnKeys.contains(found.key->name)) {
    throw UserError(written + " is stated by the sweep itself, for each run", where, "leave it out");
  }
  return found.key->name;
}

/// A value as it stands after "key=".
std::string word_of(const ConfigNode& node) {
  if (node.kind == Kind::kNull) return "null";
  if (node.kind != Kind::kScalar) return natural_json(node).dump();
  return node.quoted || node.text.empty() ? Json(node.text).dump() : node.text;
}

/// A value as a part of a folder's name: of a path its end.
std::string name_of(const ConfigNode& node) {
  std::string text = node.kind == Kind::kScalar ? node.text : word_of(node);
  if (const size_t slash = text.find_last_of('/'); slash != std::string::npos && slash + 1 < text.size()) {
    text = text.substr(slash + 1);
  }
  std::string name;
  for (const char c : text) {
    const bool fits = std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '+' || c == '-';
    if (fits) {
      name += c;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  name.erase(0, name.find_first_not_of(".-"));
  while (name.ends_with('-')) name.pop_back();
  return name.empty() ? "none" : name.substr(0, kLongestValue);
}

struct Value {
  SweepSetting setting;
  std::string name;  ///< "lora_r-8"
};

class SweepReader {
 public:
  SweepReader(const ConfigNode& root, const std::vector<std::string>& overrides) : root_(root) {
    for (const ConfigMember& member : parse_overrides(overrides).members) add_override(member, "");
  }

  SweepFile read() {
    check_sections();
    if (const ConfigNode* node = root_.find("base")) file_.base = text_of(*node, "base");
    if (const ConfigNode* node = root_.find("keys")) read_keys(*node);
    if (const ConfigNode* node = root_.find("ranks")) file_.ranks = number_of(*node, "ranks", 1);
    if (const ConfigNode* node = root_.find("stop_worse_after"))
      file_.stop_worse_after = number_of(*node, "stop_worse_after", 0);
    if (const ConfigNode* node = root_.find("stop_worse")) {
      if (node->kind != Kind::kScalar || !parse_bool(node->text, file_.stop_worse)) {
        throw UserError(fmt::format("stop_worse is '{}'", shown(*node)), node->where, "use true or false");
      }
    }
    if (const ConfigNode* node = root_.find("halving")) read_halving(*node);
    if (const ConfigNode* node = root_.find("grid")) add_grid(*node);
    if (const ConfigNode* node = root_.find("runs")) add_runs(*node);
    if (file_.runs.empty()) {
      throw UserError("the sweep has no runs", root_.where, "state lists of values under grid, or runs under runs");
    }
    return std::move(file_);
  }

 private:
  void check_sections() const {
    std::set<std::string> names;
    for (const auto& [name, value] : root_.members) {
      if (!names.insert(name).second) throw UserError(name + " is stated twice", value.where, "keep one");
      if (std::find(kSections.begin(), kSections.end(), name) != kSections.end()) continue;
      throw UserError(fmt::format("a sweep has no section '{}'.{}", name, did_you_mean(name, kSections)), value.where,
                      "keys of all runs are under keys, those that vary under grid or runs");
    }
  }

  void add_override(const ConfigMember& member, const std::string& section) {
    const std::string name = section.empty() ? member.name : section + "." + member.name;
    if (section.empty() && is_section(config_name(member.name)) && member.value.kind == Kind::kMapping) {
      for (const ConfigMember& inner : member.value.members) add_override(inner, config_name(member.name));
      return;
    }
    overridden_.insert(key_named(name, member.value.where));
  }

  static std::string text_of(const ConfigNode& node, const char* what) {
    if (node.kind == Kind::kScalar && !node.text.empty()) return node.text;
    throw UserError(fmt::format("{} is '{}', not a text", what, shown(node)), node.where, "");
  }

  static int64_t number_of(const ConfigNode& node, const char* what, double least) {
    double number = 0;
    if (node.kind == Kind::kScalar && parse_number(node.text, number) && number >= least && number <= 1e9 &&
        number == std::floor(number)) {
      return static_cast<int64_t>(number);
    }
    throw UserError(fmt::format("{} is '{}'", what, shown(node)), node.where,
                    fmt::format("use a whole number of at least {}", least));
  }

  void read_keys(const ConfigNode& node) {
    expect_kind(node, Kind::kMapping, "keys", "write key: value");
    for (const auto& [name, value] : node.members)
      file_.keys.emplace_back(key_named(name, value.where), word_of(value));
  }

  void read_halving(const ConfigNode& node) {
    const char* const fix = "write halving: {at: [100, 200], keep: 0.5}";
    expect_kind(node, Kind::kMapping, "halving", fix);
    for (const auto& [name, value] : node.members) {
      if (name == "at") {
        expect_kind(value, Kind::kSequence, "at", fix);
        for (const ConfigNode& item : value.items) {
          const int64_t rung = number_of(item, "a step of halving", 1);
          if (!file_.rungs.empty() && rung <= file_.rungs.back())
            throw UserError("the steps of halving do not ascend", item.where, fix);
          file_.rungs.push_back(rung);
        }
      } else if (name == "keep") {
        if (value.kind != Kind::kScalar || !parse_number(value.text, file_.keep) || file_.keep <= 0 || file_.keep >= 1)
          throw UserError(fmt::format("keep is '{}'", shown(value)), value.where, "use a number between 0 and 1");
      } else {
        throw UserError(fmt::format("halving has no key '{}'.{}", name, did_you_mean(name, kHalvingKeys)), value.where,
                        fix);
      }
    }
    if (file_.rungs.empty()) throw UserError("halving has no steps", node.where, fix);
    if (file_.stop_worse) throw UserError("halving and stop_worse both end runs early", node.where, "keep one");
  }

  Value value_of(const std::string& key, const ConfigNode& node) const {
    if (overridden_.contains(key)) {
      throw UserError(key + " varies in this sweep, and the command line states it for all runs", node.where,
                      "leave out one of the two");
    }
    return {{key, word_of(node)}, key + "-" + name_of(node)};
  }

  void add_grid(const ConfigNode& node) {
    expect_kind(node, Kind::kMapping, "grid", "write key: [values]");
    std::vector<std::vector<Value>> combinations = {{}};
    std::set<std::string> keys;
    for (const auto& [written, values] : node.members) {
      const std::string key = key_named(written, values.where);
      if (!keys.insert(key).second) throw UserError(key + " is stated twice", values.where, "keep one");
      expect_kind(values, Kind::kSequence, written, "write a list of values: [1e-4, 5e-5]");
      if (values.items.empty()) throw UserError(written + " has no values", values.where, "");
      std::vector<std::vector<Value>> longer;
      for (const std::vector<Value>& before : combinations) {
        for (const ConfigNode& item : values.items) {
          longer.push_back(before);
          longer.back().push_back(value_of(key, item));
        }
        if (longer.size() > kMostRuns)
          throw UserError(fmt::format("a sweep has at most {} runs", kMostRuns), node.where, "");
      }
      combinations = std::move(longer);
    }
    if (node.members.empty()) return;
    for (const std::vector<Value>& values : combinations) add(values, "", node.where);
  }

  void add_runs(const ConfigNode& node) {
    expect_kind(node, Kind::kSequence, "runs", "write a list of mappings: - {learning_rate: 1e-4}");
    for (const ConfigNode& item : node.items) {
      expect_kind(item, Kind::kMapping, "an entry of runs", "write - {learning_rate: 1e-4}");
      std::vector<Value> values;
      std::string name;
      for (const auto& [written, value] : item.members) {
        if (written == "name") {
          name = name_of(ConfigNode::scalar(text_of(value, "name"), value.where));
        } else {
          values.push_back(value_of(key_named(written, value.where), value));
        }
      }
      add(values, name, item.where);
    }
  }

  void add(const std::vector<Value>& values, std::string name, const std::string& where) {
    SweepRun run;
    std::string parts;
    for (const Value& value : values) {
      run.settings.push_back(value.setting);
      parts += (parts.empty() ? "" : "_") + value.name;
    }
    run.name = !name.empty() ? name : parts.empty() ? "base" : parts.substr(0, kLongestName);
    std::vector<SweepSetting> sorted = run.settings;
    std::sort(sorted.begin(), sorted.end());
    if (!all_settings_.insert(sorted).second)
      throw UserError("two runs are alike: " + run.name, where, "leave out one");
    if (run.name == "logs" || run.name == "sweep.json" || run.name == "compare.html") {
      throw UserError(run.name + " is the name of something else in the folder of a sweep", where,
                      "choose another name");
    }
    if (!names_.insert(run.name).second) {
      throw UserError("two runs have the name " + run.name, where, "give one of them another name: {name: …}");
    }
    file_.runs.push_back(std::move(run));
    if (file_.runs.size() > kMostRuns)
      throw UserError(fmt::format("a sweep has at most {} runs", kMostRuns), where, "");
  }

  const ConfigNode& root_;
  SweepFile file_;
  std::set<std::string> overridden_, names_;
  std::set<std::vector<SweepSetting>> all_settings_;
};

}  // namespace

std::vector<std::string> SweepFile::words(const SweepRun& run, const std::vector<std::string>& overrides) const {
  std::vector<std::string> words;
  for (const auto& [key, value] : keys) words.push_back(key + "=" + value);
  words.insert(words.end(), overrides.begin(), overrides.end());
  for (const auto& [key, value] : run.settings) words.push_back(key + "=" + value);
  return words;
}

SweepFile parse_sweep(const ConfigNode& root, const std::vector<std::string>& overrides) {
  return SweepReader(root, overrides).read();
}

SweepFile read_sweep_file(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_sweep(read_config_file(path), overrides);
}

}  // namespace hone
