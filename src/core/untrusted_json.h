// JSON of untrusted files.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <istream>
#include <optional>
#include <string_view>
#include <utility>

#include "core/json.h"

namespace hone {

/// Returns a discarded value (is_object() etc. are false) for invalid JSON, for JSON that is nested deeper than any
/// file of a model (copying and printing it would overflow the stack), and if takes_much_memory().
Json parse_json(std::string_view text);
Json parse_json(std::istream& file);

/// parse_json() of a regular file of at most kMostTextBytes; throws UserError if it cannot be read.
Json read_json(const std::filesystem::path& path);
/// The same; nothing if no file has this name.
std::optional<Json> read_json_if_there(const std::filesystem::path& path);

/// An integer that fits its type; nothing for any other JSON. The library's own conversion also casts 1e300.
template <std::integral Int>
std::optional<Int> whole_number(const Json& json) {
  if (json.is_number_unsigned()) {
    const auto value = json.get<uint64_t>();
    return std::in_range<Int>(value) ? std::optional(static_cast<Int>(value)) : std::nullopt;
  }
  if (!json.is_number_integer()) return std::nullopt;
  const auto value = json.get<int64_t>();
  return std::in_range<Int>(value) ? std::optional(static_cast<Int>(value)) : std::nullopt;
}

/// Whether brackets are nested too deep for parse_json().
bool nested_deeply(std::string_view json);

/// Whether the values of a text would use more memory than ten times the text plus half a gigabyte, as millions of
/// empty lists do.
bool takes_much_memory(std::string_view json);

}  // namespace hone
