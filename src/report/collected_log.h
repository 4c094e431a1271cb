// The first words of errors and warnings on the console.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

namespace hone {

/// Set by the scripts of hone launch, which collect what processes of several hosts print: the words there are those of
/// run.log, so that `grep ERROR logs/*.log` finds what went wrong.
inline constexpr const char* kCollectedLog = "HONE_COLLECTED_LOG";

inline bool is_collected_log() {
  const char* value = std::getenv(kCollectedLog);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

inline const char* error_label() { return is_collected_log() ? "ERROR: " : "error: "; }
inline const char* warning_label() { return is_collected_log() ? "WARNING: " : "warning: "; }

/// The text of an error ("error: what\n  where: …") with the label of this process.
inline std::string with_error_label(std::string text) {
  constexpr std::string_view kUsual = "error: ";
  return text.starts_with(kUsual) ? error_label() + text.substr(kUsual.size()) : text;
}

}  // namespace hone
