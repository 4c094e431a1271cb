// hone bench step: the speed and memory of a training step of a released model's shape, with random weights.
#pragma once

#include <cstdint>
#include <string>

#include "app/key_options.h"
#include "train/plan/trainer_ranks.h"

namespace hone {

struct BenchStepOptions {
  std::string model;                   ///< a shape's name or a config.json, or the folder of one
  int64_t layers = 0;                  ///< the first so many; 0: all
  std::string mode = "full";           ///< full, lora (attention) or lora-all (attention and every expert or MLP)
  std::string expert_lora = "shared";  ///< with lora-all: shared, as PEFT's target_parameters, or split
  int64_t seq = 4096;                  ///< tokens of a document
  int64_t batch = 4;                   ///< documents of a step, packed into one micro-batch
  int64_t warmup = 3;                  ///< steps before those that are timed
  int64_t steps = 8;                   ///< that are timed
  std::vector<std::string> keys;       ///< KEY=VALUE: formats, optimizer, recomputation, ranks, where weights are
  int threads = 0;                     ///< 0: all cores
  std::string routing = "router";      ///< which experts tokens go to (app/bench/bench_routing.h)
  uint64_t seed = 42;
  std::string text;       ///< a file whose text the documents are cut from; "": random tokens
  std::string tokenizer;  ///< for the text: a tokenizer.json, or the folder of one; "": the model's folder

  std::string json;     ///< file for the results; "-": JSON alone on standard output
  std::string profile;  ///< file for a time line of three further steps; with experts on the CPU FILE.host for theirs
  bool force = false;   ///< replace these files even if they are not earlier results
};

/// The keys' values that are other than the schema's.
UsualValues usual_in_bench_step();

/// Trains on random tokens, or on a text's, all of them supervised: LoRA r 16 and alpha 32, AdamW, clipping at 1 (not
/// with optimizer_in_backward), no auxiliary loss. Ranks that were started together each take the batch; what one of
/// them does alone is measured first, at the same time on all, where it fits. Steps are timed from queuing the batch
/// until the loss has been read; model FLOP/s count forward FLOPs three times (LoRA: twice) and recomputation not at
/// all. Returns the exit code.
int run_bench_step(const BenchStepOptions& options, const TrainerRanks& ranks = {});

}  // namespace hone
