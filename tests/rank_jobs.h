// Training jobs of one rank, or of several that are threads, for tests that compare what they give.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/verify/reference_tensor.h"
#include "core/base/kernel_tier.h"
#include "dist/exchange/weight_fetcher.h"
#include "dist/transport/communicator.h"
#include "optim/adamw_rule.h"
#include "params/bucket.h"
#include "params/parameter.h"
#include "params/parameter_store.h"
#include "run_noise.h"
#include "train/step/engine.h"

namespace hone {

/// The folder of the reference cases.
std::filesystem::path goldens();
/// The device that the tests run on.
Device device_under_test();

inline constexpr std::array kStages = {ZeroStage::kNone, ZeroStage::kState, ZeroStage::kGradients, ZeroStage::kValues};
inline constexpr std::array kShardedStages = {ZeroStage::kState, ZeroStage::kGradients, ZeroStage::kValues};

/// "4 ranks, stage 3, in groups of 2", for messages.
std::string traced(int ranks, ZeroStage stage, int shard_size = 0);

/// A training job.
struct Job {
  std::string model = "qwen3_moe";
  std::string adapter = {};  ///< folder in the case; "": train the whole model
  DType dtype = DType::kF32;
  TrainingFormats formats = {};
  double aux_coefficient = 0.01;
  double max_grad_norm = 1;
  std::shared_ptr<const Rule> rule = adamw_rule();  ///< with Muon, AdamW steps all but hidden matrices
  std::vector<StepData> steps = {};
  size_t first = 0;                    ///< index of the first step
  std::filesystem::path save_to = {};  ///< the training state, after the last step
  std::filesystem::path resume_from = {};
  int64_t least_bucket_bytes = 0;
  int shard_size = 0;          ///< ranks that shard together; 0: all
  int expert_ranks = 1;        ///< ranks over which experts are spread
  std::string base = "dtype";  ///< base_weight_dtype
  bool unpacked = false;       ///< the base is dense, with the values of `base`
  Offload offload = {};
  bool frozen_in_files = false;    ///< as in RankShare
  int64_t host_expert_layers = 0;  ///< as in RankShare
  int host_ranks = 0;              ///< ranks of a host, which share memory; 0: all
  bool offload_activations = false;
  const ValueFormat* layer_inputs = nullptr;
  FetchWay weight_fetch = FetchWay::kAuto;
  bool map_values = true;
  bool uneven = false;             ///< the first rank is late before each update, the others before each pass
  bool recompute = false;          ///< at level kEverything
  bool recompute_on_host = false;  ///< the same of experts on the host
  std::optional<int64_t> moe_token_tile = {}, mlp_token_tile = {};
  bool optimizer_in_backward = false;
  std::vector<KernelTier> tiers = {};  ///< the highest tier of each rank's GPU kernels; empty: the GPU's
  uint64_t jitter = 0;                 ///< seed of a jitter of the weights that it begins with; 0: none. For one rank
  std::function<void(ParameterStore&)> before_update = {};  ///< what is done to the gradients of each step
};

/// The result of a job.
struct Outcome {
  std::vector<StepResult> steps;
  LossResult evaluation;                      ///< on the last step's data, after training
  std::vector<std::string> kernels;           ///< that each rank has used (KernelNotes::text())
  HostTensors values;                         ///< for f32 models
  std::vector<std::vector<std::byte>> bytes;  ///< all trained values
};

/// Steps with `counts[i]` documents of the case in step i, one micro-batch per document.
std::vector<StepData> steps_of(const std::string& model, const std::vector<size_t>& counts);

/// Runs the job on this rank of `ranks` (null: one rank).
Outcome train(const Job& job, Communicator* ranks, ZeroStage stage);
/// Runs the job with `count` ranks, and checks that all have the same final values and results.
Outcome train_by(int count, const Job& job, ZeroStage stage);
/// The bytes of the model of case qwen3_moe in bfloat16 on a rank that shares so, with `layers` layers (0: the case's),
/// trained or frozen.
ParameterBytes bytes_of(const RankShare& share, int64_t layers = 0, bool trained = true);
/// The values that the job begins with.
HostTensors initial_values(Job job);

/// For comparisons: NaN is not equal to itself.
uint64_t bits_of(double value);
/// ‖(a − b)‖ / ‖b − initial‖ over all tensors.
double change_error(const HostTensors& a, const HostTensors& b, const HostTensors& initial);
/// The differences of a float32 run from one rank's, whose job is `job`. Only the order of sums differs, so the bounds
/// are those of `hone verify` for comparisons with transformers, which differ by the same. Those after the last step
/// alone, since a run that goes on has no steps before.
Differences differences_at_the_end(const Outcome& ours, const Outcome& one, const Job& job);
Differences differences(const Outcome& ours, const Outcome& one, const Job& job);
/// As differences(), of a run in bfloat16: losses and norms, with these bounds.
Differences differences_of_numbers(const Outcome& ours, const Outcome& one, double loss, double grad_norm);
/// What is left of such differences (run_noise.h). `job` is one rank's, from its first step on, and `compare` how they
/// were measured.
std::vector<std::string> unexplained(const Differences& found, const Job& job,
                                     const std::function<Differences(const Outcome&, const Outcome&)>& compare);
/// Checks that a run differs from one rank's by no more than correct runs may.
void expect_same_training(const Outcome& ours, const Outcome& one, const Job& job);
/// The same of a run that went on from a file: `job` is the whole one.
void expect_same_end(const Outcome& ours, const Outcome& one, const Job& job);
void expect_same_numbers(const Outcome& ours, const Outcome& one, const Job& job, double loss, double grad_norm);
void expect_same_bits(const Outcome& a, const Outcome& b);

}  // namespace hone
