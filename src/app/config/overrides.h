// Overrides of the command line: which words belong together, and what they say as a configuration.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/config/config_reader.h"

namespace hone {

/// Whether `word`, which follows `--NAME`, is the value of that key. A key that takes text takes any word but another
/// `--key`; one that takes true or false takes these alone; every other one leaves `name=value` to be read by itself.
bool takes_word(std::string_view name, std::string_view word);

/// `key=value`, `--key=value`, `--key value`, `--key-with-dashes value`; `--flag` alone says true; `section.key=value`
/// nests. A value in brackets, braces or quotes is read as YAML. Returns one mapping. Throws UserError for a word that
/// belongs to no key, and for a key that takes text and has none.
ConfigNode parse_overrides(const std::vector<std::string>& arguments);

/// `overrides` without the words about the keys that `others` state, under whatever name: an option of a verb that says
/// the same counts instead of them.
std::vector<std::string> without_keys_of(const std::vector<std::string>& overrides,
                                         const std::vector<std::string>& others);

}  // namespace hone
