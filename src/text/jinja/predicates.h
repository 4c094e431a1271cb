// Tests: {{ value is name(arguments) }}.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace hone::jinja {

using Predicate = bool (*)(Interpreter& interpreter, const Value& subject, const Arguments& arguments);

/// The test `name`, or null.
Predicate find_predicate(std::string_view name);

}  // namespace hone::jinja
