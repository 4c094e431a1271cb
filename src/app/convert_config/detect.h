// Which tool a configuration was written for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/convert_config/tool.h"

namespace hone {

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
