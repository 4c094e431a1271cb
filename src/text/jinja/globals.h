// The functions that every template can call.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace hone::jinja {

/// range, dict, namespace, raise_exception, strftime_now.
std::vector<std::pair<std::string, Value>> global_functions();

}  // namespace hone::jinja
