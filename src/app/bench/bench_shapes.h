// Shapes that benchmarks know by name.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace hone {

/// Name and config.json of each shape, as the released models have it; cpu-moe is what one CPU trains in seconds.
const std::vector<std::pair<std::string, const char*>>& bench_shapes();

}  // namespace hone
