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

}  // namespace hone
