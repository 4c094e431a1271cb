#include "data/packing/loader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "data/packing/mixture.h"

namespace hone {

namespace {

/// Number of samples that the packer considers together: enough for nearly full packs; it limits memory and how far a
/// sample moves from its shuffled position.
constexpr int64_t kPackingWindow = 4096;

}  // namespace

Loader::Loader(const SampleStore& samples, const LoaderOptions& options) : samples_(samples), options_(options) {
  HONE_ASSERT(samples.size() > 0);
  longest_ = 0;
  shortest_ = samples.length(0);
  for (int64_t i = 0; i < samples.size(); ++i) {
    longest_ = std::max(longest_, samples.length(i));
    shortest_ = std::min(shortest_, samples.length(i));
  }
}

BatchCapacity Loader::capacity() const {
  BatchCapacity capacity;
  const int64_t length = options_.packing ? samples_.max_length() : longest_;
  capacity.max_tokens = options_.per_device_batch_size * length;
  capacity.max_documents = options_.packing
                               ? std::min(capacity.max_tokens / std::max<int64_t>(shortest_, 1) + 1, samples_.size())
                               : options_.per_device_batch_size;
  capacity.max_supervised = capacity.max_tokens;
  capacity.max_seqlen = longest_;
  return capacity;
}

std::vector<Loader::Draw> Loader::draws(int64_t epoch) const {
  const std::vector<int64_t> samples =
      mix_epoch(samples_, {options_.shuffle, options_.seed, options_.dataset_weights}, epoch);
  std::vector<Draw> result;
  const int64_t first = epoch * samples_.size();
  for (size_t i = 0; i < samples.size(); ++i) result.push_back({samples[i], first + static_cast<int64_t>(i)});
  return result;
}

Loader::Packs Loader::make_packs(int64_t epoch, std::optional<int64_t> most) const {
  std::vector<Draw> order = draws(epoch);
  const auto count = std::min(static_cast<int64_t>(order.size()), most.value_or(samples_.size()));
  order.resize(static_cast<size_t>(count));
  PhiloxSequence random(mix_key(options_.seed, static_cast<uint64_t>(epoch)));
  if (options_.shuffle) shuffle_with(random, order);
  std::vector<std::vector<int64_t>> places;
  if (options_.packing) {
    std::vector<int64_t> lengths;
    for (const Draw& draw : order) lengths.push_back(samples_.length(draw.sample));
    const BatchCapacity limits = capacity();
    places = pack_best_fit(lengths, {limits.max_tokens, limits.max_documents}, kPackingWindow);
    // Packs are sorted by their earliest sample, which puts packs of many short samples first.
    if (options_.shuffle) shuffle_with(random, places);
  } else {
    places = pack_in_order(count, options_.per_device_batch_size);
  }
  Packs packs;
  for (const std::vector<int64_t>& pack : places) {
    std::vector<Draw>& draws_of_pack = packs.emplace_back();
    for (const int64_t i : pack) draws_of_pack.push_back(order[static_cast<size_t>(i)]);
  }
  return packs;
}

const Loader::Packs& Loader::packs_of(int64_t epoch) {
  if (!current_ || current_->index != epoch) current_ = Epoch{epoch, make_packs(epoch)};
  return current_->packs;
}

int64_t Loader::steps_in_epoch(int64_t epoch) {
  while (static_cast<int64_t>(first_step_.size()) <= epoch + 1) {
    const auto packs = static_cast<int64_t>(packs_of(static_cast<int64_t>(first_step_.size()) - 1).size());
    const int64_t group = options_.micro_batches_per_step;
    first_step_.push_back(first_step_.back() + (packs + group - 1) / group);
  }
  return first_step_[static_cast<size_t>(epoch) + 1] - first_step_[static_cast<size_t>(epoch)];
}

int64_t Loader::steps_in_epochs(double epochs) {
  const auto whole = static_cast<int64_t>(epochs);
  int64_t steps = 0;
  for (int64_t epoch = 0; epoch < whole; ++epoch) steps += steps_in_epoch(epoch);
  const double rest = epochs - static_cast<double>(whole);
  if (rest > 0) steps += static_cast<int64_t>(std::ceil(rest * static_cast<double>(steps_in_epoch(whole)) - 1e-9));
  return steps;
}

MicroBatch Loader::assemble(const std::vector<Draw>& pack) const {
  MicroBatch batch;
  batch.cu_seqlens = {0};
  for (const Draw& draw : pack) {
    const SampleView sample = samples_[draw.sample];
    const auto first = static_cast<int32_t>(batch.input_ids.size());
    const auto length = static_cast<int32_t>(sample.input_ids.size());
    batch.input_ids.insert(batch.input_ids.end(), sample.input_ids.begin(), sample.input_ids.end());
    batch.sample_ids.insert(batch.sample_ids.end(), sample.input_ids.size(), draw.id);
    for (int32_t i = 0; i < length; ++i) {
      batch.positions.push_back(i);
      const auto next = static_cast<size_t>(i) + 1;
      if (i + 1 == length || sample.labels[next] == kIgnoredLabel) continue;
      batch.rows.push_back(first + i);
      batch.targets.push_back(sample.labels[next]);
      batch.loss_weights.push_back(sample.weights.empty() ? 1.0f : sample.weights[next]);
      batch.dataset_ids.push_back(sample.dataset);
    }
    batch.cu_seqlens.push_back(first + length);
    batch.max_seqlen = std::max<int64_t>(batch.max_seqlen, length);
  }
  return batch;
}

StepData Loader::step(int64_t step) {
  int64_t epoch = 0;
  while (steps_in_epoch(epoch), step >= first_step_[static_cast<size_t>(epoch) + 1]) ++epoch;
  const Packs& packs = packs_of(epoch);
  const int64_t in_epoch = step - first_step_[static_cast<size_t>(epoch)];
  const int64_t begin = in_epoch * options_.micro_batches_per_step;
  const int64_t end = std::min<int64_t>(begin + options_.micro_batches_per_step, static_cast<int64_t>(packs.size()));
  StepData data;
  for (int64_t i = begin; i < end; ++i) {
    data.micro_batches.push_back(assemble(packs[static_cast<size_t>(i)]));
    data.samples += static_cast<int64_t>(packs[static_cast<size_t>(i)].size());
  }
  data.epoch =
      static_cast<double>(epoch) + static_cast<double>(in_epoch + 1) / static_cast<double>(steps_in_epoch(epoch));
  data.packing_efficiency =
      static_cast<double>(data.tokens()) / static_cast<double>((end - begin) * capacity().max_tokens);
  return data;
}

int64_t Loader::position_of(int64_t id) const {
  return draws(id / samples_.size())[static_cast<size_t>(id % samples_.size())].sample;
}

std::vector<MicroBatch> Loader::all_in_order(std::optional<int64_t> most) const {
  LoaderOptions options = options_;
  options.shuffle = false;
  options.dataset_weights.clear();
  std::vector<MicroBatch> batches;
  for (const std::vector<Draw>& pack : Loader(samples_, options).make_packs(0, most)) batches.push_back(assemble(pack));
  return batches;
}

}  // namespace hone
