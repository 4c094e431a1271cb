// Sampling: chooses the next token from a row of logits, with the rules and the order of Hugging Face transformers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace hone {

/// Sampling options, with the defaults of transformers' GenerationConfig, except for max_new_tokens.
struct SamplingOptions {
  int64_t max_new_tokens = 512;
  double temperature = 1.0;         ///< divides the logits; 0: the most probable token
  int64_t top_k = 50;               ///< keeps only the k most probable tokens; 0: all
  double top_p = 1.0;               ///< keeps only the fewest most probable tokens whose probabilities reach this sum
  double repetition_penalty = 1.0;  ///< for logits of earlier tokens: divides positive ones, multiplies negative ones
  bool do_sample = false;           ///< false: the most probable token
  uint64_t seed = 42;

  bool greedy() const { return !do_sample || temperature == 0; }
};

/// Whether the token is always the one with the largest logit, so only argmax is needed.
inline bool takes_most_probable(const SamplingOptions& options) {
  return options.greedy() && options.repetition_penalty == 1.0;
}

/// Throws UserError with the option for a value outside its range.
void check_sampling(const SamplingOptions& options);

/// The sampling defaults of a model's generation_config.json.
struct SamplingDefaults {
  SamplingOptions options;
  std::vector<std::string> not_applied;  ///< settings that change the result and that Hone does not support
};

/// The defaults of a model folder; those of SamplingOptions if the file or a key is absent. Throws UserError for a
/// malformed file.
SamplingDefaults read_sampling_defaults(const std::filesystem::path& model_directory);

/// Identifies the random number of one token, independent of all other sequences.
struct SamplePoint {
  uint64_t sequence = 0;  ///< index of the prompt
  uint64_t position = 0;  ///< where the new token is, from the start of the prompt
};

/// A token with its logit or log-probability.
struct TokenLogit {
  int32_t id = 0;
  double value = 0;
};

/// The log-probability of token `id` under softmax of `logits` [V]: the first; then the `count` most probable tokens,
/// of equal ones the lower index first, with theirs. Sums in float64.
std::vector<TokenLogit> log_probabilities(std::span<const float> logits, int32_t id, int count);

/// The error for logits that are not finite.
Error logits_not_finite();

/// The next token. `logits` [V] are the model's, in float32; they are overwritten. `seen` contains the distinct tokens
/// of prompt and answer so far (read only with a repetition penalty). In this order:
///   1. repetition penalty (Keskar et al., "CTRL", arXiv:1909.05858)
///   2. greedy: the largest logit
///   3. else temperature; the top_k largest; of these, by their softmax, the fewest whose sum reaches top_p (Holtzman
///     et al., arXiv:1904.09751), at least one; then one at random by Philox of seed, sequence and position.
/// If logits are equal, the one with the lowest index is preferred. (transformers keeps all that equal the k-th.)
/// Throws Error(kNumbersLost) if a logit is NaN or +infinity, or all are -infinity.
int32_t sample_token(std::span<float> logits, std::span<const int32_t> seen, const SamplingOptions& options,
                     SamplePoint point);

}  // namespace hone
