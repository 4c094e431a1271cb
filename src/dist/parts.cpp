#include <algorithm>

#include "core/error.h"
#include "dist/communicator.h"

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

void check_parts(const Tensor& tensor, std::span<const Part> parts, int ranks) {
  HONE_ASSERT(parts.size() == static_cast<size_t>(ranks), "one part per rank");
  for (const Part& part : parts) {
    HONE_ASSERT(part.offset >= 0 && part.count >= 0 && part.offset + part.count <= tensor.numel());
  }
}

}  // namespace hone
