// The inputs of the quickstart's two acts: configurations for `hone train`, and a tiny model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/cpu/thread_pool.h"

namespace hone {

/// Sizes of data, training and tests. The defaults pass the quickstart's bars with a margin.
struct QuickstartBudget {
  int64_t english_examples = 40'000, german_examples = 14'000, replay_examples = 6'000;
  int64_t english_steps = 700, german_steps = 350;
  int64_t log_lines = 16;       ///< lines of the console in each act
  int64_t test_examples = 300;  ///< unseen moments in each language
  int64_t new_examples = 200;   ///< with wordings that are not in the training data
};

/// Settings of both acts.
struct RunSettings {
  uint64_t seed = 42;
  std::string device = "cpu";
};

/// Full fine-tuning of `folder`/model on English, with comments.
std::string english_yaml(const std::filesystem::path& folder, const QuickstartBudget& budget,
                         const RunSettings& settings);

/// LoRA on the result of the first act: German, with some English replayed.
std::string german_yaml(const std::filesystem::path& folder, const QuickstartBudget& budget,
                        const RunSettings& settings);

// The quickstart's model: a small Qwen3-MoE with random weights, and a tokenizer made for its data.

/// Writes config.json, tokenizer.json, tokenizer_config.json (with a chat template), generation_config.json and random
/// float32 weights. The vocabulary is learnt from `texts`.
void write_tiny_model(const std::filesystem::path& directory, const std::vector<std::string>& texts, uint64_t seed,
                      ThreadPool& pool);

}  // namespace hone
