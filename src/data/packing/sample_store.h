// SampleStore: the samples of a run, in blocks in memory or in mapped files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/formats/token_block.h"

namespace hone {

/// A sample in a store.
struct SampleView {
  std::span<const int32_t> input_ids, labels;
  std::span<const float> weights;  ///< empty: all 1
  int32_t dataset = 0;
  SampleOrigin origin;
  uint64_t text_key = 0;
};

class SampleStore {
 public:
  explicit SampleStore(int64_t max_length = 0) : max_length_(max_length) {}

  /// Adds all samples of a block of data set `dataset`.
  void append(const TokenBlock& block, int32_t dataset);

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  int64_t length(int64_t i) const { return record(i).length; }
  SampleView operator[](int64_t i) const;
  /// Dropped, truncated and split samples are counted over all offered samples; kept, tokens and supervised over the
  /// samples of the store.
  const SampleCounts& counts() const { return counts_; }
  /// The maximum length of a sample.
  int64_t max_length() const { return max_length_; }

  /// Moves the samples at `positions` (ascending) to a new store (a validation split); the rest keep their order. Both
  /// stores share the blocks.
  SampleStore extract(const std::vector<int64_t>& positions);

  /// A hash of every token, label and weight.
  std::string fingerprint() const;
  /// The same hash for the samples of one data set.
  std::string fingerprint_of(int32_t dataset) const;

 private:
  struct Entry {
    uint32_t block, sample;
  };
  struct Block {
    TokenBlock tokens;
    int32_t dataset;
  };

  const SampleRecord& record(int64_t i) const {
    const Entry entry = entries_[static_cast<size_t>(i)];
    return blocks_[entry.block].tokens.samples[entry.sample];
  }
  void count_kept();

  int64_t max_length_;
  std::vector<Block> blocks_;
  std::vector<Entry> entries_;
  SampleCounts counts_;
};

}  // namespace hone
