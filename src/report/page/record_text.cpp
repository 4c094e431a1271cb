#include "report/page/record_text.h"

#include "core/base/printable.h"

namespace hone {

namespace {

/// Whether the key of a line "key: value" names a secret.
bool names_secret(std::string_view line) {
  const size_t begin = line.find_first_not_of(" -"), colon = line.find(": ");
  if (colon == std::string_view::npos || begin >= colon) return false;
  const std::string key = in_lower_case(std::string(line.substr(begin, colon - begin)));
  if (key.find(' ') != std::string::npos) return false;
  for (const char* end : {"password", "secret", "api_key", "access_token", "auth_token"}) {
    if (key.ends_with(end)) return true;
  }
  return false;
}

}  // namespace

std::string clipped(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "…";
}

std::string without_secrets(std::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    const bool last = newline == std::string_view::npos;
    std::string line(text.substr(0, newline));
    text.remove_prefix(last ? text.size() : newline + 1);
    const bool empty_value = line.ends_with(": null") || line.ends_with(": \"\"");
    if (names_secret(line) && !empty_value) line = line.substr(0, line.find(": ") + 2) + "…";
    for (size_t at = line.find("://"); at != std::string::npos; at = line.find("://", at + 3)) {
      const size_t begin = at + 3, end = line.find_first_of("/ \t\"'?#,", begin);
      const size_t sign = line.substr(0, end).rfind('@');
      if (sign != std::string::npos && sign > begin) line.replace(begin, sign - begin, "…");
    }
    clean += line;
    if (!last) clean += '\n';
  }
  return clean;
}

}  // namespace hone
