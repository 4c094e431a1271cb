#include <algorithm>
#include <string>

#include "core/base/error.h"
#include "dist/transport/communicator.h"

namespace hone {

std::vector<Part> even_parts(int64_t total, int ranks, int64_t multiple) {
  HONE_ASSERT(total >= 0 && ranks > 0 && multiple > 0);
  const int64_t each = (total + ranks - 1) / ranks;
  const int64_t step = (each + multiple - 1) / multiple * multiple;
  std::vector<Part> parts;
  for (int r = 0; r < ranks; ++r) {
    const int64_t offset = std::min(total, r * step);
    parts.push_back({offset, std::min(total - offset, step)});
  }
  return parts;
}

void check_parts(const Tensor& full, std::span<const Part> parts, const Tensor& own, const Communicator& ranks) {
  HONE_ASSERT(parts.size() == static_cast<size_t>(ranks.size()), "one part per rank");
  for (const Part& part : parts) {
    HONE_ASSERT(part.offset >= 0 && part.count >= 0 && part.offset + part.count <= full.numel());
  }
  if (!own.defined()) return;
  HONE_ASSERT(own.dtype == full.dtype && own.numel() == parts[static_cast<size_t>(ranks.rank())].count);
}

std::vector<int> ranks_of_colour(Control& control, int colour) {
  const std::string own = std::to_string(colour);
  const std::vector<std::string> all = control.exchange(own);
  std::vector<int> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == own) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace hone
