// Random orders.
#pragma once

#include <utility>

#include "core/philox.h"

namespace hone {

/// Fisher-Yates.
void shuffle_with(PhiloxSequence& random, auto& items) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.below(i)]);
}

}  // namespace hone
