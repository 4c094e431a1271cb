// The settings of a library call: members of a JSON object, each taken out once, so that what is left is unknown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/text/json_value.h"

namespace hone {

/// The JSON object of a text. UserError with `what` where it is none.
JsonValue settings_of(const char* text, const std::string& what);

// Each removes the member from the object. UserError, with the name, for a missing one without another value, and for a
// value of another type or out of range.

int64_t take_size(JsonValue& settings, const char* key, std::optional<int64_t> otherwise = {}, int64_t least = 1);
double take_number(JsonValue& settings, const char* key, double otherwise);
bool take_switch(JsonValue& settings, const char* key);  ///< false without
std::string take_text(JsonValue& settings, const char* key, const std::string& otherwise);

}  // namespace hone
