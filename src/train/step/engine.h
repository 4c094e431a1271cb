// Engine runs one optimizer step on one device, alone or together with other ranks. It owns the memory of a step, sized
// by a dry pass, and reads results back once per step. Data, schedules and files between steps belong to the trainer.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/stream/graph_cache.h"
#include "data/packing/micro_batch.h"
#include "dist/exchange/data_parallel.h"
#include "nn/decoder.h"
#include "optim/optimizer.h"
#include "session/pass_companions.h"
#include "tape/pass_runner.h"
#include "train/step/library_memory.h"
#include "train/step/loss_result.h"
#include "train/step/routing_load.h"
#include "train/step/step_buffers.h"

namespace hone {

struct EngineOptions {
  BatchCapacity capacity;
  RecomputePolicy recompute;
  OptimizerOptions optimizer;
  TrainingMethods methods;
  double router_aux_loss_coef = 0;
  bool aux_loss_sum = false;  ///< as Hugging Face: sum over micro-batches, not their token-weighted mean
  uint64_t seed = 42;
  bool accumulates = true;  ///< false: every optimizer step has one micro-batch, which may need less memory
  /// Numbers of data sets for per-set losses; below two these are not measured.
  int64_t train_datasets = 0, eval_datasets = 0;
  bool offload_activations = false;  ///< kept values are in host memory between forward and backward
  bool training = true;              ///< false: only evaluate() will be called, parameters need no gradients or moments
  GraphUse cuda_graphs = GraphUse::kAuto;  ///< for recurring sizes of micro-batches, and for the update
  /// The ranks that train together, as the store is shared; null for a single rank. Rank r of n runs micro-batches r, r
  /// + n, … of a step or an evaluation, and all ranks run the same number of passes. Every rank gets all micro-batches,
  /// and the same results.
  const RankMesh* ranks = nullptr;
  FetchWay weight_fetch = FetchWay::kAuto;  ///< how values that ranks shard, and tokens for experts, travel
  int64_t expert_round_tokens = ExpertExchange::kRoundTokens;
  /// How many tokens experts take at a time; 0: all. Unset: bounded_token_tile() of the capacity if nothing of experts
  /// is kept for backward, else all.
  std::optional<int64_t> moe_token_tile = {};
  /// The same of dense MLPs and shared experts, by bounded_mlp_tile().
  std::optional<int64_t> mlp_token_tile = {};
  /// How what enters a layer is kept for backward (TapeOptions::crossing); null: as it is.
  const ValueFormat* layer_inputs = nullptr;
  LibraryMemory libraries;  ///< for the plan
};

struct StepResult {
  LossResult loss;
  double loss_with_aux = 0;  ///< loss plus auxiliary loss and z-loss, each times its coefficient
  double grad_norm = 0;      ///< before clipping
  bool nonfinite = false;
  std::string first_nonfinite;  ///< name of the first parameter with a gradient that is not finite
  RoutingLoad routing;
};

/// Position and learning rate of an optimizer step.
struct OptimizerStep {
  double learning_rate = 0;
  int64_t index = 0;  ///< from 0
};

/// Bytes that a run needs; device memory except for host().
struct MemoryPlan {
  int64_t activations = 0;       ///< arenas of the tape, windows of tokens on the way to experts
  int64_t batch = 0;             ///< packed tokens, routing measurements, position tables
  int64_t host_activations = 0;  ///< kept values in host memory
  int64_t experts_on_host = 0;   ///< host memory for the work of experts there, without their parameters
  ParameterBytes parameters;
  LibraryMemory libraries;     ///< not in total()
  int64_t moe_token_tile = 0;  ///< how many tokens experts take at a time; 0: all, or the rounds of an exchange
  int64_t mlp_token_tile = 0;  ///< how many tokens dense MLPs and shared experts take at a time; 0: all
  TapeWork work;               ///< what the device does in a micro-batch
  bool float32 = false;        ///< the work is in float32, not in bfloat16

  /// Host memory for offloaded values and for experts on the host.
  int64_t host() const { return host_activations + experts_on_host + parameters.host; }
  int64_t total() const { return activations + batch + parameters.total(); }
};

class Engine : private GroupObserver {
 public:
  /// The decoder's parameters are in `store`, which is allocated before the first step (for inference if not
  /// `training`). All work is queued on `stream`.
  Engine(Decoder& decoder, ParameterStore& store, Stream& stream, EngineOptions options);
  ~Engine() override;

  /// Measures the memory of a step with dry passes (training and evaluation); allocates nothing.
  MemoryPlan plan();
  /// Plans and allocates; called before the first step, when the weights have been loaded. Collective: ranks of a host
  /// then read the experts that others have loaded.
  void reserve();
  const EngineOptions& options() const { return options_; }
  /// The stream of experts on the host; null if they are on the device.
  Stream* host_stream() { return passes_.host() ? &passes_.host()->stream() : nullptr; }
  /// Gathers sharded values after they were read, so that all ranks have the same. Needed before parameters are read.
  void gather_values();
  /// For other passes of the decoder, as those of generation between steps.
  PassCompanions& companions() { return companions_; }
  /// Changes what backward recomputes; called before reserve().
  void set_recompute(RecomputePolicy policy) { options_.recompute = policy; }

  /// After an exception from here to finish_update() the weights are undefined: some may have been stepped.
  ///
  /// Forward and backward of all micro-batches; accumulates gradients in the store. If the layers of the store share
  /// their gradient memory, there must be one micro-batch, and each parameter is stepped here as soon as its gradient
  /// is final, with `optimizer_step`. In that case gradients are not clipped, and a gradient that is not finite skips
  /// the updates of its own and of earlier layers only.
  void accumulate(const StepData& data, int64_t step, const OptimizerStep& optimizer_step = {});
  /// Queues clipping and the optimizer for all parameters that accumulate() has not stepped. finish_update() waits and
  /// returns the measurements of the step; host work between the two calls overlaps with the device.
  void start_update(const OptimizerStep& optimizer_step);
  StepResult finish_update() { return read_results(); }
  /// start_update() and finish_update().
  StepResult update(const OptimizerStep& optimizer_step) {
    start_update(optimizer_step);
    return finish_update();
  }
  /// As update(), but without changing the parameters: gradients and the norm only (verification, dry runs).
  StepResult measure();

  /// Loss over micro-batches, forward only.
  LossResult evaluate(const std::vector<MicroBatch>& batches);

  /// For verification: expert choices for every micro-batch that replace the routers' own, i32 [T, k] per MoE layer.
  void force_experts(std::vector<Tensor> ids) {
    forced_experts_ = std::move(ids);
    graphs_.clear();
  }
  /// For verification: output tensor for the losses of supervised tokens of the next micro-batches, f32
  /// [max_supervised].
  void record_token_losses(Tensor losses) {
    token_losses_ = losses;
    graphs_.clear();
  }

  /// How many micro-batches and updates were launched directly, recorded and replayed.
  const GraphCache::Counts& graph_counts() const { return graphs_.counts(); }

 private:
  using Pass = PassCompanions::Pass;

  void begin_step();
  void zero_unwritten() { store_.zero_unwritten(context_, passes_.host_context()); }
  /// This rank's passes over micro-batches.
  std::vector<RankPass> deal(const std::vector<MicroBatch>& batches) const;
  DeviceBatch upload(const MicroBatch& micro_batch);
  void run_micro_batch(PassRunner& passes, const Pass& pass, const DeviceBatch& batch);
  void run_evaluation(PassRunner& passes, const Pass& pass, const DeviceBatch& batch);
  /// As run_micro_batch, replayed from a recorded graph if possible. `first`: the first of the optimizer step, whose
  /// gradients overwrite.
  void queue_micro_batch(const Pass& pass, const DeviceBatch& batch, bool first);
  /// As queue_micro_batch, for a rank's last micro-batch: gradients are reduced over ranks as soon as they are final.
  void reduce_micro_batch(const Pass& pass, const DeviceBatch& batch, bool first);
  /// Runs on a rank without a micro-batch while others have one: acquires and releases the same groups in the same
  /// order, and takes part in their reductions. Computes nothing.
  void idle_micro_batch(const Pass& pass, bool first);
  bool steps_in_backward() const { return store_.layers_share_gradients(); }
  void acquired(const Context& context, const ParameterGroup& group, Use use) override;
  void released(const Context& context, const ParameterGroup& group, Use use) override;
  /// Whether a micro-batch may be recorded in a graph: it starts no collective, no copy and no work of the host.
  bool recordable() const {
    return companions_.recordable() && !store_.shards_gradients() && !options_.offload_activations;
  }
  void step_written_layers();
  void step_remaining();
  void step_group(const std::vector<Parameter*>& parameters);
  void dry_passes();
  int64_t moe_token_tile() const;
  int64_t mlp_token_tile() const;
  Forward forward_of(const Pass& pass, const DeviceBatch& batch) const;
  /// Output tensor for the micro-batch's token losses, if requested.
  Tensor token_losses() const { return token_losses_.defined() ? token_losses_ : buffers_->token_losses(); }
  /// Waits for both sides, and for the sums over ranks.
  StepReadings read_step(int64_t tokens, int64_t datasets);
  /// Waits until all gradients have been summed over ranks.
  void wait_for_sums();
  StepResult read_results();
  std::string first_nonfinite();

  Decoder& decoder_;
  ParameterStore& store_;
  Stream& stream_;
  EngineOptions options_;
  PassCompanions companions_;
  PassRunner passes_, idle_passes_;
  TapePlan training_plan_, evaluation_plan_;
  const Context& context_;  // that of passes_
  DataParallel ranks_;
  bool finishes_gradients_ = false;  // the current pass is this rank's last of the step; its gradients are reduced
  Optimizer optimizer_;
  GraphCache graphs_;
  std::unique_ptr<StepBuffers> buffers_;  // from the first plan on
  std::vector<Tensor> forced_experts_;
  Tensor token_losses_;
  std::set<const Parameter*> stepped_;  // parameters stepped in this step's backward
  double step_loss_weight_ = 0;
  int64_t step_tokens_ = 0;
};

}  // namespace hone
