// JSON of files that somebody else wrote.
#pragma once

#include <istream>
#include <string_view>

#include "core/json.h"

namespace hone {

/// A discarded value (is_object() and the like are false) for what is not JSON, and for what is nested deeper than any
/// file of a model is: copying and printing such a value would overflow the stack.
Json parse_json(std::string_view text);
Json parse_json(std::istream& file);

/// Whether brackets stand deeper than that.
bool nested_deeply(std::string_view json);

}  // namespace hone
