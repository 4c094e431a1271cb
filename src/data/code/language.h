// The programming languages whose structure is understood.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hone {

enum class CodeLanguage { kRust, kCpp, kPython };

/// By the file's extension: .rs; .cpp .cc .cxx .c .h .hpp .hh .hxx .inl .ipp .cu .cuh; .py .pyi.
std::optional<CodeLanguage> language_of_file(std::string_view path);

/// "rust", "cpp" or "python".
std::string_view name_of(CodeLanguage language);

/// `text` with every character of comments, literals and, of C++, preprocessor lines and all but the first branch of
/// each #if as a space. Line ends stay, so that places are the same in both; quotes of a Python string stay too. What
/// is left is structure: brackets match, and words are words of the language.
///
/// Rust: nested block comments, raw strings r#"…"#, byte and C strings, characters beside lifetimes ('a). C++: raw
/// strings R"x(…)x", digit separators (1'000), continued lines. Python: all prefixes, triple quotes. A literal or
/// comment that is not closed ends with the file, one of a single line with the line.
std::string code_structure(std::string_view text, CodeLanguage language);

}  // namespace hone
