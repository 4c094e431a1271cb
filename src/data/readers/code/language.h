// The structure of source code in the supported programming languages.
#pragma once

#include <array>
#include <cctype>
#include <optional>
#include <string>
#include <string_view>

namespace hone {

enum class CodeLanguage { kRust, kCpp, kPython };
inline constexpr std::array<std::string_view, 3> kCodeLanguages = {"rust", "cpp", "python"};

/// Whether a character may be in a name; non-ASCII characters may.
inline bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80); }

/// The language of a file by its extension: .rs; .cpp .cc .cxx .c .h .hpp .hh .hxx .inl .ipp .cu .cuh; .py .pyi.
std::optional<CodeLanguage> language_of_file(std::string_view path);

/// "rust", "cpp" or "python".
std::string_view name_of(CodeLanguage language);

/// Returns `text` with spaces in place of all characters of comments and literals and, in C++, of preprocessor lines
/// and all but the first branch of each #if. Line ends stay, so offsets are the same in both; quotes of Python strings
/// stay too. The rest is structure: brackets match, and words are words of the language.
///
/// Rust: nested block comments, raw strings r#"…"#, byte and C strings, characters versus lifetimes ('a). C++: raw
/// strings R"x(…)x", digit separators (1'000), continued lines. Python: all prefixes, triple quotes. An unclosed
/// literal or comment ends with the file, one of a single line with the line.
std::string code_structure(std::string_view text, CodeLanguage language);

}  // namespace hone
