// JSON of untrusted files.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <istream>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/ordered_object.h"  // calls instantiate Json where the library is precompiled
#include "core/text/json_fwd.h"

namespace hone {

/// Returns a discarded value (is_object() etc. are false) for invalid JSON, for JSON that is nested deeper than any
/// file of a model (copying and printing it would overflow the stack), and if takes_much_memory().
Json parse_json(std::string_view text);
Json parse_json(std::istream& file);

/// parse_json() of a regular file of at most kMostTextBytes; throws UserError if it cannot be read. The bare words
/// Infinity and NaN, which Python writes, are the object that transformers 5 writes for them: {"__float__":
/// "Infinity"}.
Json read_json(const std::filesystem::path& path);
/// The same; nothing if no file has this name.
std::optional<Json> read_json_if_there(const std::filesystem::path& path);

/// The integer of a Json, if it is one: of any that is not negative, and of any that is.
std::optional<uint64_t> unsigned_number(const Json& json);
std::optional<int64_t> negative_number(const Json& json);

/// An integer that fits its type; nothing for any other JSON. The library's own conversion also casts 1e300.
template <std::integral Int>
std::optional<Int> whole_number(const Json& json) {
  const auto fitting = [](auto value) {
    return value && std::in_range<Int>(*value) ? std::optional(static_cast<Int>(*value)) : std::nullopt;
  };
  const std::optional<Int> found = fitting(unsigned_number(json));
  return found ? found : fitting(negative_number(json));
}

/// Whether brackets are nested too deep for parse_json().
bool nested_deeply(std::string_view json);

/// Whether the values of a text would use more memory than ten times the text plus half a gigabyte, as millions of
/// empty lists do.
bool takes_much_memory(std::string_view json);

}  // namespace hone
