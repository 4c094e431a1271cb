// What the scanners of the languages share: words and brackets of a text whose literals are masked.
#pragma once

#include <string_view>
#include <vector>

#include "data/code/code_items.h"

namespace hone {

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
