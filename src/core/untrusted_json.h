// JSON of files that somebody else wrote.
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

/// A discarded value (is_object() and the like are false) for what is not JSON, for what is nested deeper than any file
/// of a model is (copying and printing such a value would overflow the stack), and for what takes_much_memory.
Json parse_json(std::string_view text);
Json parse_json(std::istream& file);

/// The JSON of a regular file (kMostTextBytes at most), as parse_json gives it; UserError if it cannot be read.
Json read_json(const std::filesystem::path& path);
/// The same; nothing where no file has this name.
std::optional<Json> read_json_if_there(const std::filesystem::path& path);

/// A whole number that fits its type; nothing for any other JSON. The library's own conversion casts 1e300, too.
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

/// Whether brackets stand deeper than that.
bool nested_deeply(std::string_view json);

/// Whether the values of a text would take more memory than ten times the text and half a gigabyte: millions of empty
/// lists do.
bool takes_much_memory(std::string_view json);

}  // namespace hone
