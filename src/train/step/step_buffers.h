// StepBuffers: the memory of a step other than parameters and arenas: the packed tokens of a micro-batch, scalars that
// kernels read, and what kernels measure. All that the host reads of a step is one copy.
#pragma once

#include <optional>
#include <vector>

#include "core/memory/buffer.h"
#include "core/stream/context.h"
#include "data/packing/micro_batch.h"
#include "nn/decoder_config.h"
#include "nn/forward.h"
#include "optim/optimizer.h"
#include "tape/host_side.h"
#include "train/step/device_batch.h"
#include "train/step/loss_result.h"
#include "train/step/routing_load.h"

namespace hone {

/// What a step or an evaluation has measured.
struct StepReadings {
  StepScalars scalars;
  LossResult loss;
  RoutingLoad routing;
};

class StepBuffers {
 public:
  /// For micro-batches up to `capacity`, and losses of up to `datasets` data sets (below two: not measured). `host`:
  /// the side of experts on the host, which gets scalars and the rows that dropout draws from, too; or null. All
  /// uploads are queued on the streams, which must outlive this.
  StepBuffers(const DecoderConfig& config, Stream& stream, HostSide* host, const BatchCapacity& capacity,
              int64_t datasets);

  /// Bytes of device and of host memory.
  int64_t bytes() const;
  int64_t host_bytes() const { return on_host_ ? static_cast<int64_t>(on_host_->memory.size()) : 0; }

  /// The step's scalars on both sides.
  Optimizer::Scalars scalars() const { return {scalars_, on_host_ ? on_host_->scalars() : nullptr}; }
  void upload(const StepScalars& scalars);
  /// The views are valid until the next upload.
  DeviceBatch upload(const MicroBatch& micro_batch);
  /// Views of full capacity, for dry passes.
  DeviceBatch largest() const { return batch_.largest(); }
  /// A forward pass over `batch`, which must outlive it.
  Forward forward(const DeviceBatch& batch) const;

  /// Zeroes the measurements of a step or an evaluation, in which the losses of `datasets` data sets are apart.
  void clear(const Context& context, int64_t datasets);
  /// Whether there are routers to measure. Then a micro-batch begins and, if it has tokens, ends with the next two; in
  /// a step, count_routing() adds its choices to the step's.
  bool routes() const { return routing_.fractions.defined(); }
  void begin_routing(const Context& context) const;
  void end_routing(const Context& context, int64_t tokens) const;
  void count_routing(const Context& context) const;
  /// Where forward writes the losses of supervised tokens, f32 [max_supervised]; undefined where none are needed.
  const Tensor& token_losses() const { return token_losses_; }
  /// Adds these losses of the last micro-batch uploaded to those of its data sets.
  void add_datasets(const Context& context, const DeviceBatch& batch, const Tensor& token_losses,
                    int64_t datasets) const;
  /// The measurements to add up over ranks: totals and sums over data sets in float64, routing in float32.
  std::vector<Tensor> measurements() const;
  /// Waits for the device. `tokens`: of the step or the evaluation, on all ranks.
  StepReadings read(int64_t tokens, int64_t datasets) const;

 private:
  /// What experts on the host read: dropout draws from the rows of a micro-batch.
  struct OnHost {
    explicit OnHost(const BatchCapacity& capacity);

    StepScalars* scalars() const { return reinterpret_cast<StepScalars*>(memory.data()); }
    Tensor sample_ids() const;
    Tensor positions() const;

    Buffer memory;
    int64_t most, tokens;  ///< the most of any micro-batch, and those of the one which runs
  };

  Tensor dataset_sums(int64_t datasets) const;
  RoutingLoad routing_load(const std::vector<uint8_t>& step, int64_t tokens) const;

  Stream& stream_;
  HostSide* const host_;
  DeviceBatchMemory batch_;
  size_t routing_offset_ = 0, token_sums_offset_ = 0;
  Buffer step_;  // scalars, totals, routing and sums over data sets of a step; one copy to the host
  StepScalars* scalars_ = nullptr;
  LossTotals* totals_ = nullptr;
  Buffer routing_memory_;
  RoutingBuffers routing_;                // for a micro-batch
  Tensor step_counts_, step_token_sums_;  // sums over the micro-batches of a step
  Buffer dataset_memory_;
  Tensor token_losses_, dataset_ids_;  // [max_supervised], for losses of data sets
  std::optional<OnHost> on_host_;
};

}  // namespace hone
