// Filters: {{ value | name(arguments) }}.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace hone::jinja {

using Filter = Value (*)(Interpreter& interpreter, const Value& subject, const Arguments& arguments);

/// The filter `name`, or null. They are Jinja2's, but tojson is the one of Hugging Face's chat templates: plain JSON,
/// nothing escaped for HTML.
Filter find_filter(std::string_view name);

/// The part of the filters that work on text, and the part that work on sequences; null if `name` is not there.
Filter find_text_filter(std::string_view name);
Filter find_sequence_filter(std::string_view name);

}  // namespace hone::jinja
