// The settings of a library call as the words of a verb's command line, so that both have one meaning and one check.
#pragma once

#include <string>
#include <vector>

#include "core/text/json_value.h"

namespace hone {

/// `verb`, then the file of "config", if stated, then `--option value` for each option of the verb (its name with
/// underscores; a list: the option again for each item; a flag: true or false) and `key=value` for each other key, if
/// the verb takes them. UserError for another key.
std::vector<std::string> verb_words(const std::string& verb, const JsonValue& settings);

/// `key=value` for the members of an object, with values in JSON.
std::vector<std::string> overrides_of(const JsonValue& settings);

}  // namespace hone
