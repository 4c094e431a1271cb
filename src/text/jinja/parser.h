// Tokens to syntax tree: the grammar of Jinja2 as chat templates use it.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace hone::jinja {

/// Parses a template. Throws TemplateError with the line. Tags of template inheritance, imports and `call` blocks are
/// refused by name, as are calls with * and **.
Block parse(std::string_view source);

}  // namespace hone::jinja
