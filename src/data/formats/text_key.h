// A key of a sample's text: equal for texts that differ only in white space. Finds duplicates and leaks.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/checksum.h"

namespace hone {

/// Hashes the pieces of a text in order. Within a piece, a run of white space counts as one space, and white space at
/// its ends is ignored; pieces of only white space are ignored.
class TextKey {
 public:
  void add(std::string_view piece);
  /// For tokens without text.
  void add(std::span<const int32_t> ids) { hash_.update(ids); }

  uint64_t value() const { return hash_.digest(); }

 private:
  Xxh64 hash_;
};

}  // namespace hone
