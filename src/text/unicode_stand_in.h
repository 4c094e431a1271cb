// Letters, marks, digits and symbols that Unicode 15 to 16 added, for regular expressions of an older Unicode.
#pragma once

#include <string>
#include <string_view>

namespace hone {

/// PCRE2 10.42 knows Unicode 14, Hugging Face tokenizers Unicode 16. Writes to `shadow` the text with each character
/// added since Unicode 14 replaced by an older one of the same general category and UTF-8 length (an ideograph by an
/// ideograph), so that matches in `shadow` are matches in `text`. Returns false, `shadow` untouched, when there is none
/// (nearly always). `text` is valid UTF-8.
bool substitute_new_characters(std::string_view text, std::string& shadow);

}  // namespace hone
