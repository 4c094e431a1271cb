// TokenBlock: samples of one data set as they stand in memory and in a cache file, and what became of their rows.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/json_fwd.h"
#include "text/prompt_comparison.h"

namespace hone {

inline constexpr int32_t kIgnoredLabel = -100;

/// Where a row came from.
struct SampleOrigin {
  int64_t row = 0;   ///< of its data set, from 0
  int64_t line = 0;  ///< of its file, from 1
  int32_t file = 0;  ///< index in the files of its data set
};

/// One sample: a document of tokens. labels are aligned with input_ids: labels[i] is what position i - 1 should
/// predict, kIgnoredLabel where nothing is learnt; labels[0] is never used.
struct Sample {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels;
  std::vector<float> weights;  ///< of each label in the loss; empty: all 1

  /// Positions that are learnt, the first one aside.
  int64_t supervised() const;
};

/// What happened to the samples that were offered.
struct SampleCounts {
  int64_t offered = 0, kept = 0, truncated = 0, split = 0;
  int64_t too_long = 0;      ///< dropped for their length
  int64_t unsupervised = 0;  ///< dropped because nothing in them is learnt
  int64_t tokens = 0, supervised = 0, dropped_tokens = 0;

  SampleCounts& operator+=(const SampleCounts& other);
  bool operator==(const SampleCounts&) const = default;
};

/// Rows of which nothing is learnt, by cause.
struct NothingLearnt {
  std::string cause;
  int64_t rows = 0;
  std::string first_where;      ///< file:line
  bool masked_by_data = false;  ///< the rows themselves say so

  bool operator==(const NothingLearnt&) const = default;
};

/// What is told once for all rows that share it.
struct RowNotice {
  std::string text;
  int64_t rows = 0;
  std::string first_where;  ///< file:line

  bool operator==(const RowNotice&) const = default;
};

/// Answers that are asked for with another prompt than they are learnt behind, alike.
struct AskedOtherwise : PromptDifference {
  int64_t answers = 0;
  std::string first_where;  ///< file:line

  bool operator==(const AskedOtherwise&) const = default;
};

/// What became of rows.
struct RowsReport {
  int64_t rows = 0;
  SampleCounts counts;
  std::vector<NothingLearnt> nothing_learnt;
  std::vector<RowNotice> notices;
  int64_t answers = 0;  ///< that are learnt, and were compared with the prompt that asks for them
  std::vector<AskedOtherwise> asked_otherwise;  ///< at most 8; the last one counts all further ones
  std::set<std::string> unused_columns;         ///< columns of the data that were not read in some row

  void add_nothing_learnt(const NothingLearnt& added);
  void add_notice(const RowNotice& added);
  void add_difference(const AskedOtherwise& added);
  /// Adds the report of the rows that follow.
  RowsReport& operator+=(const RowsReport& next);
  bool operator==(const RowsReport&) const = default;

  Json to_json() const;
  /// Throws nlohmann::json::exception for what to_json did not write.
  static RowsReport from_json(const Json& json);
};

/// A sample in a block.
struct SampleRecord {
  int64_t begin = 0;                   ///< its first token in the block
  int32_t length = 0, supervised = 0;  ///< tokens, positions that are learnt
  int64_t row = 0, line = 0;
  int32_t file = 0, reserved = 0;
  uint64_t text_key = 0;
};
static_assert(sizeof(SampleRecord) == 48 && std::has_unique_object_representations_v<SampleRecord>,
              "records are written as they are");

/// Consecutive rows of a data set: immutable, shared by copies. The arrays are in memory or in a mapped file.
struct TokenBlock {
  std::span<const SampleRecord> samples;
  std::span<const int32_t> input_ids, labels;  ///< of all samples
  std::span<const float> weights;              ///< of each label; empty: all 1
  std::span<const int32_t> lengths;            ///< tokens of everything offered, before it was cut or dropped
  RowsReport report;
  /// Of tokens, labels, weights and borders: equal blocks train alike.
  uint64_t digest = 0;
  std::shared_ptr<const void> memory;  ///< keeps the arrays
};

// What encoding a row gives: the sample, and what is worth telling about it.

struct EncodedRow {
  Sample sample;
  /// Further samples of the row: answers that the template shows otherwise later (history_rewrites: expand).
  std::vector<Sample> expanded = {};
  SampleOrigin origin = {};
  uint64_t text_key = 0;                         ///< of its text (data/text_key.h)
  std::vector<std::string> unused_columns = {};  ///< columns of the data that nothing is read from
  /// Why nothing of it is learnt; empty if something is.
  std::string nothing_learnt = {};
  /// Nothing is learnt since the row itself says so (weights of 0).
  bool masked_by_data = false;
  /// What is wrong with the end of an answer; empty: nothing.
  std::string turn_end_problem = {};
  bool doubled_bos = false;        ///< the text begins with two bos tokens
  bool partly_shown = false;       ///< the template leaves out characters of a message that is learnt
  bool history_rewritten = false;  ///< the template shows an answer that is learnt otherwise once more follows
  int64_t answers = 0;             ///< that are learnt, and were compared with the prompt that asks for them
  std::vector<PromptDifference> prompt_differences = {};  ///< of those that are asked for otherwise
  bool other_roles_ask = false;                           ///< another role than assistant asks to be learnt, and is not
};

}  // namespace hone
