// Engine: one optimizer step on one device, alone or together with other ranks. It owns the memory a step needs, sized
// by a dry pass, and reads results back once a step; what happens between steps (data, schedules, files) is the
// trainer's.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/graph_cache.h"
#include "data/micro_batch.h"
#include "dist/data_parallel.h"
#include "dist/weight_ring.h"
#include "nn/decoder.h"
#include "optim/optimizer.h"
#include "train/device_batch.h"
#include "train/routing_load.h"

namespace hone {

struct EngineOptions {
  BatchCapacity capacity;
  RecomputePolicy recompute;
  OptimizerOptions optimizer;
  TrainingMethods methods;
  double router_aux_loss_coef = 0;
  bool aux_loss_sum = false;  ///< Hugging Face's scale: the sum over micro-batches, not their token-weighted mean
  uint64_t seed = 42;
  bool accumulates = true;  ///< false: every optimizer step has one micro-batch, which may need less memory
  /// Data sets whose losses are measured apart; fewer than two: none are.
  int64_t train_datasets = 0, eval_datasets = 0;
  bool offload_activations = false;  ///< between forward and backward kept values are in host memory
  bool training = true;  ///< false: only evaluate() will be called, so parameters need neither gradients nor moments
  GraphUse cuda_graphs = GraphUse::kAuto;  ///< for micro-batches of sizes that come again, and for the update
  /// The ranks that train together, among which the store has been shared; null: one alone. Rank r of n works on
  /// micro-batches r, r + n, … of a step or an evaluation, in as many passes as every other rank; every rank is given
  /// all micro-batches, and the same results.
  Communicator* ranks = nullptr;
};

/// Of the supervised tokens of one data set.
struct DatasetLoss {
  double loss = 0;    ///< Σ w·nll / Σ w; 0 without tokens
  double weight = 0;  ///< Σ w
};

/// Means over the supervised tokens of an optimizer step, or of an evaluation.
struct LossResult {
  double loss = 0;      ///< Σ w·l / Σ w; in training l is smoothed as label_smoothing says
  double aux_loss = 0;  ///< without coefficient; token-weighted mean over micro-batches
  double mean_token_accuracy = 0;
  double entropy = 0;
  int64_t tokens = 0, supervised = 0;
  std::vector<DatasetLoss> datasets = {};  ///< by the number of the data set, if they are measured
};

struct StepResult {
  LossResult loss;
  double loss_with_aux = 0;  ///< and with the auxiliary and the z-loss, each times its coefficient
  double grad_norm = 0;      ///< before clipping
  bool nonfinite = false;
  std::string first_nonfinite;  ///< the parameter whose gradient is not finite
  RoutingLoad routing;
};

/// Where an optimizer step stands.
struct OptimizerStep {
  double learning_rate = 0;
  int64_t index = 0;  ///< from 0
};

/// Bytes a run needs; of the device, but for host().
struct MemoryPlan {
  int64_t activations = 0;       ///< arenas of the tape
  int64_t batch = 0;             ///< packed tokens, routing measurements, position tables
  int64_t host_activations = 0;  ///< kept values in host memory
  ParameterBytes parameters;

  /// In host memory: what is offloaded.
  int64_t host() const { return host_activations + parameters.host; }
  int64_t total() const { return activations + batch + parameters.total(); }
};

class Engine : private GroupObserver {
 public:
  /// The decoder's parameters are in `store`, allocated before the first step (for inference if not `training`).
  /// `stream` runs everything.
  Engine(Decoder& decoder, ParameterStore& store, Stream& stream, EngineOptions options);
  ~Engine() override;

  /// Measures with dry passes (training and evaluation) what a step needs; allocates nothing.
  MemoryPlan plan();
  /// Plans and allocates; before the first step.
  void reserve();
  const EngineOptions& options() const { return options_; }
  /// Ranks that share sharded values: after they were read, they are the same on all for whoever reads a parameter.
  void gather_values();
  /// What brings values to passes of the decoder that are not the engine's; null where all are on the device.
  GroupObserver* value_observer() { return ring_ ? this : nullptr; }
  /// Changes what backward recomputes; before reserve().
  void set_recompute(RecomputePolicy policy) { options_.recompute = policy; }

  /// Forward and backward of all micro-batches: gradients are in the store. Where the layers of the store share the
  /// memory of their gradients, there is one micro-batch, and every parameter is stepped here as soon as its gradient
  /// is there, at `optimizer_step`; nothing is clipped, and gradients that are not finite void the steps of their own
  /// and of earlier layers only.
  void accumulate(const StepData& data, int64_t step, const OptimizerStep& optimizer_step = {});
  /// Queues clipping and the optimizer, where accumulate() has not stepped. finish_update() waits, and returns what the
  /// step measured: what the host has to do meanwhile costs no time.
  void start_update(const OptimizerStep& optimizer_step);
  StepResult finish_update() { return read_results(); }
  /// Both.
  StepResult update(const OptimizerStep& optimizer_step) {
    start_update(optimizer_step);
    return finish_update();
  }
  /// As update without touching the parameters: gradients and the norm only (verification, dry runs).
  StepResult measure();

  /// Loss over micro-batches, without gradients.
  LossResult evaluate(const std::vector<MicroBatch>& batches);

  /// Verification: expert choices to use for every micro-batch instead of the routers' own, i32 [T, k] a MoE layer.
  void force_experts(std::vector<Tensor> ids) {
    forced_experts_ = std::move(ids);
    graphs_.clear();
  }
  /// Verification: where each supervised token's loss of the next micro-batches goes, f32 [max_supervised].
  void record_token_losses(Tensor losses) {
    token_losses_ = losses;
    graphs_.clear();
  }

  /// How micro-batches and updates were queued.
  const GraphCache::Counts& graph_counts() const { return graphs_.counts(); }

 private:
  struct Buffers;

  DeviceBatch upload(const MicroBatch& micro_batch);
  void begin_step();
  void start_measurements(int64_t datasets);
  void sum_measurements();
  /// One a pass; null where the rank has none.
  std::vector<const MicroBatch*> of_this_rank(const std::vector<MicroBatch>& batches) const;
  void run_micro_batch(const DeviceBatch& batch) { run_micro_batch(context_, memory_, batch); }
  void run_micro_batch(const Context& context, TapeMemory& memory, const DeviceBatch& batch);
  void run_evaluation(const Context& context, TapeMemory& memory, const DeviceBatch& batch);
  /// As above, from a recording if there is one; `first` of the optimizer step's: its gradients overwrite.
  void queue_micro_batch(const DeviceBatch& batch, bool first);
  /// The same of a rank's last one, whose gradients are summed over ranks as they are finished.
  void reduce_micro_batch(const DeviceBatch& batch, bool first);
  /// What a rank does while others work on micro-batches and it has none: it acquires and releases what they do, in
  /// their order, and takes part in their sums. Nothing is computed, so the pass leaves no trace in anything else.
  void idle_micro_batch(bool first);
  bool steps_in_backward() const { return store_.layers_share_gradients(); }
  /// Whether a use is to be had for real: the values brought, gradients summed.
  bool serves(const Context& context) const { return !planning_ && (idle_ || !context.dry()); }
  void acquired(const Context& context, const ParameterGroup& group, Use use) override;
  void released(const Context& context, const ParameterGroup& group, Use use) override;
  /// Whether a pass starts collectives or copies of its own, which no recording has.
  bool brings_or_reduces() const {
    return store_.shards_gradients() || store_.brings_values() || options_.offload_activations;
  }
  void step_written_layers();
  void step_remaining();
  void step_group(const std::vector<Parameter*>& parameters);
  void dry_passes();
  Forward forward_of(const DeviceBatch& batch) const;
  /// Where the micro-batch's token losses go, if they are wanted.
  Tensor token_losses() const;
  void add_datasets(const Context& context, const DeviceBatch& batch, int64_t datasets);
  std::vector<DatasetLoss> dataset_losses(const std::vector<uint8_t>& step, int64_t datasets) const;
  /// Waits; the bytes of the step's scalars, totals, routing and sums over data sets.
  std::vector<uint8_t> read_step();
  StepResult read_results();
  std::string first_nonfinite();
  RoutingLoad routing_load(const std::vector<uint8_t>& step) const;

  Decoder& decoder_;
  ParameterStore& store_;
  Stream& stream_;
  EngineOptions options_;
  TapeMemory memory_, idle_memory_;
  TapePlan training_plan_, evaluation_plan_;
  Context context_, idle_context_;
  std::optional<DataParallel> ranks_;
  std::optional<WeightRing> ring_;
  bool planning_ = false;            // by dry passes
  bool idle_ = false;                // the pass at work is dry because the rank has no micro-batch
  bool finishes_gradients_ = false;  // the pass at work is the rank's last of the step, and others wait for its sums
  Optimizer optimizer_;
  GraphCache graphs_;
  std::unique_ptr<Buffers> buffers_;
  std::vector<Tensor> forced_experts_;
  Tensor token_losses_;
  std::set<const Parameter*> stepped_;  // in this step's backward
  double step_loss_weight_ = 0;
  int64_t step_tokens_ = 0;
};

}  // namespace hone
