// Whether a run on several GPUs is faster with its experts spread over them.
#pragma once

#include <string>

#include "config/run_config.h"
#include "nn/decoder_config.h"

namespace hone {

/// A sentence about expert_parallel_size, or "" where it is well chosen or nothing is known. From the steps measured on
/// two GPUs (docs/distributed.md, expert parallelism): of full fine-tuning, spreading wins up to 8,192 tokens of a
/// rank's micro-batch and no longer at 16,384; with adapters, zero_stage 3 wins. `run` has its max_length and ranks.
std::string spread_advice(const RunConfig& run, const DecoderConfig& decoder);

}  // namespace hone
