// The items of a source file: functions, types, traits, implementations, modules.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/readers/code/language.h"

namespace hone {

enum class CodeItemKind {
  kImport,    ///< use, #include, import
  kFunction,  ///< with or without a body
  kStruct,    ///< struct, class, enum, union
  kTrait,     ///< trait; C++ concept; Python class of Protocol or ABC
  kImpl,      ///< Rust impl
  kModule,    ///< mod, namespace
};

/// Offsets into the text. `begin` includes documentation comments, attributes and decorators directly above, which end
/// at `declaration`. [declaration, signature_end) is the text before the body; heading_end is after the docstring, if
/// any. [begin, end) is the whole item.
struct CodeItem {
  CodeItemKind kind = CodeItemKind::kFunction;
  size_t begin = 0, declaration = 0, signature_end = 0, heading_end = 0, end = 0;
  int depth = 0;         ///< number of items around it
  bool is_test = false;  ///< Rust's #[test] and #[cfg(test)]
};

/// The items of `text` in order. Does not search bodies of functions. Invalid code gives fewer items, never an error.
std::vector<CodeItem> code_items(std::string_view text, CodeLanguage language);

// The base of the language scanners: words and brackets of a text with masked literals.

class StructureScanner {
 public:
  /// Both must outlive this and have the same offsets (code_structure).
  StructureScanner(std::string_view text, std::string_view structure) : text_(text), code_(structure) {}

 protected:
  /// The maximum nesting of items; deeper ones are not searched.
  static constexpr int kMaxDepth = 64;

  size_t skip_space(size_t at, size_t end) const;
  /// The word at `at`, or "".
  std::string_view word_at(size_t at) const;
  /// The offset after the bracket that closes the one at `at`; `end` if it is not closed.
  size_t behind_bracket(size_t at, size_t end) const;
  /// The first character of `what` outside brackets, or `end`. Finds opening brackets too if they are in `what`.
  size_t find_outside(size_t at, size_t end, std::string_view what) const;
  /// The beginning of the comment directly above the line of `at`: lines that begin with `//`, or a block comment; the
  /// beginning of the line of `at` if there is none. Never before `limit`.
  size_t with_comments_above(size_t at, size_t limit) const;
  size_t line_begin(size_t at) const;

  std::string_view text_, code_;
};

std::vector<CodeItem> rust_items(std::string_view text, std::string_view structure);
std::vector<CodeItem> cpp_items(std::string_view text, std::string_view structure);
std::vector<CodeItem> python_items(std::string_view text, std::string_view structure);

}  // namespace hone
