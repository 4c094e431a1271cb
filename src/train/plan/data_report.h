// The data report of a run for its user: before step 0, in `hone prepare` and in `--dry-run`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/text/json_value.h"
#include "data/dataset/dataset_builder.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace hone {

/// Report texts, in which every line ends in '\n', and warnings.
struct DataReport {
  std::string detail;  ///< the full report
  std::string brief;   ///< about ten lines, shown instead of detail
  std::string text;    ///< shown after either
  std::vector<std::string> warnings;
  /// The numbers of the report for run_plan.json: {"sets": [{name, split, format, rows, samples, tokens, supervised,
  /// median, p90, p99, longest, dropped, truncated, cut, unsupervised, histogram: [[from, to, rows, tokens]]}],
  /// "duplicates", "leaks": {rows, repeated, examples}}; of data_report() only.
  JsonValue facts = {};
};

/// Table of the data sets (rows, samples, tokens, supervised share, lengths); rows dropped, cut or split with their
/// share of the tokens; rows without supervised tokens by cause; in detail also a bar chart of the lengths of the
/// training data. Warnings: unused rows, duplicates in the training data, validation rows that are trained on (two
/// examples each). `width` in columns; 0: unlimited.
DataReport data_report(const TrainingData& data, int64_t max_length, int width, bool color);

/// How samples begin and end, from the first thousand samples.
struct TurnEnds {
  int64_t answers = 0;        ///< supervised spans, each ending within its sample or at its last token
  int64_t stopped = 0;        ///< spans whose last token ends generation
  std::optional<int32_t> id;  ///< the most frequent such token
  int64_t bos = 0, doubled_bos = 0, samples = 0;
};
TurnEnds turn_ends(const SampleStore& store, const SpecialTokens& special);

/// Samples with their masks, spread evenly over the store and including the first: three with long spans shortened, or
/// `samples` complete ones; in brief the beginning of the first one. Then checks of BOS and of the end-of-turn token:
/// it must be one token, supervised, and listed in eos_token_id of generation_config.json. `tokenizer` may be null
/// (tokenized data).
DataReport proof_sheet(const TrainingData& data, const Tokenizer* tokenizer, const TokenizerConfig& config,
                       std::optional<int64_t> samples, bool color);

}  // namespace hone
