#include <algorithm>

#include "data/readers/code/code_items.h"

namespace hone {
namespace {

/// A logical line: physical lines joined by brackets, triple quotes and backslashes.
struct Line {
  size_t begin = 0, first = 0, end = 0;  ///< first: the first non-blank character; end: after the last
  size_t indent = 0;
  bool blank = false;
};

class PythonScanner : public StructureScanner {
 public:
  using StructureScanner::StructureScanner;

  std::vector<CodeItem> run() {
    for (size_t at = 0; at < code_.size();) lines_.push_back(read_line(at));
    scope(0, lines_.size(), 0);
    return std::move(items_);
  }

 private:
  /// Reads a logical line and moves `at` to its end.
  Line read_line(size_t& at) const {
    Line line;
    line.begin = line.first = at;
    while (line.first < code_.size() && (code_[line.first] == ' ' || code_[line.first] == '\t')) {
      line.indent += code_[line.first] == '\t' ? 8 - line.indent % 8 : 1;
      ++line.first;
    }
    int depth = 0;
    char triple = 0;
    for (at = line.first; at < code_.size(); ++at) {
      const char c = code_[at];
      if ((c == '"' || c == '\'') && code_.substr(at, 3) == std::string(3, c) && (triple == 0 || triple == c)) {
        triple = triple == 0 ? c : 0;
        at += 2;
        continue;
      }
      if (triple != 0) continue;
      if (c == '(' || c == '[' || c == '{') ++depth;
      if (c == ')' || c == ']' || c == '}') depth = std::max(0, depth - 1);
      const bool continued =
          at > 0 && (code_[at - 1] == '\\' || (code_[at - 1] == '\r' && at > 1 && code_[at - 2] == '\\'));
      if (c == '\n' && depth == 0 && !continued) break;
    }
    line.end = at;
    if (at < code_.size()) ++at;
    line.blank = code_.substr(line.first, line.end - line.first).find_first_not_of(" \t\r\n") == std::string_view::npos;
    return line;
  }

  /// Adds the definitions in lines [begin, end), which have the same indentation.
  void scope(size_t begin, size_t end, int depth) {
    size_t decorators = end;  // the first decorator above the next definition
    for (size_t i = begin; i < end; ++i) {
      if (lines_[i].blank) continue;
      const std::string_view word = first_word(i);
      if (code_[lines_[i].first] == '@') {
        decorators = std::min(decorators, i);
      } else if (word == "def" || word == "class") {
        i = definition(i, std::min(decorators, i), end, word == "class", depth) - 1;
        decorators = end;
      } else {
        if (word == "import" || word == "from") {
          const Line& line = lines_[i];
          items_.push_back({CodeItemKind::kImport, line.begin, line.first, line.end, line.end, line.end, depth, false});
        }
        decorators = end;
      }
    }
  }

  std::string_view first_word(size_t line) const {
    const std::string_view word = word_at(lines_[line].first);
    if (word != "async") return word;
    const size_t next = skip_space(lines_[line].first + 5, lines_[line].end);
    return word_at(next) == "def" ? "def" : word;
  }

  /// Adds the definition on `line`; returns the first line after it.
  size_t definition(size_t line, size_t first, size_t end, bool is_class, int depth) {
    size_t behind = line + 1, last = line;
    for (; behind < end; ++behind) {
      if (lines_[behind].blank) continue;
      if (lines_[behind].indent <= lines_[line].indent) break;
      last = behind;
    }
    CodeItem item;
    item.kind = !is_class ? CodeItemKind::kFunction : is_trait(line) ? CodeItemKind::kTrait : CodeItemKind::kStruct;
    item.begin = with_comments(first);
    item.declaration = lines_[line].first;
    item.end = lines_[last].end;
    item.signature_end = std::min(find_outside(lines_[line].first, lines_[line].end, ":") + 1, lines_[line].end);
    item.heading_end = heading_end(line, behind, item.signature_end);
    item.depth = depth;
    items_.push_back(item);
    if (is_class && depth < kMaxDepth) scope(line + 1, behind, depth + 1);
    return behind;
  }

  /// The beginning of the comment lines directly above.
  size_t with_comments(size_t line) const {
    while (line > 0) {
      const Line& above = lines_[line - 1];
      const size_t mark = text_.find_first_not_of(" \t", above.begin);
      if (!above.blank || mark >= above.end || text_[mark] != '#' || text_.substr(mark, 2) == "#!") break;
      --line;
    }
    return lines_[line].begin;
  }

  /// The offset after the docstring if the body begins with one, else `signature_end`.
  size_t heading_end(size_t line, size_t behind, size_t signature_end) const {
    for (size_t i = line + 1; i < behind; ++i) {
      if (lines_[i].blank) continue;
      size_t at = lines_[i].first;
      while (at < lines_[i].end && std::string_view("rRuU").find(code_[at]) != std::string_view::npos) ++at;
      const bool docstring = at < lines_[i].end && (code_[at] == '"' || code_[at] == '\'');
      return docstring ? lines_[i].end : signature_end;
    }
    return signature_end;
  }

  bool is_trait(size_t line) const {
    const std::string_view heading = code_.substr(lines_[line].first, lines_[line].end - lines_[line].first);
    const size_t open = heading.find('(');
    if (open == std::string_view::npos) return false;
    for (const std::string_view base : {"Protocol", "ABC", "ABCMeta"}) {
      for (size_t at = heading.find(base, open); at != std::string_view::npos; at = heading.find(base, at + 1)) {
        if (word_at(lines_[line].first + at) == base && !std::isalnum(static_cast<unsigned char>(heading[at - 1])) &&
            heading[at - 1] != '_') {
          return true;
        }
      }
    }
    return false;
  }

  std::vector<Line> lines_;
  std::vector<CodeItem> items_;
};

}  // namespace

std::vector<CodeItem> python_items(std::string_view text, std::string_view structure) {
  return PythonScanner(text, structure).run();
}

}  // namespace hone
