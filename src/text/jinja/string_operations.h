// Operations on strings with history, shared by methods and filters.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/marked_string.h"

namespace hone::jinja {

/// Bytes [begin, end) of a string.
struct Piece {
  size_t begin, end;
};

/// str.split / str.rsplit: at `separator`, or at runs of white space if null; at most `max_splits` times if >= 0.
std::vector<Piece> split(std::string_view text, const std::string_view* separator, int64_t max_splits, bool from_right);

/// str.splitlines.
std::vector<Piece> split_lines(std::string_view text, bool keep_ends);

/// str.replace; at most `max_count` times if >= 0.
MarkedString replaced(const MarkedString& text, std::string_view old, const MarkedString& replacement,
                      int64_t max_count);

/// How often str.replace would replace `old`.
size_t count_occurrences(std::string_view text, std::string_view old);

enum class Case { kUpper, kLower, kTitle, kCapital, kSwapped, kFolded };
MarkedString with_case(const MarkedString& text, Case wanted);

/// `text` without the white space (or the characters of `stripped`) at its ends.
MarkedString trimmed(const MarkedString& text, const std::string_view* stripped, bool left, bool right);

}  // namespace hone::jinja
