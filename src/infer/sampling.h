// Sampling: the next token from a row of logits, by the rules and in the order of Hugging Face transformers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

namespace hone {

/// How tokens are chosen; defaults are those of transformers' GenerationConfig, except for max_new_tokens.
struct SamplingOptions {
  int64_t max_new_tokens = 512;
  double temperature = 1.0;         ///< logits are divided by it; 0: the most probable token
  int64_t top_k = 50;               ///< only the k most probable tokens; 0: all
  double top_p = 1.0;               ///< only the fewest most probable tokens whose probabilities add up to it
  double repetition_penalty = 1.0;  ///< logits of tokens seen before: divided by it if positive, else multiplied
  bool do_sample = false;           ///< false: the most probable token
  uint64_t seed = 42;

  bool greedy() const { return !do_sample || temperature == 0; }
};

/// Whether the token is the one with the largest logit, whatever stands before it: nothing but argmax is needed.
inline bool takes_most_probable(const SamplingOptions& options) {
  return options.greedy() && options.repetition_penalty == 1.0;
}

/// UserError naming the option for a value outside of its range.
void check_sampling(const SamplingOptions& options);

/// What generation_config.json of a model asks for.
struct SamplingDefaults {
  SamplingOptions options;
  std::vector<std::string> not_applied;  ///< its settings that change what is generated and that Hone does not have
};

/// Defaults of a model folder; those of SamplingOptions where the file or a key is absent. UserError for a broken file.
SamplingDefaults read_sampling_defaults(const std::filesystem::path& model_directory);

/// Names the random number of one token: the same one whatever else is generated beside it.
struct SamplePoint {
  uint64_t sequence = 0;  ///< index of the prompt
  uint64_t position = 0;  ///< of the new token, from the start of the prompt
};

/// What is thrown for them.
Error logits_not_finite();

/// The next token. `logits` [V] are the model's, in float32; they are overwritten. `seen` holds the distinct tokens of
/// prompt and answer so far (read only with a repetition penalty). In this order:
///   1. repetition penalty (Keskar et al., "CTRL", arXiv:1909.05858)
///   2. greedy: the largest logit
///   3. else temperature; the top_k largest; of these, by their softmax, the fewest whose sum reaches top_p (Holtzman
///      et al., arXiv:1904.09751), at least one; then one at random by Philox of seed, sequence and position.
/// Of equal logits the lowest index counts as the larger one. (transformers keeps all tokens that equal the k-th.)
/// Throws Error(kNumbersLost) if a logit is NaN or +infinity, or all are -infinity.
int32_t sample_token(std::span<float> logits, std::span<const int32_t> seen, const SamplingOptions& options,
                     SamplePoint point);

}  // namespace hone
