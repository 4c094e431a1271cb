// For tests: as many NUMA nodes as a test asks for.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace hone {

/// Divides the cores into `count` nodes (HONE_NUMA_NODES of core/numa.h) for what is made while it lives, also by
/// programs that are started.
class StatedNodes {
 public:
  explicit StatedNodes(int count) {
    if (const char* before = std::getenv(kName)) before_ = before;
    setenv(kName, std::to_string(count).c_str(), 1);
  }
  ~StatedNodes() { before_ ? setenv(kName, before_->c_str(), 1) : unsetenv(kName); }
  StatedNodes(const StatedNodes&) = delete;
  StatedNodes& operator=(const StatedNodes&) = delete;

 private:
  static constexpr const char* kName = "HONE_NUMA_NODES";
  std::optional<std::string> before_;
};

}  // namespace hone
