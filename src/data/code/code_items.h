// The items of a source file: functions, types, traits, implementations, modules.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/code/language.h"

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
/// at `declaration`. [declaration, signature_end) is what stands before the body; heading_end is behind the docstring,
/// if there is one. [begin, end) is the whole item.
struct CodeItem {
  CodeItemKind kind = CodeItemKind::kFunction;
  size_t begin = 0, declaration = 0, signature_end = 0, heading_end = 0, end = 0;
  int depth = 0;         ///< items around it
  bool is_test = false;  ///< Rust's #[test] and #[cfg(test)]
};

/// The items of `text` in their order. Bodies of functions are not searched. Text that is no valid code gives fewer
/// items, never an error.
std::vector<CodeItem> code_items(std::string_view text, CodeLanguage language);

// What the scanners of the languages share: words and brackets of a text whose literals are masked.

class StructureScanner {
 public:
  /// Both outlive this and have the same places (code_structure).
  StructureScanner(std::string_view text, std::string_view structure) : text_(text), code_(structure) {}

 protected:
  /// Items nest; deeper ones than this are not searched.
  static constexpr int kMaxDepth = 64;

  size_t skip_space(size_t at, size_t end) const;
  /// The word at `at`, or "".
  std::string_view word_at(size_t at) const;
  /// Behind the bracket that closes the one at `at`; `end` if none does.
  size_t behind_bracket(size_t at, size_t end) const;
  /// The first of `what` outside brackets, or `end`. Brackets that open are themselves found if they are in `what`.
  size_t find_outside(size_t at, size_t end, std::string_view what) const;
  /// The beginning of the comment lines directly above the line of `at`, each beginning with one of `//`-like marks,
  /// and of a block comment that ends directly above; `at`'s line if there is none. Never before `limit`.
  size_t with_comments_above(size_t at, size_t limit) const;
  size_t line_begin(size_t at) const;

  std::string_view text_, code_;
};

std::vector<CodeItem> rust_items(std::string_view text, std::string_view structure);
std::vector<CodeItem> cpp_items(std::string_view text, std::string_view structure);
std::vector<CodeItem> python_items(std::string_view text, std::string_view structure);

}  // namespace hone
