// A split with a slice of its rows, written as Hugging Face datasets writes it: train[:20%], train[100:200],
// test[-50:].
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hone {

/// The rows from `begin` up to `end`, counted from 0.
struct RowRange {
  int64_t begin = 0, end = 0;
};

struct SplitSlice {
  std::string name;                           ///< the split's; may be ""
  bool sliced = false;                        ///< false: all rows
  std::optional<int64_t> from = {}, to = {};  ///< rows, or percent; below 0 from the end; unset: the first, or the last
  bool percent = false;

  /// Whether range() depends on the number of rows, beyond ending there.
  bool needs_count() const;
  /// The rows of the slice among `total`; percentages are rounded to whole rows, halves to the even one.
  RowRange range(int64_t total) const;
};

/// Reads a split. Throws UserError for a slice of another form ("train[7]", "train[:20%](pct1_dropremainder)"), for
/// more than 100 % and for a slice without a name.
SplitSlice parse_split(const std::string& text);

}  // namespace hone
