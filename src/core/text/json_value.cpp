#include "core/text/json_value.h"

#include <utility>

#include "core/text/json.h"

namespace hone {

JsonValue::JsonValue() noexcept = default;
JsonValue::JsonValue(std::nullptr_t) noexcept {}
JsonValue::JsonValue(Copied, const Json& json) : json_(std::make_unique<Json>(json)) {}
JsonValue::JsonValue(Copied, Json&& json) : json_(std::make_unique<Json>(std::move(json))) {}
JsonValue::JsonValue(const JsonValue& other) : json_(other.json_ ? std::make_unique<Json>(*other.json_) : nullptr) {}
JsonValue::JsonValue(JsonValue&& other) noexcept = default;
JsonValue& JsonValue::operator=(JsonValue other) noexcept {
  json_.swap(other.json_);
  return *this;
}
JsonValue::~JsonValue() = default;

JsonValue::operator const Json&() const { return **this; }
const Json& JsonValue::operator*() const {
  static const Json null;
  return json_ ? *json_ : null;
}
Json& JsonValue::operator*() {
  if (!json_) json_ = std::make_unique<Json>();
  return *json_;
}
const Json* JsonValue::operator->() const { return &**this; }
Json* JsonValue::operator->() { return &**this; }

bool JsonValue::is_null() const { return (**this).is_null(); }
bool JsonValue::is_object() const { return (**this).is_object(); }
bool JsonValue::empty() const { return (**this).empty(); }
size_t JsonValue::size() const { return (**this).size(); }
bool JsonValue::contains(std::string_view key) const { return (**this).contains(key); }
const Json& JsonValue::at(std::string_view key) const { return (**this).at(key); }
const Json& JsonValue::operator[](std::string_view key) const { return (**this)[key]; }
Json& JsonValue::operator[](std::string_view key) { return (**this)[key]; }
const Json& JsonValue::operator[](size_t index) const { return (**this)[index]; }
Json& JsonValue::operator[](size_t index) { return (**this)[index]; }
std::string JsonValue::dump() const { return (**this).dump(); }

bool operator==(const JsonValue& a, const JsonValue& b) { return *a == *b; }
bool operator==(const JsonValue& a, const Json& b) { return *a == b; }

JsonObject::JsonObject() : JsonValue(Json::object()) {}
JsonArray::JsonArray() : JsonValue(Json::array()) {}

}  // namespace hone
