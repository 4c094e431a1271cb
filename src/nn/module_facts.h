// What the parts of a model say about themselves: how much they compute, and what they are in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hone {

/// What a forward pass goes through.
struct ForwardWork {
  double tokens = 0;
  double supervised = 0;          ///< those whose logits are computed
  std::vector<double> documents;  ///< their lengths

  /// Pairs of a token and one that it attends to within a window; 0: half the square of each document's length.
  double pairs(int64_t window) const;
};

/// "attention", "32 heads of 128, 4 for keys and values"
struct ModuleSummary {
  std::string name, text;
  bool operator==(const ModuleSummary&) const = default;
};

}  // namespace hone
