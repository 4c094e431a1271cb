// TokenBlock: samples of one data set, in memory and in a cache file, with a report of their rows.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/text/json_fwd.h"
#include "text/prompt_comparison.h"

namespace hone {

inline constexpr int32_t kIgnoredLabel = -100;

/// The origin of a row.
struct SampleOrigin {
  int64_t row = 0;   ///< in its data set, from 0
  int64_t line = 0;  ///< in its file, from 1
  int32_t file = 0;  ///< index in the files of its data set
};

/// One sample: a document of tokens. labels are aligned with input_ids: labels[i] is the target of position i - 1;
/// kIgnoredLabel: no loss. labels[0] is never used.
struct Sample {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels;
  std::vector<float> weights;  ///< one for each label, in the loss; empty: all 1

  /// Number of supervised positions, without the first one.
  int64_t supervised() const;
};

/// Counts of samples.
struct SampleCounts {
  int64_t offered = 0, kept = 0, truncated = 0, split = 0;
  int64_t too_long = 0;      ///< dropped because of their length
  int64_t unsupervised = 0;  ///< dropped because they have no supervised tokens
  int64_t tokens = 0, supervised = 0;
  int64_t dropped_tokens = 0;  ///< without those of samples that were not made (EncodedRow::expanded_left_out)

  SampleCounts& operator+=(const SampleCounts& other);
  bool operator==(const SampleCounts&) const = default;
};

/// Rows without supervised tokens, by cause.
struct NothingLearnt {
  std::string cause;
  int64_t rows = 0;
  std::string first_where;      ///< file:line
  bool masked_by_data = false;  ///< the rows themselves have weights of 0

  bool operator==(const NothingLearnt&) const = default;
};

/// A notice that is reported once for all rows that have it.
struct RowNotice {
  std::string text;
  int64_t rows = 0;
  std::string first_where;  ///< file:line

  bool operator==(const RowNotice&) const = default;
};

/// Answers with the same difference between the prompt in training and at inference.
struct AskedOtherwise : PromptDifference {
  int64_t answers = 0;
  std::string first_where;  ///< file:line

  bool operator==(const AskedOtherwise&) const = default;
};

/// The report of a number of rows.
struct RowsReport {
  int64_t rows = 0;
  SampleCounts counts;
  std::vector<NothingLearnt> nothing_learnt;
  std::vector<RowNotice> notices;
  int64_t answers = 0;                          ///< supervised answers, compared with the prompt at inference
  std::vector<AskedOtherwise> asked_otherwise;  ///< at most 8; the last one counts all others
  std::set<std::string> unused_columns;         ///< columns of the data that were not read in some row

  void add_nothing_learnt(const NothingLearnt& added);
  void add_notice(const RowNotice& added);
  void add_difference(const AskedOtherwise& added);
  /// Adds the report of the next rows.
  RowsReport& operator+=(const RowsReport& next);
  bool operator==(const RowsReport&) const = default;

  Json to_json() const;
  /// Throws nlohmann::json::exception if `json` is not the output of to_json().
  static RowsReport from_json(const Json& json);
};

/// A sample in a block.
struct SampleRecord {
  int64_t begin = 0;                   ///< its first token in the block
  int32_t length = 0, supervised = 0;  ///< number of tokens, number of supervised positions
  int64_t row = 0, line = 0;
  int32_t file = 0, reserved = 0;
  uint64_t text_key = 0;
};
static_assert(sizeof(SampleRecord) == 48 && std::has_unique_object_representations_v<SampleRecord>,
              "records are written as they are");

/// Consecutive rows of a data set: immutable, shared by copies. The arrays are in memory or in a mapped file.
struct TokenBlock {
  std::span<const SampleRecord> samples;
  std::span<const int32_t> input_ids, labels;  ///< those of all samples, one after another
  std::span<const float> weights;              ///< one for each label; empty: all 1
  std::span<const int32_t> lengths;  ///< length of each offered sample in tokens, before truncation and dropping
  RowsReport report;
  /// Hash of tokens, labels, weights and boundaries: blocks with equal digests train alike.
  uint64_t digest = 0;
  std::shared_ptr<const void> memory;  ///< owns the arrays
};

// The result of encoding a row: its samples and notices.

struct EncodedRow {
  Sample sample;
  /// Additional samples of the row: rewritten answers (history_rewrites: expand).
  std::vector<Sample> expanded = {};
  /// Further ones, which would be too long to learn from and were not made.
  int64_t expanded_left_out = 0;
  SampleOrigin origin = {};
  uint64_t text_key = 0;                         ///< a hash of its text (data/formats/text_key.h)
  std::vector<std::string> unused_columns = {};  ///< columns of the data that are not read
  /// Why no token is supervised; empty otherwise.
  std::string nothing_learnt = {};
  /// No token is supervised because of the row's weights of 0.
  bool masked_by_data = false;
  /// The problem with the end of an answer; empty: none.
  std::string turn_end_problem = {};
  bool doubled_bos = false;   ///< the text begins with two bos tokens
  bool partly_shown = false;  ///< the template omits characters of a supervised message
  /// Messages, calls and tools that the template renders nowhere: a sentence for each kind.
  std::vector<std::string> not_rendered = {};
  /// Control tokens in the text of messages, encoded as such: a sentence; empty: none.
  std::string control_tokens = {};
  bool history_rewritten = false;  ///< the template renders a supervised answer differently once more messages follow
  int64_t answers = 0;             ///< supervised answers, compared with the prompt at inference
  std::vector<PromptDifference> prompt_differences = {};  ///< those answers whose prompt at inference differs
  bool other_roles_ask = false;  ///< another role than assistant has a loss weight, which is ignored
};

}  // namespace hone
