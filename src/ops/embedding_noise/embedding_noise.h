// embedding_noise: uniform noise on the embeddings in training (NEFTune). Source: Jain et al., "NEFTune: Noisy
// Embeddings Improve Instruction Finetuning" (arXiv:2310.05914), algorithm 1.
#pragma once

#include "kernels/lora_dropout.h"
#include "ops/packed_sequences.h"
#include "tape/tape.h"

namespace hone {

/// Parameters of the noise. It is a pure function of the step's seed, the sample, the position in it and the feature,
/// so recomputation, packing, resume and the number of ranks do not change it.
struct EmbeddingNoise {
  float alpha = 0;            ///< α > 0
  PackedSequences sequences;  ///< for the lengths of documents
  LoraDropoutContext rows;    ///< identifies the rows
};

/// The key of a step's numbers; its high word differs from those of adapters and routers (kernels/lora_dropout.h).
HONE_HOST_DEVICE inline uint64_t embedding_noise_key(uint64_t seed) {
  return mix_key(seed, uint64_t{0xfffffffeu} << 32);
}

/// Uniform in [-1, 1) for features 4 · feature_group … + 3 of one row.
HONE_HOST_DEVICE inline std::array<float, 4> embedding_noise_draws(uint64_t key, int64_t sample_id, int32_t position,
                                                                   uint32_t feature_group) {
  const auto words = lora_words(key, sample_id, position, feature_group);
  std::array<float, 4> draws{};
  for (size_t i = 0; i < 4; ++i) draws[i] = 2.0f * to_uniform(words[i]) - 1.0f;
  return draws;
}

/// The document of a row in [0, cu_seqlens[documents]): the last that starts at or before it. Documents without tokens
/// have no rows.
HONE_HOST_DEVICE inline int64_t document_of_row(const int32_t* cu_seqlens, int64_t documents, int64_t row) {
  int64_t low = 0, high = documents;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (cu_seqlens[middle] <= row ? low : high) = middle;
  }
  return low;
}

/// y[t, h] = x[t, h] + α / sqrt(L · H) · u[t, h], rounded once, with L the number of tokens of t's document and u
/// uniform in [-1, 1). x and y [T, H] have the same dtype, float32 or bfloat16; y may be x. The gradient is passed
/// unchanged.
struct EmbeddingNoiseArgs {
  Tensor x, y;
  EmbeddingNoise noise;
};

void embedding_noise(const Context& context, const EmbeddingNoiseArgs& args);

/// Records y. Backward saves nothing.
Var embedding_noise(Tape& tape, Var x, const EmbeddingNoise& noise);

namespace cpu {
void embedding_noise(const Context& context, const EmbeddingNoiseArgs& args);
}

namespace cuda {
void embedding_noise(const Context& context, const EmbeddingNoiseArgs& args);
}

}  // namespace hone
