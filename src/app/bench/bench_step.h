// hone bench step: the speed and memory of a training step of a released model's shape, with random weights.
#pragma once

#include <cstdint>
#include <string>

#include "config/choices.h"
#include "core/base/dtype.h"
#include "train/plan/trainer_ranks.h"

namespace hone {

struct BenchStepOptions {
  std::string model;          ///< a shape's name or a config.json, or the folder of one
  int64_t layers = 0;         ///< the first so many; 0: all
  std::string mode = "full";  ///< full, lora (attention) or lora-all (attention and every expert or MLP)
  int64_t lora_r = 16;
  std::string expert_lora = "shared";  ///< with lora-all: shared, as PEFT's target_parameters, or split
  int64_t seq = 4096;                  ///< tokens of a document
  int64_t batch = 4;                   ///< documents of a step, packed into one micro-batch
  int64_t micro_batches = 1;           ///< in a step, on each rank
  int64_t warmup = 3;                  ///< steps before those that are timed
  int64_t steps = 8;                   ///< that are timed
  std::string device = "auto";
  std::string dtype = "bfloat16";
  std::string base_weight_dtype = "dtype";   ///< the format of frozen weights, as the key of that name
  std::string expert_weight_dtype = "auto";  ///< one of expert_format_names(); int8 with LoRA and experts on a CPU
  DType grad_dtype = DType::kF32, master_dtype = DType::kF32;  ///< float32 or bfloat16
  DType opt_m_dtype = DType::kF32, opt_v_dtype = DType::kF32;  ///< float32, bfloat16 or int8
  bool optimizer_in_backward = false;                          ///< without clipping
  FetchWay weight_fetch = FetchWay::kAuto;
  std::vector<OffloadPart> cpu_offload;
  int64_t offload_expert_layers = 0;  ///< layers that cpu_offload experts streams, as the config key; 0: all
  int64_t cpu_expert_layers = 0;      ///< with experts_device cpu: of how many layers; 0: all
  ExpertsOn experts_device = ExpertsOn::kDevice;  ///< or kCpu
  std::string recompute = "auto";                 ///< a level of train/plan/recompute.h, or auto: the first that fits
  GraphUse cuda_graphs = GraphUse::kAuto;
  int zero_stage = 0;              ///< what several ranks share
  int shard_size = 0;              ///< how many of them shard together; 0: all
  int expert_ranks = 1;            ///< over how many of them experts are spread
  int threads = 0;                 ///< 0: all cores
  std::string routing = "router";  ///< which experts tokens go to (app/bench/bench_routing.h)
  uint64_t seed = 42;
  std::string text;       ///< a file whose text the documents are cut from; "": random tokens
  std::string tokenizer;  ///< for the text: a tokenizer.json, or the folder of one; "": the model's folder
  int64_t tokens() const { return micro_batches * batch * seq; }  ///< in a step

  std::string json;     ///< file for the results; "-": JSON alone on standard output
  std::string profile;  ///< file for a time line of three further steps; with experts on the CPU FILE.host for theirs
  bool force = false;   ///< replace these files even if they are not earlier results
};

/// Trains on random tokens, or on a text's, all of them supervised: LoRA r 16 and alpha 32, AdamW, clipping at 1 (not
/// with optimizer_in_backward), no auxiliary loss. Ranks that were started together each take the batch; what one of
/// them does alone is measured first, at the same time on all, where it fits. Steps are timed from queuing the batch
/// until the loss has been read; model FLOP/s count forward FLOPs three times (LoRA: twice) and recomputation not at
/// all. Returns the exit code.
int run_bench_step(const BenchStepOptions& options, const TrainerRanks& ranks = {});

}  // namespace hone
