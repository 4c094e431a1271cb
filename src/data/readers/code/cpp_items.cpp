#include <algorithm>
#include <cctype>

#include "data/readers/code/code_items.h"

namespace hone {
namespace {

/// The part of a declaration before the `{` or `;` that ends its heading.
struct Heading {
  size_t end = 0;              ///< where the declaration's text ends: `{`, `;`, or `:` of a constructor's initialisers
  size_t body = 0;             ///< the `{` or `;`
  std::string_view type_word;  ///< the first of the words class, struct, union, enum, namespace and concept
  bool parameters = false;     ///< there is a ( outside template arguments
  bool assigned = false;       ///< there is an = before any parameters: a variable
  int words = 0;               ///< number of words before the parameters
  bool friends_or_using = false;
};

class CppScanner : public StructureScanner {
 public:
  using StructureScanner::StructureScanner;

  std::vector<CodeItem> run() {
    includes();
    scope(0, code_.size(), 0);
    std::stable_sort(items_.begin(), items_.end(),
                     [](const CodeItem& a, const CodeItem& b) { return a.declaration < b.declaration; });
    return std::move(items_);
  }

 private:
  /// Adds the #include lines; the structure has no preprocessor lines.
  void includes() {
    for (size_t begin = 0; begin < text_.size();) {
      const size_t end = std::min(text_.find('\n', begin), text_.size());
      size_t hash = begin;
      while (hash < end && (text_[hash] == ' ' || text_[hash] == '\t')) ++hash;
      if (hash < end && text_[hash] == '#') {
        const size_t word = text_.find_first_not_of(" \t", hash + 1);
        if (text_.substr(std::min(word, end), 7) == "include") {
          items_.push_back({CodeItemKind::kImport, begin, hash, end, end, end, 0, false});
        }
      }
      begin = end + 1;
    }
  }

  void scope(size_t at, size_t end, int depth) {
    size_t limit = at;
    while ((at = skip_space(at, end)) < end) at = limit = declaration(at, end, limit, depth);
  }

  size_t declaration(size_t at, size_t end, size_t limit, int depth) {
    if (code_[at] == ';' || code_[at] == '}') return at + 1;
    if (const size_t behind = access_specifier(at, end); behind > at) return behind;
    CodeItem item;
    item.depth = depth;
    item.begin = with_comments_above(at, limit);
    item.declaration = at;
    const Heading heading = read_heading(at, end);
    if (heading.body >= end) return end;
    const bool block = code_[heading.body] == '{';
    const size_t close = block ? behind_bracket(heading.body, end) : heading.body + 1;
    item.signature_end = item.heading_end = heading.end;
    item.end = close;
    if (heading.type_word == "concept") return add(item, CodeItemKind::kTrait, close);
    if (heading.type_word == "namespace" || is_linkage(at, heading))
      return module(item, heading, block, close, end, depth);
    if (!heading.type_word.empty() && !heading.parameters && block) return type(item, heading, close, end, depth);
    if (heading.parameters && !heading.assigned && !heading.friends_or_using)
      return function(item, heading, block, close);
    return block ? close : heading.body + 1;
  }

  /// Skips public: etc. and Qt's `public slots:`.
  size_t access_specifier(size_t at, size_t end) const {
    const std::string_view word = word_at(at);
    if (word != "public" && word != "private" && word != "protected" && word != "signals") return at;
    const size_t colon = find_outside(at, end, ":;{");
    return colon < end && code_[colon] == ':' ? colon + 1 : at;
  }

  /// Whether it is extern "C" { … }, of which the structure contains only extern.
  bool is_linkage(size_t at, const Heading& heading) const {
    return word_at(at) == "extern" && heading.words == 1 && !heading.parameters && code_[heading.body] == '{';
  }

  Heading read_heading(size_t at, size_t end) const {
    Heading heading;
    while (at < end) {
      const char c = code_[at];
      if (is_word(c)) {
        const std::string_view word = word_at(at);
        at = behind_word(word, at, end, heading);
      } else if (c == '{' && heading.assigned) {
        at = behind_bracket(at, end);
      } else if (c == '{' || c == ';') {
        heading.body = at;
        if (heading.end == 0) heading.end = c == ';' ? at + 1 : at;
        return heading;
      } else if (c == '(') {
        if (!heading.assigned) heading.parameters = true;
        at = behind_bracket(at, end);
      } else if (c == '[') {
        at = behind_bracket(at, end);
      } else if (c == '=' && at + 1 < end && code_[at + 1] != '=') {
        if (!heading.parameters) heading.assigned = true;
        ++at;
      } else if (c == ':' && at + 1 < end && code_[at + 1] == ':') {
        at += 2;
      } else if (c == ':' && heading.parameters && heading.type_word.empty()) {
        heading.end = at;
        at = behind_initialisers(at + 1, end);
      } else if (c == '}') {
        break;  // an unmatched bracket: stop
      } else {
        ++at;
      }
    }
    heading.body = end;
    return heading;
  }

  size_t behind_word(std::string_view word, size_t at, size_t end, Heading& heading) const {
    size_t next = at + word.size();
    if (word == "template") {
      next = skip_space(next, end);
      return next < end && code_[next] == '<' ? behind_angles(next, end) : next;
    }
    if (word == "requires") return behind_requires(next, end);
    if (word == "operator") {  // operator(), operator==, operator{}
      heading.words += heading.parameters ? 0 : 1;
      next = skip_space(next, end);
      if (next + 1 < end && code_[next] == '(' && code_[next + 1] == ')') return next + 2;
      while (next < end && !is_word(code_[next]) && code_[next] != '(' && code_[next] != ';') ++next;
      return next;
    }
    if (word == "alignas" || word == "__attribute__" || word == "decltype" || word == "noexcept" ||
        word == "__declspec" || word == "explicit" || word == "__launch_bounds__") {
      next = skip_space(next, end);
      if (word == "decltype") ++heading.words;
      return next < end && code_[next] == '(' ? behind_bracket(next, end) : next;
    }
    if (word == "using" || word == "typedef" || word == "friend" || word == "static_assert" || word == "asm") {
      heading.friends_or_using = true;
    }
    const bool type = word == "class" || word == "struct" || word == "union" || word == "enum" || word == "namespace" ||
                      word == "concept";
    if (type && heading.type_word.empty() && !heading.parameters && !heading.assigned) heading.type_word = word;
    if (!heading.parameters) ++heading.words;
    return next;
  }

  /// The offset after the > that closes the < at `at`; may contain brackets.
  size_t behind_angles(size_t at, size_t end) const {
    int depth = 0;
    while (at < end) {
      const char c = code_[at];
      if (c == ';' || c == '{') return at;
      if (c == '(' || c == '[') {
        at = behind_bracket(at, end);
        continue;
      }
      if (c == '<') ++depth;
      if (c == '>' && (at == 0 || code_[at - 1] != '-') && --depth == 0) return at + 1;
      ++at;
    }
    return end;
  }

  /// Skips requires (…), requires requires (…) { … }, requires Name<T>.
  size_t behind_requires(size_t at, size_t end) const {
    at = skip_space(at, end);
    while (word_at(at) == "requires") at = skip_space(at + 8, end);
    if (at < end && code_[at] == '(') {
      at = skip_space(behind_bracket(at, end), end);
      if (at < end && code_[at] == '{') {
        const size_t behind = behind_bracket(at, end);
        const size_t next = skip_space(behind, end);
        // A declaration follows the braces of a requires expression, but not those of a body.
        if (next < end && (is_word(code_[next]) || code_[next] == '{' || code_[next] == '&' || code_[next] == '|'))
          return behind;
      }
    }
    return at;
  }

  /// Skips a(1), b{2}, Base<T>(3) …, up to the body.
  size_t behind_initialisers(size_t at, size_t end) const {
    while ((at = skip_space(at, end)) < end) {
      while (at < end &&
             (is_word(code_[at]) || code_[at] == ':' || std::isspace(static_cast<unsigned char>(code_[at]))))
        ++at;
      if (at < end && code_[at] == '<') at = skip_space(behind_angles(at, end), end);
      if (at >= end || (code_[at] != '(' && code_[at] != '{')) return at;
      at = skip_space(behind_bracket(at, end), end);
      if (at + 2 < end && code_.substr(at, 3) == "...") at = skip_space(at + 3, end);
      if (at >= end || code_[at] != ',') return at;
      ++at;
    }
    return end;
  }

  size_t add(CodeItem& item, CodeItemKind kind, size_t close) {
    item.kind = kind;
    items_.push_back(item);
    return close;
  }

  size_t module(CodeItem& item, const Heading& heading, bool block, size_t close, size_t end, int depth) {
    if (!block) return close;  // an alias
    if (heading.type_word == "namespace") add(item, CodeItemKind::kModule, close);
    if (depth < kMaxDepth) scope(heading.body + 1, close == end ? end : close - 1, depth + 1);
    return close;
  }

  size_t type(CodeItem& item, const Heading& heading, size_t close, size_t end, int depth) {
    const size_t semicolon = find_outside(close, end, ";{}");
    const size_t behind = semicolon < end && code_[semicolon] == ';' ? semicolon + 1 : close;
    item.end = behind;
    add(item, CodeItemKind::kStruct, behind);
    if (heading.type_word != "enum" && depth < kMaxDepth) scope(heading.body + 1, close - 1, depth + 1);
    return behind;
  }

  /// Adds a definition, or a declaration that differs from a macro call.
  size_t function(CodeItem& item, const Heading& heading, bool block, size_t close) {
    const std::string_view first = word_at(item.declaration);
    static constexpr std::string_view kStatements[] = {"if", "for", "while", "switch", "return", "do", "case", "else"};
    for (const std::string_view statement : kStatements) {
      if (first == statement) return close;
    }
    if (!block && heading.words < 2 && code_[item.declaration] != '~') return close;
    return add(item, CodeItemKind::kFunction, close);
  }

  std::vector<CodeItem> items_;
};

}  // namespace

std::vector<CodeItem> cpp_items(std::string_view text, std::string_view structure) {
  return CppScanner(text, structure).run();
}

}  // namespace hone
