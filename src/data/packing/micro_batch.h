// The data of a training step, and packing: which samples share a micro-batch. All in host memory, and a pure function
// of (data, seed, epoch).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hone {

/// Packed documents without padding: T tokens, D documents, S supervised tokens.
struct MicroBatch {
  std::vector<int32_t> input_ids;    ///< [T]
  std::vector<int32_t> positions;    ///< [T], from 0 in each document
  std::vector<int64_t> sample_ids;   ///< [T], id of the token's sample among all samples of the run
  std::vector<int32_t> cu_seqlens;   ///< [D + 1], first token of each document, then T
  std::vector<int32_t> rows;         ///< [S], tokens whose next token is supervised
  std::vector<int32_t> targets;      ///< [S], that next token; always of the same document
  std::vector<float> loss_weights;   ///< [S]
  std::vector<int32_t> dataset_ids;  ///< [S], the token's data set: index into TrainingData::*_names
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

/// The maximum sizes of a micro-batch in a run.
struct BatchCapacity {
  int64_t max_tokens = 0, max_documents = 0, max_supervised = 0, max_seqlen = 0;
};

// Packing: which samples share a micro-batch.

struct PackLimits {
  int64_t max_tokens = 0;     ///< the capacity of a pack
  int64_t max_documents = 0;  ///< the most documents in a pack
};

/// Best fit over consecutive windows of `window` samples: within a window, longest first, each sample goes to the
/// fullest pack with enough space. Packs are in the order of their earliest sample, documents inside a pack in the
/// order of `lengths`: the result is a pure function of the arguments and stays close to the given order. No sample is
/// longer than max_tokens. Returns the indices of each pack.
/// Source: best-fit decreasing, Johnson (1973); for training, Ding et al. (arXiv:2404.10830).
std::vector<std::vector<int64_t>> pack_best_fit(std::span<const int64_t> lengths, const PackLimits& limits,
                                                int64_t window);

/// No packing: each pack has `per_pack` consecutive samples.
std::vector<std::vector<int64_t>> pack_in_order(int64_t samples, int64_t per_pack);

}  // namespace hone
