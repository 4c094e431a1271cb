// Words of a command line for a shell.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hone {

/// `text` as a word of a shell: in single quotes unless it has only safe characters.
std::string shell_word(std::string_view text);
/// A command line of these words, quoted.
std::string shell_words(const std::vector<std::string>& words);

}  // namespace hone
