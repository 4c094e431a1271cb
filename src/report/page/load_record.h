// The load of experts over a run, small enough for a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/text/json_fwd.h"

namespace hone {

/// A share of tokens as a byte: 0 for an expert without tokens, else 32 times its load over the mean load of the
/// layer's experts, rounded, from 1 to 255 (eight times the mean and more).
uint8_t load_byte(double share, size_t experts);

/// Collects the rows of expert_load.jsonl.
class LoadRecord {
 public:
  /// Adds a row {"step", "layers": [[share of each expert]]}. Rows of other sizes than the first, or that are not such
  /// rows, are ignored.
  void add(const Json& row);

  /// null without rows, else {steps, layers, experts, bytes: base64 of load_byte() [steps, layers, experts], dead:
  /// [[layer, expert]] and hot: [[layer, expert, load over the mean]] of the last row, dead_count, hot_count}. Steps
  /// are left out evenly, the first and last never, until there are at most `most` bytes; null if that leaves fewer
  /// than one. Named are at most 50 experts each, of hot ones (twice the mean load and more) the hottest.
  Json json(size_t most) const;

 private:
  static constexpr size_t kMostRows = 512;

  std::vector<int64_t> steps_;
  std::vector<std::vector<uint8_t>> rows_;
  std::vector<double> last_;  // shares × experts of the last row
  size_t layers_ = 0, experts_ = 0;
  size_t stride_ = 1, skipped_ = 0;  // every stride-th row is kept, and the last
};

}  // namespace hone
