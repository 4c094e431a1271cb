// The quickstart's model: a small Qwen3-MoE with random weights, and a tokenizer made for its data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/thread_pool.h"

namespace hone {

/// Writes config.json, tokenizer.json, tokenizer_config.json (with a chat template), generation_config.json and random
/// float32 weights, as any model folder has them. The vocabulary is learnt from `texts`.
void write_tiny_model(const std::filesystem::path& directory, const std::vector<std::string>& texts, uint64_t seed,
                      ThreadPool& pool);

}  // namespace hone
