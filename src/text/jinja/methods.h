// Methods of strings, dicts and lists.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace hone::jinja {

using Method = Value (*)(Interpreter& interpreter, const Value& self, const Arguments& arguments);

/// The method `name` of the type of `object`, or null. Methods that would change a list or dict exist only to refuse
/// the call: the sandbox of Hugging Face's templates has immutable containers too.
Method find_method(const Value& object, std::string_view name);

/// The methods of str, which are many.
Method find_string_method(std::string_view name);

}  // namespace hone::jinja
