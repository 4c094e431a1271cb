#include "config/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "config/config_value.h"
#include "config/resolve_rules.h"
#include "config/schema.h"
#include "config/tools/tool.h"
#include "core/base/error.h"

namespace hone {
namespace {

using Kind = ConfigNode::Kind;

/// A name as written, and its value.
struct Written {
  std::string name;
  const ConfigNode* value;
};

class NameCheck {
 public:
  void walk(const ConfigNode& mapping, const std::string& section) {
    for (const auto& [raw, value] : mapping.members) {
      const std::string name = config_name(raw);
      const FoundKey found = find_key(schema(), section, name);
      const bool mapped_key = found.key && takes_mapping(*found.key, value);
      if (is_section(name) && value.kind == Kind::kMapping && !mapped_key) {
        walk(value, name);
      } else if (!found.key && !(value.kind == Kind::kNull && (is_section(name) || is_key_of_a_tool(name)))) {
        unknown_.push_back({raw, &value});
      }
    }
  }

  void finish(const ConfigNode& file) const {
    if (unknown_.empty()) return;
    const std::string tool = tool_of(file);
    if (tool.empty()) refuse_ambiguous();
    const auto section = std::find_if(unknown_.begin(), unknown_.end(),
                                      [](const Written& unknown) { return is_section(config_name(unknown.name)); });
    if (section != unknown_.end() && (tool.empty() || unknown_.size() == 1)) {
      throw UserError(fmt::format("'{}' is a section: expected a mapping of keys", section->name),
                      section->value->where, fmt::format("write {}: {{KEY: VALUE}}", section->name));
    }
    throw UserError(what(), unknown_.front().value->where, fix(tool, file));
  }

 private:
  void refuse_ambiguous() const {
    for (const Written& unknown : unknown_) {
      for (const AmbiguousName& ambiguous : ambiguous_names()) {
        if (ambiguous.name != config_name(unknown.name)) continue;
        throw UserError(fmt::format("'{}' is ambiguous: {}", unknown.name, ambiguous.question), unknown.value->where,
                        ambiguous.fix);
      }
    }
  }

  /// The tool that the file was written for, if an unknown key belongs to it; else "".
  std::string tool_of(const ConfigNode& file) const {
    const auto foreign = std::count_if(unknown_.begin(), unknown_.end(), [&](const Written& unknown) {
      return !unknown.value->where.starts_with("command line") && is_key_of_a_tool(config_name(unknown.name));
    });
    if (foreign == 0) return "";
    try {
      return detect_tool(file, "", "").tool->title;
    } catch (const UserError&) {  // the keys do not identify one tool
      return foreign > 1 ? "another tool's" : "";
    }
  }

  std::string what() const {
    std::vector<std::string> names = writable_names(schema());
    for (const std::string& section : section_names()) {  // 'model' is a key as well
      if (std::find(names.begin(), names.end(), section) == names.end()) names.push_back(section);
    }
    if (unknown_.size() == 1) {
      const std::string& name = unknown_.front().name;
      return fmt::format("unknown key '{}'.{}", name, did_you_mean(config_name(name), names));
    }
    constexpr size_t kMostShown = 20;
    std::string list;
    for (size_t i = 0; i < std::min(unknown_.size(), kMostShown); ++i) {
      const Written& unknown = unknown_[i];
      list += fmt::format("{}'{}' ({})", list.empty() ? "" : ", ", unknown.name, unknown.value->where);
      const std::string hint = did_you_mean(config_name(unknown.name), names);
      if (!hint.empty() && !is_key_of_a_tool(config_name(unknown.name))) list += hint;
    }
    if (unknown_.size() > kMostShown) list += fmt::format(" and {} more", unknown_.size() - kMostShown);
    return fmt::format("{} unknown keys: {}", unknown_.size(), list);
  }

  static std::string fix(const std::string& tool, const ConfigNode& file) {
    if (tool.empty()) return "correct the name: `hone schema` lists every key";
    const std::string path = file.where.substr(0, file.where.rfind(':'));
    return fmt::format("this looks like {}: hone convert-config {}", tool, path);
  }

  std::vector<Written> unknown_;
};

}  // namespace

void check_names(const ConfigNode& file, const ConfigNode& overrides) {
  NameCheck check;
  check.walk(file, "");
  check.walk(overrides, "");
  check.finish(file);
}

namespace {

/// Whether a name is one of KTransformers' keys, which mean nothing without use_kt.
bool is_of_kt(const std::string& name) { return name.starts_with("kt_") || name.starts_with("accelerate_kt_"); }

/// The last statement of use_kt in a tree; null if there is none.
const ConfigNode* use_kt_of(const ConfigNode& mapping) {
  const ConfigNode* last = nullptr;
  for (const auto& [raw, value] : mapping.members) {
    const std::string name = config_name(raw);
    if (name == "use_kt" && value.kind != Kind::kNull) last = &value;
    if (!is_section(name) || value.kind != Kind::kMapping) continue;
    if (const ConfigNode* inside = use_kt_of(value)) last = inside;
  }
  return last;
}

/// Collects the statements about each key from both trees, the command line first: lines of the file about its keys are
/// not read.
class Collector {
 public:
  Collector(const ConfigNode& file, const ConfigNode& overrides) {
    const ConfigNode* use_kt = use_kt_of(overrides);
    if (use_kt == nullptr) use_kt = use_kt_of(file);
    bool on = true;
    if (use_kt != nullptr && parse_bool(use_kt->text, on) && !on) kt_is_off_ = use_kt->where;
    walk(overrides, "", true);
    walk(file, "", false);
  }

  /// Selects one statement per key, in the order of the schema.
  ResolvedConfig finish() {
    forget_overridden_families();
    for (const KeySpec& key : schema()) {
      const auto found = statements_.find(key.name);
      if (found == statements_.end()) continue;
      const Statement chosen = chosen_statement(found->second);
      key.store(config_.run, chosen.value);
      config_.stated[key.name] = chosen.where;
    }
    config_.notes.insert(config_.notes.end(), command_line_notes_.begin(), command_line_notes_.end());
    return std::move(config_);
  }

 private:
  void walk(const ConfigNode& mapping, const std::string& section, bool from_command_line) {
    for (const auto& [raw, value] : mapping.members) {
      const std::string name = config_name(raw);
      if (!kt_is_off_.empty() && is_of_kt(name)) {
        if (value.kind == Kind::kNull) continue;
        note(fmt::format("{} has no effect: use_kt is false at {} ({})", name, kt_is_off_, value.where),
             from_command_line);
        continue;
      }
      const FoundKey found = find_key(schema(), section, name);
      const bool mapped_key = found.key && takes_mapping(*found.key, value);
      if (is_section(name) && value.kind == Kind::kMapping && !mapped_key) {
        walk(value, name, from_command_line);
      } else if (found.key) {
        state(found, name, value, from_command_line);
        state_also(found.key->also, name, value, from_command_line);
        if (found.alias != nullptr) state_also(found.alias->also, name, value, from_command_line);
      }
    }
  }

  void state_also(const std::vector<AlsoStates>& states, const std::string& written, const ConfigNode& value,
                  bool from_command_line) {
    for (const AlsoStates& also : states) {
      const Alias meaning{written, also.rewrite};
      state({&key_spec(also.key), &meaning}, written, value, from_command_line);
    }
  }

  void note(std::string line, bool of_command_line = false) {
    if (noted_.insert(line).second) (of_command_line ? command_line_notes_ : config_.notes).push_back(std::move(line));
  }

  void note_replaced(const std::string& said, const std::string& where, const std::string& by) {
    note(fmt::format("{} ({}) is replaced by {}", said, where, by), true);
  }

  void state(const FoundKey& found, const std::string& written, const ConfigNode& value, bool from_command_line) {
    if (found.key->status == KeyStatus::kNoEffect && value.kind != Kind::kNull) {
      note(fmt::format("{} has no effect: {} ({})", written, found.key->help, value.where), from_command_line);
    }
    if (!from_command_line && is_replaced(*found.key, written, value)) return;
    std::optional<Statement> statement = read_statement(found, written, value);
    if (!statement) {
      if (from_command_line) take_back(*found.key, written, value);
      return;
    }
    note_name(*statement, written, value, from_command_line);
    statement->from_command_line = from_command_line;
    std::vector<Statement>& all = statements_[statement->key->name];
    // Statements of the file come before those of the command line, although they were read later.
    all.insert(from_command_line ? all.end() : all.begin() + in_front_[statement->key->name]++, std::move(*statement));
  }

  /// For an override that states nothing (null, or a disabled switch): removes the file's statements with the same
  /// name.
  void take_back(const KeySpec& key, const std::string& written, const ConfigNode& value) {
    const bool whole = value.kind == Kind::kNull || key.status == KeyStatus::kLater;
    taken_back_.insert(whole ? key.name : key.name + " as " + written);
  }

  /// Whether the command line replaces the file's statement. Mappings are merged instead.
  bool is_replaced(const KeySpec& key, const std::string& written, const ConfigNode& value) {
    if (taken_back_.contains(key.name) || taken_back_.contains(key.name + " as " + written)) return true;
    const auto found = statements_.find(key.name);
    if (key.type == KeyType::kMapping || found == statements_.end()) return false;
    const Statement& last = found->second.back();
    if (!last.from_command_line) return false;
    if (last.written != written) note_replaced(said(written, value), value.where, last.where);
    return true;
  }

  void note_name(const Statement& statement, const std::string& written, const ConfigNode& value,
                 bool from_command_line) {
    const std::string& name = statement.key->name;
    if (value.kind == Kind::kNull || name == written || name.ends_with("." + written)) return;
    if (shown(value) == statement.meant) {
      note(fmt::format("{} is called {} here ({})", written, name, value.where), from_command_line);
    } else {
      note(fmt::format("{} is called {}: {} here ({})", statement.said, name, statement.meant, value.where),
           from_command_line);
    }
  }

  void forget_overridden_families() {
    const auto overridden = [&](const std::string& name) {
      const auto found = statements_.find(name);
      return found != statements_.end() && found->second.back().from_command_line &&
             !found->second.back().value.is_null();
    };
    for (const auto& family : key_families()) {
      const auto by = std::find_if(family.begin(), family.end(), overridden);
      if (by == family.end()) continue;
      for (const std::string& name : family) {
        const auto found = statements_.find(name);
        if (overridden(name) || found == statements_.end()) continue;
        const Statement& replaced = found->second.back();
        if (!replaced.value.is_null()) {
          note_replaced(replaced.said, replaced.where, statements_[*by].back().where);
        }
        statements_.erase(found);
      }
    }
    // An override of the micro-batch keeps the global batch if the file states one.
    if (overridden("per_device_train_batch_size") && !overridden("gradient_accumulation_steps") &&
        statements_.contains("global_batch_size")) {
      statements_.erase("gradient_accumulation_steps");
    }
  }

  ResolvedConfig config_;
  std::map<std::string, std::vector<Statement>> statements_;
  std::map<std::string, int64_t> in_front_;  ///< how many of statements_ are from the file
  std::set<std::string> taken_back_;         ///< keys, or "KEY as NAME"
  std::vector<std::string> command_line_notes_;
  std::set<std::string> noted_;
  std::string kt_is_off_;  ///< where use_kt is false; "": nowhere
};

}  // namespace

ResolvedConfig resolve_config(const ConfigNode& file, const ConfigNode& overrides, RanksOfRun ranks, RuleUse use) {
  check_names(file, overrides);
  ResolvedConfig config = Collector(file, overrides).finish();
  config.run.machine.ranks = ranks.all;
  config.run.machine.ranks_of_host = ranks.of_host.value_or(ranks.all);
  apply_rules(config, use);
  return config;
}

namespace {

/// KTransformers' environment variables that are set. Hone ignores them: it has configuration keys instead.
std::set<std::string> unread_environment() {
  std::set<std::string> set;
  for (std::string name : writable_names(schema())) {
    const auto begins = [&](std::string_view with) { return name.starts_with(with); };
    if (!begins("accelerate_kt_") && !begins("kt_") && !begins("sft_") && name != "use_kt") continue;
    for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (std::getenv(name.c_str()) != nullptr) set.insert(name);
  }
  return set;
}

}  // namespace

ResolvedConfig load_config(const std::string& path, const std::vector<std::string>& overrides, RanksOfRun ranks) {
  ResolvedConfig config =
      resolve_config(path.empty() ? ConfigNode() : read_config_file(path), parse_overrides(overrides), ranks);
  if (const std::set<std::string> names = unread_environment(); !names.empty()) {
    config.notes.push_back(
        fmt::format("not read from the environment: {}; write what they say into the configuration, "
                    "under the same names",
                    fmt::join(names, ", ")));
  }
  return config;
}

void refuse(const ResolvedConfig& config, const std::string& key, const std::string& why, const std::string& instead) {
  throw UserError(why, where(config, key), instead);
}

void require_keys(const ResolvedConfig& config, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (config.states(name)) continue;
    throw UserError(
        fmt::format("{} is not stated", name), name,
        fmt::format("write {}: VALUE ({}) in the configuration, or {}=VALUE on the command line; `hone init "
                    "MODEL --data FILE` writes both",
                    name, expectation(key_spec(name)), name));
  }
}

}  // namespace hone
