// What the loader hands to a training step: host memory, everything a pure function of (data, seed, epoch).
#pragma once

#include <cstdint>
#include <vector>

namespace hone {

/// Packed documents without padding: T tokens, D documents, S supervised tokens.
struct MicroBatch {
  std::vector<int32_t> input_ids;    ///< [T]
  std::vector<int32_t> positions;    ///< [T], from 0 in each document
  std::vector<int64_t> sample_ids;   ///< [T], global index of the sample each token belongs to
  std::vector<int32_t> cu_seqlens;   ///< [D + 1], first token of each document, then T
  std::vector<int32_t> rows;         ///< [S], tokens whose next token is supervised
  std::vector<int32_t> targets;      ///< [S], that next token; always of the same document
  std::vector<float> loss_weights;   ///< [S]
  std::vector<int32_t> dataset_ids;  ///< [S], the data set of each supervised token: index into TrainingData::*_names
  int64_t max_seqlen = 0;

  int64_t tokens() const { return static_cast<int64_t>(input_ids.size()); }
  int64_t documents() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
  int64_t supervised() const { return static_cast<int64_t>(rows.size()); }
};

/// All micro-batches of one optimizer step.
struct StepData {
  std::vector<MicroBatch> micro_batches;
  int64_t samples = 0;
  double epoch = 0;               ///< at the end of the step, fractional
  double packing_efficiency = 1;  ///< tokens / (micro-batches × capacity)

  int64_t tokens() const;
  int64_t supervised() const;
  double loss_weight() const;  ///< Σ loss weights
};

/// Constants of a run: no micro-batch is larger.
struct BatchCapacity {
  int64_t max_tokens = 0, max_documents = 0, max_supervised = 0, max_seqlen = 0;
};

}  // namespace hone
