// Loader: optimizer steps as a pure function of (data, seed, step). Resuming needs only the step number.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/packing/micro_batch.h"
#include "data/packing/sample_store.h"

namespace hone {

struct LoaderOptions {
  int64_t per_device_batch_size = 1;
  int64_t micro_batches_per_step = 1;  ///< counted over all ranks
  bool packing = true;
  bool shuffle = true;
  uint64_t seed = 42;
  /// Weights of the data sets in the mixture (mixture.h); empty: every epoch contains each sample once.
  std::vector<double> dataset_weights = {};
};

class Loader {
 public:
  /// `samples` must outlive the loader and must not be empty.
  Loader(const SampleStore& samples, const LoaderOptions& options);

  /// The limits of a micro-batch: per_device_batch_size × max_length tokens, in documents of up to max_length.
  BatchCapacity capacity() const;

  /// Number of optimizer steps of one epoch; with packing it may vary slightly between epochs.
  int64_t steps_in_epoch(int64_t epoch);
  /// Number of optimizer steps of `epochs` epochs; a fraction of an epoch is rounded up to whole steps.
  int64_t steps_in_epochs(double epochs);

  /// The data of optimizer step `step`, counted from 0 over all epochs. The last step of an epoch may have fewer
  /// micro-batches.
  StepData step(int64_t step);

  /// Converts a sample id of a micro-batch to the sample's position in the store.
  int64_t position_of(int64_t id) const;

  /// All samples, or the first `most`, once and in order, as micro-batches (evaluation).
  std::vector<MicroBatch> all_in_order(std::optional<int64_t> most = {}) const;

 private:
  /// A sample and its id among all samples of the run. A sample that occurs twice in an epoch has two ids, so its
  /// random numbers (dropout) differ.
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
  std::vector<int64_t> first_step_ = {0};  // for each epoch seen so far, and the next one
};

}  // namespace hone
