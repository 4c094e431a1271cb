// Scored texts: tokens whose likelihood an evaluation measures, packed into micro-batches whose losses are apart.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/packing/micro_batch.h"

namespace hone {

/// A text of which the tokens from `from` (at least 1) on are scored, at least one.
struct ScoredText {
  std::vector<int32_t> ids;
  int64_t from = 1;
};

/// How many texts an engine scores at once: each counts as a data set whose loss is apart (EngineOptions).
constexpr int64_t kScoredAtOnce = 1024;

/// Micro-batches of consecutive texts for one evaluation; dataset_ids are the places of texts in it.
struct ScoredBatches {
  std::vector<MicroBatch> batches;
  int64_t texts = 0;  ///< up to kScoredAtOnce
};

/// All texts in their order. A pure function of the texts.
std::vector<ScoredBatches> scored_batches(std::span<const ScoredText> texts);

/// The largest of these micro-batches. Without texts: that of one token, with which an engine can be planned.
BatchCapacity scored_capacity(std::span<const ScoredText> texts);

}  // namespace hone
