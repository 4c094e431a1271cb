// The reference cases in tests/fixtures/goldens, for tests that run each of them.
#pragma once

#include <string>
#include <vector>

#include "models/registry.h"

namespace hone {

/// The cases of every architecture.
inline std::vector<std::string> all_cases() {
  std::vector<std::string> names;
  for (const Architecture& architecture : architectures()) {
    names.insert(names.end(), architecture.cases.begin(), architecture.cases.end());
  }
  return names;
}

}  // namespace hone
