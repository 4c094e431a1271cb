#include <array>

#include "data/readers/code/code_items.h"

namespace hone {
namespace {

class RustScanner : public StructureScanner {
 public:
  using StructureScanner::StructureScanner;

  std::vector<CodeItem> run() {
    scope(0, code_.size(), 0, false);
    return std::move(items_);
  }

 private:
  void scope(size_t at, size_t end, int depth, bool in_test) {
    size_t limit = at;
    while ((at = skip_space(at, end)) < end) {
      const size_t next = item(at, end, limit, depth, in_test);
      at = limit = next;
    }
  }

  /// Reads the item at `at`; returns the offset after it.
  size_t item(size_t at, size_t end, size_t limit, int depth, bool in_test) {
    CodeItem found;
    found.depth = depth;
    found.begin = with_comments_above(at, limit);
    at = attributes(at, end, in_test);
    found.is_test = in_test;
    found.declaration = at;
    at = modifiers(at, end);
    const std::string_view word = word_at(at);
    if (word == "fn") return function(found, at, end);
    if (word == "struct" || word == "union" || word == "enum") return type(found, at, end);
    if (word == "trait") return block(found, CodeItemKind::kTrait, at, end, depth);
    if (word == "impl") return block(found, CodeItemKind::kImpl, at, end, depth);
    if (word == "mod") return block(found, CodeItemKind::kModule, at, end, depth);
    if (word == "use" || word == "crate") return statement(found, at, end);
    if (word.empty() && at < end && code_[at] == '{' && found.declaration != at) {  // extern "C" { … }
      const size_t close = behind_bracket(at, end);
      if (depth < kMaxDepth) scope(at + 1, close - 1, depth + 1, found.is_test);
      return close;
    }
    return other(at, end);
  }

  /// Skips #[…] and #![…]; sets `is_test` for those of tests.
  size_t attributes(size_t at, size_t end, bool& is_test) const {
    while (at < end && code_[at] == '#') {
      size_t open = skip_space(at + 1, end);
      if (open < end && code_[open] == '!') open = skip_space(open + 1, end);
      if (open >= end || code_[open] != '[') return at + 1;
      const size_t close = behind_bracket(open, end);
      const std::string_view inside = code_.substr(open + 1, close - open - 2);
      if (inside.starts_with("test") || inside.starts_with("cfg(test)") ||
          inside.find("::test") != std::string_view::npos) {
        is_test = true;
      }
      at = skip_space(close, end);
    }
    return at;
  }

  /// Skips the words before the keyword of an item: pub, pub(crate), const, async, unsafe, extern "C", default, auto.
  size_t modifiers(size_t at, size_t end) const {
    static constexpr std::array<std::string_view, 8> kWords = {"pub",  "async", "unsafe",  "extern",
                                                               "auto", "safe",  "default", "const"};
    while (at < end) {
      const std::string_view word = word_at(at);
      bool known = false;
      for (const std::string_view modifier : kWords) known |= word == modifier;
      size_t next = skip_space(at + word.size(), end);
      if (!known) return at;
      if (word == "const") {  // const fn is a function, const X: T a constant
        const std::string_view behind = word_at(next);
        if (behind != "fn" && behind != "unsafe" && behind != "extern" && behind != "async") return at;
      }
      if (word == "pub" && next < end && code_[next] == '(') next = skip_space(behind_bracket(next, end), end);
      at = next;
    }
    return at;
  }

  size_t add(CodeItem& item, CodeItemKind kind, size_t heading_end, size_t end) {
    item.kind = kind;
    item.signature_end = item.heading_end = heading_end;
    item.end = end;
    items_.push_back(item);
    return end;
  }

  size_t function(CodeItem& item, size_t at, size_t end) {
    const size_t body = find_outside(at, end, "{;");
    if (body == end) return end;
    if (code_[body] == ';') return add(item, CodeItemKind::kFunction, body + 1, body + 1);
    return add(item, CodeItemKind::kFunction, body, behind_bracket(body, end));
  }

  size_t type(CodeItem& item, size_t at, size_t end) {
    // `union` is a keyword only before a name.
    const size_t name = skip_space(at + word_at(at).size(), end);
    if (word_at(name).empty()) return other(at, end);
    const size_t body = find_outside(at, end, "{;");
    if (body == end) return end;
    if (code_[body] == ';') return add(item, CodeItemKind::kStruct, body, body + 1);
    return add(item, CodeItemKind::kStruct, body, behind_bracket(body, end));
  }

  /// Adds a trait, impl or mod, and searches inside it.
  size_t block(CodeItem& item, CodeItemKind kind, size_t at, size_t end, int depth) {
    const size_t body = find_outside(at, end, "{;");
    if (body == end) return end;
    if (code_[body] == ';') return add(item, kind, body, body + 1);
    const size_t close = behind_bracket(body, end);
    add(item, kind, body, close);
    if (depth < kMaxDepth) scope(body + 1, close > body + 1 ? close - 1 : close, depth + 1, item.is_test);
    return close;
  }

  size_t statement(CodeItem& item, size_t at, size_t end) {
    const size_t close = find_outside(at, end, ";");
    return add(item, CodeItemKind::kImport, close, std::min(close + 1, end));
  }

  /// Skips constants, type aliases, macros, and other code.
  size_t other(size_t at, size_t end) const {
    const std::string_view word = word_at(at);
    if (word == "const" || word == "static" || word == "type" || word == "let") {
      return std::min(find_outside(at, end, ";") + 1, end);
    }
    if (!word.empty()) {
      const size_t behind = at + word.size();
      const size_t mark = skip_space(behind, end);
      if (mark < end && code_[mark] == '!') return macro(mark + 1, end);
      return behind;
    }
    const char c = code_[at];
    return c == '(' || c == '[' || c == '{' ? behind_bracket(at, end) : at + 1;
  }

  /// Skips macro_rules! name { … } and name!(…);
  size_t macro(size_t at, size_t end) const {
    const size_t open = find_outside(at, end, "({[;");
    if (open == end || code_[open] == ';') return std::min(open + 1, end);
    return behind_bracket(open, end);
  }

  std::vector<CodeItem> items_;
};

}  // namespace

std::vector<CodeItem> rust_items(std::string_view text, std::string_view structure) {
  return RustScanner(text, structure).run();
}

}  // namespace hone
