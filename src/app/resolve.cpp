#include "app/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "app/config_value.h"
#include "app/schema.h"
#include "core/error.h"

namespace hone {
namespace {

using Kind = ConfigNode::Kind;

/// What one line says about a key.
struct Statement {
  Json value;
  Emphasis emphasis = Emphasis::kPlain;
  std::string said;  ///< "lr: 1e-4", as written
  std::string where;
  bool from_command_line = false;
};

/// Keys that say the same thing in other units: an override of one replaces what the file says by any of them.
const std::vector<std::vector<std::string>> kFamilies = {
    {"warmup_steps", "warmup_ratio"},
    {"min_lr", "min_lr_ratio"},
    {"gradient_accumulation_steps", "global_batch_size", "tokens_per_step"},
    {"chat_template", "chat_template_file"},
};

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

bool is_section(const std::string& name) {
  const auto& names = section_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// A mapping under this name is the key's value, not a section of the same name.
bool takes_mapping(const KeySpec& key, const ConfigNode& value) {
  return key.type == KeyType::kMapping || (key.type == KeyType::kDatasets && value.find("path"));
}

/// Walks the trees and gathers the statements about each key.
class Collector {
 public:
  void walk(const ConfigNode& mapping, const std::string& section, bool from_command_line) {
    for (const auto& [raw, value] : mapping.members) {
      const std::string name = underscored(raw);
      const FoundKey found = find_key(schema(), section, name);
      const bool mapped_key = found.key && takes_mapping(*found.key, value);
      if (is_section(name) && value.kind == Kind::kMapping && !mapped_key) {
        walk(value, name, from_command_line);
      } else if (found.key) {
        state(found, name, value, from_command_line);
      } else if (!is_section(name) || value.kind != Kind::kNull) {
        unknown(raw, name, value);
      }
    }
  }

  /// The statement that counts for each key, in the order of the schema.
  ResolvedConfig finish() {
    forget_overridden_families();
    for (const KeySpec& key : schema()) {
      const auto found = statements_.find(key.name);
      if (found == statements_.end()) continue;
      const Statement chosen = choose(key, found->second);
      key.store(config_.run, chosen.value);
      config_.stated[key.name] = chosen.where;
    }
    return std::move(config_);
  }

 private:
  void unknown(const std::string& raw, const std::string& name, const ConfigNode& value) const {
    if (is_section(name))
      throw UserError(fmt::format("'{}' is a section: expected a mapping of keys", raw), value.where);
    for (const AmbiguousName& ambiguous : ambiguous_names()) {
      if (ambiguous.name != name) continue;
      throw UserError(fmt::format("'{}' is ambiguous: {}", raw, ambiguous.question), value.where, ambiguous.fix);
    }
    std::vector<std::string> names = writable_names(schema());
    names.insert(names.end(), section_names().begin(), section_names().end());
    throw UserError(fmt::format("unknown key '{}'.{}", raw, did_you_mean(name, names)), value.where,
                    "hone schema lists every key");
  }

  void note(std::string line) {
    if (noted_.insert(line).second) config_.notes.push_back(std::move(line));
  }

  void state(const FoundKey& found, const std::string& written, const ConfigNode& value, bool from_command_line) {
    const KeySpec* key = found.key;
    if (key->status == KeyStatus::kNoEffect) {
      if (value.kind != Kind::kNull) note(fmt::format("{} has no effect: {} ({})", written, key->help, value.where));
      return;
    }
    Rewritten meant{value};
    if (found.alias && found.alias->rewrite) meant = found.alias->rewrite(value);
    if (meant.emphasis == Emphasis::kNothing) return;
    if (key->status == KeyStatus::kLater) return check_later(*key, meant.value, said(written, value));
    if (key->redirect && meant.value.kind == Kind::kScalar) {
      const std::string other = key->redirect(meant.value);
      if (!other.empty()) key = &key_spec(other);
    }
    if (key->rewrite) meant.value = key->rewrite(meant.value).value;
    const std::optional<Json> parsed = parse_value(*key, meant.value, written);
    if (!parsed) return;
    if (parsed->is_null()) meant.emphasis = Emphasis::kWeak;  // max_steps: -1 yields to train_steps: 100
    note_name(*key, written, value, meant.value);
    statements_[key->name].push_back({*parsed, meant.emphasis, said(written, value), value.where, from_command_line});
  }

  void note_name(const KeySpec& key, const std::string& written, const ConfigNode& value, const ConfigNode& meant) {
    if (value.kind == Kind::kNull || key.name == written || key.name.ends_with("." + written)) return;
    if (shown(value) == shown(meant)) {
      note(fmt::format("{} is called {} here ({})", written, key.name, value.where));
    } else {
      note(
          fmt::format("{}: {} is called {}: {} here ({})", written, shown(value), key.name, shown(meant), value.where));
    }
  }

  void forget_overridden_families() {
    const auto overridden = [&](const std::string& name) {
      const auto found = statements_.find(name);
      return found != statements_.end() && found->second.back().from_command_line;
    };
    for (const auto& family : kFamilies) {
      if (std::none_of(family.begin(), family.end(), overridden)) continue;
      for (const std::string& name : family) {
        if (!overridden(name)) statements_.erase(name);
      }
    }
    // A micro-batch of another size keeps the global batch where the file states one.
    if (overridden("per_device_train_batch_size") && !overridden("gradient_accumulation_steps") &&
        statements_.contains("global_batch_size")) {
      statements_.erase("gradient_accumulation_steps");
    }
  }

  static Statement choose(const KeySpec& key, std::vector<Statement> all) {
    if (key.type == KeyType::kMapping) return merge(key, all);
    if (all.back().from_command_line) return all.back();
    const auto strongest = std::max_element(
        all.begin(), all.end(), [](const Statement& a, const Statement& b) { return a.emphasis < b.emphasis; });
    for (const Statement& other : all) {
      if (other.emphasis == strongest->emphasis && other.value != strongest->value) refuse_two(key, *strongest, other);
    }
    return *strongest;
  }

  [[noreturn]] static void refuse_two(const KeySpec& key, const Statement& first, const Statement& second) {
    throw UserError(fmt::format("{} is stated twice with different values: '{}' ({}) and '{}' ({})", key.name,
                                first.said, first.where, second.said, second.where),
                    second.where, "keep one of them");
  }

  /// Mappings add up; a member stated twice must agree, or the command line wins.
  static Statement merge(const KeySpec& key, const std::vector<Statement>& all) {
    Statement result = all.front();
    for (const Statement& other : all) {
      for (const auto& [name, value] : other.value.items()) {
        const bool differs = result.value.contains(name) && result.value[name] != value;
        if (differs && !other.from_command_line) refuse_two(key, result, other);
        result.value[name] = value;
      }
    }
    return result;
  }

  ResolvedConfig config_;
  std::map<std::string, std::vector<Statement>> statements_;
  std::set<std::string> noted_;
};

}  // namespace

ResolvedConfig resolve_config(const ConfigNode& file, const ConfigNode& overrides) {
  Collector collector;
  collector.walk(file, "", false);
  collector.walk(overrides, "", true);
  ResolvedConfig config = collector.finish();
  apply_rules(config);
  return config;
}

ResolvedConfig load_config(const std::string& path, const std::vector<std::string>& overrides) {
  return resolve_config(path.empty() ? ConfigNode() : read_config_file(path), parse_overrides(overrides));
}

void require_keys(const ResolvedConfig& config, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (config.states(name)) continue;
    throw UserError(fmt::format("{} is not stated", name), name, key_spec(name).help);
  }
}

}  // namespace hone
