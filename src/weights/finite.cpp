#include "weights/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/error.h"

namespace hone {

namespace {

/// A number is finite unless all bits of its exponent are set.
template <class Bits>
bool none_lost(const std::byte* elements, int64_t count, Bits exponent) {
  const auto* bits = reinterpret_cast<const Bits*>(elements);
  Bits lost = 0;
  for (int64_t i = 0; i < count; ++i) lost |= static_cast<Bits>((bits[i] & exponent) == exponent);
  return lost == 0;
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
