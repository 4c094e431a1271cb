#include "app/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "app/schema.h"
#include "app/statement.h"
#include "core/error.h"

namespace hone {
namespace {

using Kind = ConfigNode::Kind;

/// Walks the trees and gathers the statements about each key.
class Collector {
 public:
  void walk(const ConfigNode& mapping, const std::string& section, bool from_command_line) {
    for (const auto& [raw, value] : mapping.members) {
      const std::string name = config_name(raw);
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
      const Statement chosen = chosen_statement(found->second);
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
    if (found.key->status == KeyStatus::kNoEffect && value.kind != Kind::kNull) {
      note(fmt::format("{} has no effect: {} ({})", written, found.key->help, value.where));
    }
    std::optional<Statement> statement = read_statement(found, written, value);
    if (!statement) return;
    note_name(*statement, written, value);
    statement->from_command_line = from_command_line;
    statements_[statement->key->name].push_back(std::move(*statement));
  }

  void note_name(const Statement& statement, const std::string& written, const ConfigNode& value) {
    const std::string& name = statement.key->name;
    if (value.kind == Kind::kNull || name == written || name.ends_with("." + written)) return;
    if (shown(value) == statement.meant) {
      note(fmt::format("{} is called {} here ({})", written, name, value.where));
    } else {
      note(fmt::format("{} is called {}: {} here ({})", statement.said, name, statement.meant, value.where));
    }
  }

  void forget_overridden_families() {
    const auto overridden = [&](const std::string& name) {
      const auto found = statements_.find(name);
      return found != statements_.end() && found->second.back().from_command_line;
    };
    for (const auto& family : key_families()) {
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

  ResolvedConfig config_;
  std::map<std::string, std::vector<Statement>> statements_;
  std::set<std::string> noted_;
};

}  // namespace

ResolvedConfig resolve_config(const ConfigNode& file, const ConfigNode& overrides, int64_t ranks) {
  Collector collector;
  collector.walk(file, "", false);
  collector.walk(overrides, "", true);
  ResolvedConfig config = collector.finish();
  config.run.machine.ranks = ranks;
  apply_rules(config);
  return config;
}

ResolvedConfig load_config(const std::string& path, const std::vector<std::string>& overrides, int64_t ranks) {
  return resolve_config(path.empty() ? ConfigNode() : read_config_file(path), parse_overrides(overrides), ranks);
}

void require_keys(const ResolvedConfig& config, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (config.states(name)) continue;
    throw UserError(fmt::format("{} is not stated", name), name, key_spec(name).help);
  }
}

}  // namespace hone
