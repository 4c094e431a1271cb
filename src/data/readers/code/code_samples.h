// The samples of a source file: the file or chunks of it, and its items by kind.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/readers/code/language.h"

namespace hone {

enum class CodeSampleKind {
  kFullFile,
  kChunk,
  kFunctionSignature,
  kStructDefinition,
  kTraitDefinition,
  kImplBlock,
  kModuleStructure,
};
inline constexpr size_t kCodeSampleKinds = 7;

/// "full_file", "chunk", "function_signature", …
std::string_view name_of(CodeSampleKind kind);
/// The kind with that name; throws UserError for any other name.
CodeSampleKind code_sample_kind_of(std::string_view name);

struct CodeSampleOptions {
  std::vector<CodeSampleKind> kinds = {CodeSampleKind::kFullFile,          CodeSampleKind::kChunk,
                                       CodeSampleKind::kFunctionSignature, CodeSampleKind::kStructDefinition,
                                       CodeSampleKind::kTraitDefinition,   CodeSampleKind::kImplBlock,
                                       CodeSampleKind::kModuleStructure};
  int64_t max_tokens = 4096;  ///< the longest sample; longer files become chunks
  int64_t overlap = 256;      ///< number of tokens that a chunk shares with the previous one, below max_tokens
  int64_t min_tokens = 50;    ///< shorter samples are omitted
  bool include_tests = true;  ///< Rust's #[test] and #[cfg(test)]
};

struct CodeSample {
  CodeSampleKind kind = CodeSampleKind::kFullFile;
  std::string text;
  int64_t line = 1;  ///< where its first character is
};

/// How many items of a kind were found, and how many became samples.
struct CodeKindCount {
  int64_t found = 0, created = 0, too_short = 0, too_long = 0;
};
using CodeKindCounts = std::array<CodeKindCount, kCodeSampleKinds>;

using TokenCounter = std::function<int64_t(std::string_view)>;

/// The samples of one file, by kind and then by position. `path` is at the head of a module structure.
///   full_file           a whole file of up to max_tokens
///   chunk               a longer file in chunks of whole lines, each up to max_tokens; the last `overlap` tokens of a
///                       chunk are the first of the next; a single line of more tokens is a separate chunk
///   function_signature  documentation, attributes and signature; in Python with the docstring
///   struct_definition   whole structs, classes, enums and unions
///   trait_definition    traits; C++ concepts; Python's Protocols and abstract classes
///   impl_block          whole impl blocks of Rust
///   module_structure    imports and the headings of all items, indented by their nesting
/// Items of more than max_tokens are omitted (the chunks of the file contain them).
std::vector<CodeSample> code_samples(std::string_view text, CodeLanguage language, const std::string& path,
                                     const CodeSampleOptions& options, const TokenCounter& count,
                                     CodeKindCounts& counts);

}  // namespace hone
