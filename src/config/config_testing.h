// Helpers of the configuration's tests.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "config/config_reader.h"
#include "config/resolve.h"
#include "core/base/error.h"

namespace hone {

/// Resolves text called run.yaml with overrides.
inline ResolvedConfig resolved(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return resolve_config(parse_config_text(yaml, "run.yaml"), parse_overrides(overrides));
}

/// An error as "what | where | fix".
inline std::string text_of(const UserError& error) {
  return error.message() + " | " + error.where() + " | " + error.fix();
}

/// The text of the error that resolving gives; "" if there is none.
inline std::string refusal(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  try {
    (void)resolved(yaml, overrides);
  } catch (const UserError& error) {
    return text_of(error);
  }
  return "";
}

inline bool has_note(const ResolvedConfig& config, const std::string& note) {
  return std::find(config.notes.begin(), config.notes.end(), note) != config.notes.end();
}

}  // namespace hone
