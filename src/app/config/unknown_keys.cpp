#include "app/config/unknown_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/config/schema.h"
#include "app/convert_config/detect.h"
#include "core/error.h"

namespace hone {
namespace {

using Kind = ConfigNode::Kind;

/// A name as it is written, and its value.
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
    if (unknown_.size() == 1 && is_section(config_name(unknown_.front().name))) {
      throw UserError(fmt::format("'{}' is a section: expected a mapping of keys", unknown_.front().name),
                      unknown_.front().value->where, fmt::format("write {}: {{KEY: VALUE}}", unknown_.front().name));
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

  /// The tool that the file was written for, if one of the unknown keys is its own; "" else.
  std::string tool_of(const ConfigNode& file) const {
    const auto foreign = std::count_if(unknown_.begin(), unknown_.end(), [&](const Written& unknown) {
      return !unknown.value->where.starts_with("command line") && is_key_of_a_tool(config_name(unknown.name));
    });
    if (foreign == 0) return "";
    try {
      return detect_tool(file, "", "").tool->title;
    } catch (const UserError&) {  // several tools have these keys, or none is known by them
      return foreign > 1 ? "another tool's" : "";
    }
  }

  std::string what() const {
    std::vector<std::string> names = writable_names(schema());
    names.insert(names.end(), section_names().begin(), section_names().end());
    if (unknown_.size() == 1) {
      const std::string& name = unknown_.front().name;
      return fmt::format("unknown key '{}'.{}", name, did_you_mean(config_name(name), names));
    }
    std::string list;
    for (const Written& unknown : unknown_) {
      list += fmt::format("{}'{}' ({})", list.empty() ? "" : ", ", unknown.name, unknown.value->where);
      const std::string hint = did_you_mean(config_name(unknown.name), names);
      if (!hint.empty() && !is_key_of_a_tool(config_name(unknown.name))) list += hint;
    }
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

}  // namespace hone
