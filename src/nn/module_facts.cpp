#include "nn/module_facts.h"

#include <algorithm>

namespace hone {

double ForwardWork::pairs(int64_t window) const {
  double pairs = 0;
  for (const double length : documents) {
    const double beyond = window == 0 ? 0 : std::max(length - static_cast<double>(window), 0.0);
    pairs += (length * length - beyond * beyond) / 2;
  }
  return pairs;
}

}  // namespace hone
