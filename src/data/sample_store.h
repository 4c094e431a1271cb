// SampleStore: tokenized samples, flat in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hone {

inline constexpr int32_t kIgnoredLabel = -100;

/// One sample: a document of tokens. labels are aligned with input_ids: labels[i] is what position i - 1 should
/// predict, kIgnoredLabel where nothing is learnt; labels[0] is never used.
struct Sample {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels;
  std::vector<float> weights;  ///< of each label in the loss; empty: all 1
  int32_t dataset = 0;

  /// Positions that are learnt, the first one aside.
  int64_t supervised() const;
};

/// What to do with a sample longer than max_length.
enum class Overlength { kDrop, kTruncateLeft, kTruncateRight, kSplit, kError };

/// A sample in a store.
struct SampleView {
  std::span<const int32_t> input_ids, labels;
  std::span<const float> weights;
  int32_t dataset = 0;
};

class SampleStore {
 public:
  /// What happened to the samples that were offered.
  struct Counts {
    int64_t offered = 0, kept = 0, truncated = 0, split = 0;
    int64_t too_long = 0;      ///< dropped for their length
    int64_t unsupervised = 0;  ///< dropped because nothing in them is learnt
    int64_t tokens = 0, supervised = 0, dropped_tokens = 0;
  };

  SampleStore(int64_t max_length, Overlength overlength) : max_length_(max_length), overlength_(overlength) {}

  /// Adds a sample, cut or split as the policy says; samples with nothing to learn are dropped and counted. `where`
  /// (file:line) is for errors: a sample that is too long under kError.
  void add(const Sample& sample, const std::string& where);

  int64_t size() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t length(int64_t i) const;
  SampleView operator[](int64_t i) const;
  const Counts& counts() const { return counts_; }
  int64_t max_length() const { return max_length_; }

  /// Moves the listed samples out into a store of their own (a validation split); the rest keep their order.
  SampleStore extract(const std::vector<int64_t>& indices);

  /// A hash of every token, label and weight.
  std::string fingerprint() const;

 private:
  void append(std::span<const int32_t> ids, std::span<const int32_t> labels, std::span<const float> weights,
              int32_t dataset);

  int64_t max_length_;
  Overlength overlength_;
  std::vector<int64_t> offsets_ = {0};
  std::vector<int32_t> input_ids_, labels_, datasets_;
  std::vector<float> weights_;
  Counts counts_;
};

}  // namespace hone
