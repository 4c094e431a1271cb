// Tools whose configurations are translated: what each of their keys means here, as tables of text (tool_*.cpp).
//
// Keys whose names the schema knows need no rule. The others have one line each:
//   name = key              the same under another name
//   name = key: value       a switch: true says `value`
//   name = key.member       a member of a key that takes a mapping
//   name = key {a: b, …}    values in other words
//   name @ tool             a mapping, or the path of a file, that another tool's table reads
//   name ~ why              no effect
//   name - why              not in this version; what is learnt is the same without
//   name ? why              what is learnt is the same if what `why` says holds: somebody has to look
//   name ! why              would change what is learnt, and is not in this version
// A name may be a path (zero_optimization.stage), end in * and carry the value that says nothing: stage(sft).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/config/config_reader.h"
#include "app/config/schema.h"

namespace hone {

struct ToolRule {
  enum class Kind { kMeans, kFile, kNoEffect, kMissing, kLook, kRefused };

  std::string name;     ///< with underscores; a trailing * stands for any end
  std::string neutral;  ///< the value that says nothing besides null, false, 0, none and empty ones; may be ""
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
  std::string base;                   ///< the tool whose rules hold where this one has none; may be ""
  std::vector<std::string> programs;  ///< names of scripts and commands
  std::vector<std::string> marks;     ///< keys by which its files are known
  std::vector<ToolRule> rules;
  ConfigNode defaults;       ///< what it does where nothing is stated, in our words
  ConfigNode lora_defaults;  ///< the same, with adapters
  std::string note;          ///< about its data: what has to hold for the same to be learnt; may be ""
};

/// Every tool, in the order of the documentation.
const std::vector<Tool>& tools();

/// The tool called `name`; nullptr if there is none.
const Tool* find_tool(std::string_view name);

/// The rule of a tool or its base for a path; nullptr if there is none. Exact names win over those with *.
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

// Which tool a configuration was written for.

struct DetectedTool {
  const Tool* tool = nullptr;
  std::vector<std::string> by;  ///< the names that say so
};

/// Whether a tool has a key of this name, whatever it becomes here.
bool is_key_of_a_tool(std::string_view name);

/// The tool that `program` (of a script; may be "") belongs to, else the one whose keys are most of those in `root`.
/// Throws UserError, naming the candidates, if none fits or two fit as well.
DetectedTool detect_tool(const ConfigNode& root, const std::string& program, const std::string& where);

}  // namespace hone
