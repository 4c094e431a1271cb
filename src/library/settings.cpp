#include "library/settings.h"

#include <fmt/format.h>

#include <limits>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {

namespace {

[[noreturn]] void refuse(const Json& value, const char* key, const char* what) {
  throw UserError(fmt::format("{} is not a value of '{}'", value.dump(), key), "settings",
                  fmt::format("state {}", what));
}

/// Takes a member out; null without.
Json take(JsonValue& settings, const char* key) {
  if (!settings.contains(key)) return nullptr;
  Json value = settings[key];
  settings->erase(key);
  return value;
}

}  // namespace

JsonValue settings_of(const char* text, const std::string& what) {
  Json settings = parse_json(std::string(text != nullptr ? text : "{}"));
  if (!settings.is_object()) throw UserError(what + " must be a JSON object", what, R"(pass {"key": value, …})");
  return settings;
}

int64_t take_size(JsonValue& settings, const char* key, std::optional<int64_t> otherwise, int64_t least) {
  const Json value = take(settings, key);
  if (value.is_null()) {
    if (otherwise) return *otherwise;
    throw UserError(fmt::format("'{}' is missing", key), "settings", "state a whole number");
  }
  const auto number = whole_number<int32_t>(value);
  if (!number || *number < least)
    refuse(value, key, least > 0 ? "a positive whole number" : "a whole number, not negative");
  return *number;
}

double take_number(JsonValue& settings, const char* key, double otherwise) {
  const Json value = take(settings, key);
  if (!value.is_null() && !value.is_number()) refuse(value, key, "a number");
  return value.is_null() ? otherwise : value.get<double>();
}

bool take_switch(JsonValue& settings, const char* key) {
  const Json value = take(settings, key);
  if (!value.is_null() && !value.is_boolean()) refuse(value, key, "true or false");
  return value.is_boolean() && value.get<bool>();
}

std::string take_text(JsonValue& settings, const char* key, const std::string& otherwise) {
  const Json value = take(settings, key);
  if (!value.is_null() && !value.is_string()) refuse(value, key, "a text");
  return value.is_null() ? otherwise : value.get<std::string>();
}

}  // namespace hone
