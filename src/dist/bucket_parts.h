// The ranks' parts of a bucket, as collectives take them.
#pragma once

#include <vector>

#include "dist/communicator.h"
#include "params/bucket.h"

namespace hone {

inline std::vector<Part> parts_of(const Bucket& bucket) {
  std::vector<Part> parts;
  for (int r = 0; r + 1 < static_cast<int>(bucket.cuts.size()); ++r) {
    const Slice part = bucket.part_of(r);
    parts.push_back({part.begin, part.count});
  }
  return parts;
}

}  // namespace hone
