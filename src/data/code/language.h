// The programming languages whose structure is understood.
#pragma once

#include <array>
#include <cctype>
#include <optional>
#include <string>
#include <string_view>

namespace hone {

enum class CodeLanguage { kRust, kCpp, kPython };
inline constexpr std::array<std::string_view, 3> kCodeLanguages = {"rust", "cpp", "python"};

/// A character of names; those beyond ASCII are.
inline bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80); }

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
