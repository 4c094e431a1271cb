#include "weights/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/error.h"

namespace hone {

namespace {

/// A number is finite unless all bits of its exponent are set: then the lowest of them, added to them, sets the sign's
/// bit. Eight bytes at a time; no sum passes from a number to the next.
template <class Bits>
bool none_lost(const std::byte* elements, int64_t count, Bits exponent) {
  constexpr uint64_t kEach = ~uint64_t{0} / static_cast<Bits>(~Bits{0});  // a one in the place of each number
  const auto lowest = static_cast<Bits>(exponent & -static_cast<int64_t>(exponent));
  const uint64_t mask = kEach * exponent, one = kEach * lowest;
  uint64_t signs = 0, rest = 0;
  const size_t bytes = static_cast<size_t>(count) * sizeof(Bits), words = bytes / sizeof(uint64_t);
  for (size_t i = 0; i < words; ++i) {
    uint64_t word;
    std::memcpy(&word, elements + i * sizeof(word), sizeof(word));
    signs |= (word & mask) + one;
  }
  if (const size_t left = bytes - words * sizeof(rest)) std::memcpy(&rest, elements + (bytes - left), left);
  signs |= (rest & mask) + one;
  return (signs & (kEach << (8 * sizeof(Bits) - 1))) == 0;
}

}  // namespace

bool all_finite(DType dtype, const std::byte* elements, int64_t count) {
  return dtype == DType::kF32    ? none_lost<uint32_t>(elements, count, 0x7F800000u)
         : dtype == DType::kBF16 ? none_lost<uint16_t>(elements, count, 0x7F80)
         : dtype == DType::kF16  ? none_lost<uint16_t>(elements, count, 0x7C00)
                                 : true;
}

void require_finite(const std::string& name, DType dtype, const std::byte* elements, int64_t count) {
  if (all_finite(dtype, elements, count)) return;
  throw Error(ExitCode::kNumbersLost, "the last update left numbers in '" + name + "' that are not finite", name,
              "nothing of it was saved; go on from the newest checkpoint with a lower learning_rate");
}

}  // namespace hone
