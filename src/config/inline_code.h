#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

namespace hone {

/// Text as code within a line of Markdown: "`text`".
inline std::string in_code(std::string_view text) { return fmt::format("`{}`", text); }

/// Words as code within a line of Markdown: "`adamw`, `sgd`"; "" of none.
inline std::string list_in_code(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + in_code(word);
  return text;
}

}  // namespace hone
