// A key of a sample's text: equal for texts that differ in white space only. For duplicates and leaks.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/checksum.h"

namespace hone {

/// Takes the pieces of a text in order. Within a piece, runs of white space count as one space, and none at its ends;
/// pieces of white space alone do not count at all.
class TextKey {
 public:
  void add(std::string_view piece);
  /// Of tokens, where there is no text.
  void add(std::span<const int32_t> ids) { hash_.update(ids); }

  uint64_t value() const { return hash_.digest(); }

 private:
  Xxh64 hash_;
};

}  // namespace hone
