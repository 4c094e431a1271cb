#include "data/readers/code/code_items.h"

#include <cctype>

namespace hone {
namespace {

std::string_view trimmed(std::string_view line) {
  const size_t first = line.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

size_t StructureScanner::skip_space(size_t at, size_t end) const {
  while (at < end && std::isspace(static_cast<unsigned char>(code_[at]))) ++at;
  return at;
}

std::string_view StructureScanner::word_at(size_t at) const {
  size_t end = at;
  while (end < code_.size() && is_word(code_[end])) ++end;
  return code_.substr(at, end - at);
}

size_t StructureScanner::behind_bracket(size_t at, size_t end) const {
  int depth = 0;
  for (; at < end; ++at) {
    const char c = code_[at];
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (depth <= 0) return at + 1;
  }
  return end;
}

size_t StructureScanner::find_outside(size_t at, size_t end, std::string_view what) const {
  while (at < end) {
    const char c = code_[at];
    if (what.find(c) != std::string_view::npos) return at;
    at = c == '(' || c == '[' || c == '{' ? behind_bracket(at, end) : at + 1;
  }
  return end;
}

size_t StructureScanner::line_begin(size_t at) const {
  const size_t end = at == 0 ? std::string_view::npos : text_.rfind('\n', at - 1);
  return end == std::string_view::npos ? 0 : end + 1;
}

size_t StructureScanner::with_comments_above(size_t at, size_t limit) const {
  size_t begin = line_begin(at);
  // Other code on the same line: the comments above do not belong to the item.
  if (begin < limit || !trimmed(code_.substr(begin, at - begin)).empty()) return at;
  while (begin > limit) {
    const size_t above = line_begin(begin - 1);
    const std::string_view line = trimmed(text_.substr(above, begin - 1 - above));
    if (above < limit) break;
    if (line.starts_with("//") && !line.starts_with("//!")) {
      begin = above;
    } else if (line.ends_with("*/")) {
      const size_t open = text_.rfind("/*", begin - 1);
      if (open == std::string_view::npos || open < limit) break;
      const size_t first = line_begin(open);
      if (first < limit || !trimmed(text_.substr(first, open - first)).empty()) break;
      begin = first;
    } else {
      break;
    }
  }
  return begin;
}

std::vector<CodeItem> code_items(std::string_view text, CodeLanguage language) {
  const std::string structure = code_structure(text, language);
  switch (language) {
    case CodeLanguage::kRust:
      return rust_items(text, structure);
    case CodeLanguage::kCpp:
      return cpp_items(text, structure);
    case CodeLanguage::kPython:
      return python_items(text, structure);
  }
  return {};
}

}  // namespace hone
