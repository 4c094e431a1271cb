// Loader: optimizer steps as a pure function of (data, seed, step). Resume needs the step number and nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/micro_batch.h"
#include "data/sample_store.h"

namespace hone {

struct LoaderOptions {
  int64_t per_device_batch_size = 1;
  int64_t micro_batches_per_step = 1;  ///< of all ranks
  bool packing = true;
  bool shuffle = true;
  uint64_t seed = 42;
  /// Shares of the data sets in the mixture (mixture.h); empty: every epoch has each sample once.
  std::vector<double> dataset_weights = {};
};

class Loader {
 public:
  /// `samples` outlives the loader and is not empty.
  Loader(const SampleStore& samples, const LoaderOptions& options);

  /// What no micro-batch exceeds: per_device_batch_size × max_length tokens, in documents of up to max_length.
  BatchCapacity capacity() const;

  /// Optimizer steps of one epoch; packing may give epochs slightly different numbers.
  int64_t steps_in_epoch(int64_t epoch);
  /// Optimizer steps of `epochs` epochs, a fraction of the last one rounded up.
  int64_t steps_in_epochs(double epochs);

  /// The data of optimizer step `step` of the run, counted from 0 over all epochs. The last step of an epoch may have
  /// fewer micro-batches.
  StepData step(int64_t step);

  /// The position in the store of a sample id of a micro-batch.
  int64_t position_of(int64_t id) const;

  /// All samples once, or the first `most`, in order, in micro-batches (evaluation).
  std::vector<MicroBatch> all_in_order(std::optional<int64_t> most = {}) const;

 private:
  /// A sample and its number among all samples of the run: one that comes twice in an epoch has two numbers, so that
  /// its random numbers (dropout) differ.
  struct Draw {
    int64_t sample, id;
  };
  using Packs = std::vector<std::vector<Draw>>;

  const Packs& packs_of(int64_t epoch);
  Packs make_packs(int64_t epoch, std::optional<int64_t> most = {}) const;
  std::vector<Draw> draws(int64_t epoch) const;
  MicroBatch assemble(const std::vector<Draw>& pack) const;

  const SampleStore& samples_;
  LoaderOptions options_;
  int64_t longest_ = 0, shortest_ = 0;
  struct Epoch {
    int64_t index;
    Packs packs;
  };
  std::optional<Epoch> current_;
  std::vector<int64_t> first_step_ = {0};  // of each epoch seen so far, and of the next
};

}  // namespace hone
