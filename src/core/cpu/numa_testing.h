// For tests: as many NUMA nodes as a test asks for.
#pragma once

#include <string>

#include "core/files/environment_testing.h"

namespace hone {

/// Divides the cores into `count` nodes (HONE_NUMA_NODES of core/cpu/numa.h) for what is made while it lives, also by
/// programs that are started.
class StatedNodes : StatedVariable {
 public:
  explicit StatedNodes(int count) : StatedVariable("HONE_NUMA_NODES", std::to_string(count)) {}
};

}  // namespace hone
