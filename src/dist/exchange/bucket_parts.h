// The ranks' parts of a bucket as arguments of collectives.
#pragma once

#include <vector>

#include "dist/transport/communicator.h"
#include "params/bucket.h"

namespace hone {

inline std::vector<Part> parts_between(const std::vector<int64_t>& cuts) {
  std::vector<Part> parts;
  for (size_t r = 0; r + 1 < cuts.size(); ++r) parts.push_back({cuts[r], cuts[r + 1] - cuts[r]});
  return parts;
}

/// The parts in elements.
inline std::vector<Part> parts_of(const Bucket& bucket) { return parts_between(bucket.layout.cuts); }
/// The parts of stored values: in elements, or in bytes of chunks if the bucket is packed.
inline std::vector<Part> moved_parts_of(const Bucket& bucket) { return parts_between(bucket.value_cuts()); }

}  // namespace hone
