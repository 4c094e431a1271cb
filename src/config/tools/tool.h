// The tools whose configurations convert-config translates. Tables of text (tool_*.cpp) define the meaning of their
// keys.
//
// Keys with names of the schema need no rule. Each other key has one line:
//   name = key              the same under another name
//   name = key: value       a switch: true states `value`
//   name = key.member       a member of a key (or of another name of one) that takes a mapping
//   name = key {a: b, …}    values with other spellings
//   name @ tool             a mapping, or the path of a file, that another tool's table reads
//   name ~ why              no effect
//   name - why              not in this version; training is the same without it
//   name ? why              training is the same under the condition `why`, which the user must check
//   name ! why              would change training, and is not in this version
// A name may be a path (zero_optimization.stage), may end in *, and may have a neutral value in brackets: stage(sft).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config_reader.h"
#include "config/schema.h"

namespace hone {

struct ToolRule {
  enum class Kind { kMeans, kFile, kNoEffect, kMissing, kLook, kRefused };

  std::string name;     ///< with underscores; a trailing * matches any suffix
  std::string neutral;  ///< a neutral value in addition to null, false, 0, none and empty values; may be ""
  Kind kind = Kind::kNoEffect;
  const KeySpec* key = nullptr;  ///< kMeans
  Alias alias;                   ///< kMeans
  std::string tool;              ///< kFile
  std::string why;

  bool matches(std::string_view path) const;
};

struct Tool {
  std::string name;                   ///< --from NAME
  std::string title;                  ///< "LLaMA-Factory"
  std::string base;                   ///< the tool whose rules apply to keys without a rule here; may be ""
  std::vector<std::string> programs;  ///< names of scripts and commands
  std::vector<std::string> marks;     ///< keys that identify its files
  std::vector<ToolRule> rules;
  ConfigNode defaults;       ///< its defaults, as Hone's keys
  ConfigNode lora_defaults;  ///< its defaults with adapters
  std::string note;          ///< a condition on its data under which training is the same; may be ""
};

/// The value of a key of a source, spelled with dashes or not; nullptr where it is not stated, or null.
const ConfigNode* find_stated(const ConfigNode& root, std::string_view name);
/// Whether it is stated and true.
bool is_on(const ConfigNode& root, std::string_view name);

/// Every tool, in the order of the documentation.
const std::vector<Tool>& tools();

/// "axolotl, llama-factory, …": the tools that --from takes.
std::string tool_names();

/// The tool called `name`; nullptr if there is none.
const Tool* find_tool(std::string_view name);

/// The rule of a tool or its base for a path; nullptr if there is none. Exact names have precedence over names with *.
const ToolRule* find_rule(const Tool& tool, std::string_view path);

/// Whether there are rules for members of `path`.
bool has_member_rules(const Tool& tool, std::string_view path);

/// The texts of one tool's table.
struct ToolText {
  const char* name;
  const char* title;
  const char* base;
  std::vector<std::string> programs;
  std::vector<std::string> marks;
  const char* rules;
  const char* defaults;
  const char* lora_defaults;
  const char* note = "";
};

// The tables (tool_*.cpp).
ToolText axolotl_text();
ToolText llama_factory_text();
ToolText llama_factory_v1_text();
ToolText transformers_text();
ToolText trl_text();
ToolText unsloth_text();
ToolText swift_text();
ToolText qwen3_sft_text();
ToolText kt_text();
ToolText node_guide_text();
ToolText mixtral_guide_text();
ToolText fms_text();
ToolText deepspeed_text();
ToolText fsdp_text();
ToolText accelerate_text();

// Detection of the tool that a configuration was written for.

struct DetectedTool {
  const Tool* tool = nullptr;
  std::vector<std::string> by;  ///< the keys that identify it
};

/// Whether a tool has a key of this name.
bool is_key_of_a_tool(std::string_view name);

/// The tool of `program` (from a script; may be ""), else the tool with the most keys in `root`. Throws UserError with
/// the candidates if no tool matches, or if two match equally.
DetectedTool detect_tool(const ConfigNode& root, const std::string& program, const std::string& where);

}  // namespace hone
