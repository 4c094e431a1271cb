// Facts that modules report about themselves: the work of a forward pass, and a summary for users.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hone {

/// The tokens of a forward pass.
struct ForwardWork {
  double tokens = 0;
  double supervised = 0;          ///< tokens whose logits are computed
  std::vector<double> documents;  ///< the lengths of the documents

  /// The number of pairs of a query and a key within `window`. 0 is no window: half the square of each document's
  /// length.
  double pairs(int64_t window) const;
};

/// A module's kind and sizes: "attention", "32 heads of 128, 4 for keys and values".
struct ModuleSummary {
  std::string name, text;
  bool operator==(const ModuleSummary&) const = default;
};

}  // namespace hone
