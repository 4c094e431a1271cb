// What a run learns from, as a person reads it: before step 0, in `hone prepare` and in `--dry-run`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/dataset_builder.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace hone {

/// Texts to show, of lines that each end in '\n', and lines to warn of.
struct DataReport {
  std::string detail;  ///< all there is to see
  std::string brief;   ///< some ten lines in its place
  std::string text;    ///< after either
  std::vector<std::string> warnings;
};

/// A table of the data sets (rows, samples, tokens, supervised share, lengths), what was dropped, cut or split with its
/// share of the tokens, rows with nothing to learn by cause; the lengths of the training data as bars (in detail).
/// Warnings: rows that were not used, duplicates in the training data, validation rows that are trained on (two
/// examples each). `width`: columns; 0: any number fits.
DataReport data_report(const TrainingData& data, int64_t max_length, int width, bool color);

/// How samples end and begin, from the first thousand.
struct TurnEnds {
  int64_t answers = 0;        ///< supervised stretches that end before their sample does, or at its last token
  int64_t stopped = 0;        ///< of them, those whose last token ends generation
  std::optional<int32_t> id;  ///< the token most of those end with
  int64_t bos = 0, doubled_bos = 0, samples = 0;
};
TurnEnds turn_ends(const SampleStore& store, const SpecialTokens& special);

/// Samples with their masks, spread evenly over the store from the first one on: three with long stretches shortened,
/// or `samples` whole ones; in brief the beginning of the first one. Then whether the text begins and answers end as
/// they should: the end-of-turn token is one token, is learnt, and is among the ids at which generation_config.json
/// lets generation stop. `tokenizer` may be null (tokenized data).
DataReport proof_sheet(const TrainingData& data, const Tokenizer* tokenizer, const TokenizerConfig& config,
                       std::optional<int64_t> samples, bool color);

}  // namespace hone
