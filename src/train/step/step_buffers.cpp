#include "train/step/step_buffers.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "ops/add/add.h"
#include "ops/cast/cast.h"
#include "ops/group_sums/group_sums.h"

namespace hone {

namespace {

constexpr size_t kTotalsOffset = 128, kDatasetsOffset = 256;  ///< in the memory of a step, after its scalars
constexpr size_t kHostRows = 128;                             ///< in the host's memory, after the scalars
static_assert(sizeof(StepScalars) <= 128 && sizeof(LossTotals) <= 128);

size_t aligned_bytes(size_t bytes) { return (bytes + 63) / 64 * 64; }

Tensor bytes_at(void* address, size_t bytes, Device device) {
  return {static_cast<std::byte*>(address), DType::kU8, {static_cast<int64_t>(bytes)}, device};
}

template <class T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto* begin = reinterpret_cast<const std::byte*>(&value);
  return {begin, begin + sizeof(T)};
}

template <class T>
T struct_at(const std::vector<uint8_t>& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

LossResult loss_result(const LossTotals& totals) {
  LossResult result;
  const double tokens = std::max(totals.tokens, 1.0);
  result.loss = totals.weight > 0 ? totals.weighted_loss / totals.weight : 0.0;
  result.aux_loss = totals.aux_loss;
  result.mean_token_accuracy = totals.hits / tokens;
  result.entropy = totals.entropy / tokens;
  result.supervised = static_cast<int64_t>(totals.tokens);
  return result;
}

std::vector<DatasetLoss> dataset_losses(const std::vector<uint8_t>& step, int64_t datasets) {
  std::vector<DatasetLoss> losses;
  if (datasets < 2) return losses;
  for (int64_t i = 0; i < datasets; ++i) {
    const auto [sum, weight] =
        struct_at<std::array<double, 2>>(step, kDatasetsOffset + static_cast<size_t>(i) * 2 * sizeof(double));
    losses.push_back({weight > 0 ? sum / weight : 0.0, weight});
  }
  return losses;
}

}  // namespace

StepBuffers::OnHost::OnHost(const BatchCapacity& capacity)
    : memory(Device{}, kHostRows + static_cast<size_t>(capacity.max_tokens) * (sizeof(int64_t) + sizeof(int32_t))),
      most(capacity.max_tokens),
      tokens(most) {}

Tensor StepBuffers::OnHost::sample_ids() const { return memory.tensor({tokens}, DType::kI64, kHostRows); }

Tensor StepBuffers::OnHost::positions() const {
  return memory.tensor({tokens}, DType::kI32, kHostRows + static_cast<size_t>(most) * sizeof(int64_t));
}

StepBuffers::StepBuffers(const DecoderConfig& config, Stream& stream, HostSide* host, const BatchCapacity& capacity,
                         int64_t datasets)
    : stream_(stream), host_(host), batch_(stream.device(), capacity) {
  const Device device = stream.device();
  const int64_t layers = config.num_moe_layers(), experts = config.moe.num_experts;
  routing_offset_ = kDatasetsOffset + aligned_bytes(static_cast<size_t>(2 * datasets) * sizeof(double));
  token_sums_offset_ = routing_offset_ + aligned_bytes(static_cast<size_t>(layers * experts) * sizeof(float));
  step_ = Buffer(device, token_sums_offset_ + static_cast<size_t>(2 * layers) * sizeof(float));
  scalars_ = reinterpret_cast<StepScalars*>(step_.data());
  totals_ = reinterpret_cast<LossTotals*>(step_.data() + kTotalsOffset);
  if (datasets > 1) {
    const int64_t most = std::max<int64_t>(capacity.max_supervised, 1);
    dataset_memory_ = Buffer(device, static_cast<size_t>(2 * most) * sizeof(float));
    token_losses_ = dataset_memory_.tensor({most}, DType::kF32);
    dataset_ids_ = dataset_memory_.tensor({most}, DType::kI32, static_cast<size_t>(most) * sizeof(float));
  }
  if (host_) on_host_.emplace(capacity);
  if (layers == 0) return;
  step_counts_ = step_.tensor({layers, experts}, DType::kF32, routing_offset_);
  step_token_sums_ = step_.tensor({layers, 2}, DType::kF32, token_sums_offset_);
  // Measurements of a micro-batch, followed by the fractions.
  routing_memory_ =
      Buffer(device, static_cast<size_t>(2 * layers * experts + 2 * layers + experts) * sizeof(float) + 4 * 64);
  size_t offset = 0;
  const auto next = [&](Shape shape) {
    const Tensor tensor = routing_memory_.tensor(shape, DType::kF32, offset);
    offset += aligned_bytes(tensor.bytes());
    return tensor;
  };
  routing_.measurements = {
      .counts = next({layers, experts}), .prob_sum = next({layers, experts}), .token_sums = next({layers, 2})};
  routing_.fractions = next({experts});
}

int64_t StepBuffers::bytes() const {
  return static_cast<int64_t>(batch_.bytes() + step_.size() + routing_memory_.size() + dataset_memory_.size());
}

void StepBuffers::upload(const StepScalars& scalars) {
  const auto upload = [&](Stream& stream, StepScalars* to) {
    stream.upload(bytes_at(to, sizeof(StepScalars), stream.device()), bytes_of(scalars));
  };
  upload(stream_, scalars_);
  if (host_) upload(host_->stream(), on_host_->scalars());
}

DeviceBatch StepBuffers::upload(const MicroBatch& micro_batch) {
  DeviceBatch batch = batch_.upload(stream_, micro_batch);
  if (dataset_ids_.defined()) {
    std::vector<int32_t> ids = micro_batch.dataset_ids;
    ids.resize(static_cast<size_t>(batch.supervised));  // padding has no weight
    stream_.upload(dataset_ids_.rows(0, batch.supervised), std::move(ids));
  }
  if (host_) {
    on_host_->tokens = micro_batch.tokens();
    host_->stream().upload(on_host_->sample_ids(), micro_batch.sample_ids);
    host_->stream().upload(on_host_->positions(), micro_batch.positions);
  }
  return batch;
}

Forward StepBuffers::forward(const DeviceBatch& batch) const {
  Forward forward;
  forward.batch = &batch;
  forward.step = {.scalars = scalars_, .totals = totals_};
  forward.routing = &routing_;
  if (on_host_) {
    forward.on_host = {
        .scalars = on_host_->scalars(), .sample_ids = on_host_->sample_ids(), .positions = on_host_->positions()};
  }
  return forward;
}

void StepBuffers::clear(const Context& context, int64_t datasets) {
  stream_.upload(bytes_at(totals_, sizeof(LossTotals), stream_.device()), bytes_of(LossTotals{}));
  if (routes()) {
    fill_zero(context, step_counts_);
    fill_zero(context, step_token_sums_);
  }
  if (datasets < 2) return;
  stream_.upload(dataset_sums(datasets), std::vector<double>(static_cast<size_t>(2 * datasets)));
}

void StepBuffers::begin_routing(const Context& context) const { start_load_balancing(context, routing_.measurements); }

void StepBuffers::end_routing(const Context& context, int64_t tokens) const {
  finish_load_balancing(context, {.counts = routing_.measurements.counts,
                                  .prob_sum = routing_.measurements.prob_sum,
                                  .tokens = tokens,
                                  .fractions = routing_.fractions,
                                  .totals = totals_,
                                  .scalars = scalars_});
}

void StepBuffers::count_routing(const Context& context) const {
  add(context, {.a = routing_.measurements.counts, .b = {}, .y = step_counts_, .beta = 1.0f});
  add(context, {.a = routing_.measurements.token_sums, .b = {}, .y = step_token_sums_, .beta = 1.0f});
}

Tensor StepBuffers::dataset_sums(int64_t datasets) const {
  return step_.tensor({datasets, 2}, DType::kF64, kDatasetsOffset);
}

void StepBuffers::add_datasets(const Context& context, const DeviceBatch& batch, const Tensor& token_losses,
                               int64_t datasets) const {
  if (datasets < 2 || batch.supervised == 0) return;
  group_sums(context, {.values = token_losses.rows(0, batch.supervised),
                       .weights = batch.loss_weights,
                       .groups = dataset_ids_.rows(0, batch.supervised),
                       .sums = dataset_sums(datasets)});
}

std::vector<Tensor> StepBuffers::measurements() const {
  const auto all = [&](size_t begin, size_t end, DType dtype) {
    return step_.tensor({static_cast<int64_t>((end - begin) / size_of(dtype))}, dtype, begin);
  };
  std::vector<Tensor> tensors = {all(kTotalsOffset, routing_offset_, DType::kF64)};
  if (routes()) tensors.push_back(all(routing_offset_, step_.size(), DType::kF32));
  return tensors;
}

StepReadings StepBuffers::read(int64_t tokens, int64_t datasets) const {
  const std::vector<uint8_t> step =
      stream_.download<uint8_t>(step_.tensor({static_cast<int64_t>(step_.size())}, DType::kU8));
  StepReadings readings{.scalars = struct_at<StepScalars>(step, 0),
                        .loss = loss_result(struct_at<LossTotals>(step, kTotalsOffset)),
                        .routing = routing_load(step, tokens)};
  readings.loss.tokens = tokens;
  readings.loss.datasets = dataset_losses(step, datasets);
  return readings;
}

RoutingLoad StepBuffers::routing_load(const std::vector<uint8_t>& step, int64_t tokens) const {
  RoutingLoad load;
  if (!routes()) return load;
  load.layers = step_counts_.shape[0];
  load.experts = step_counts_.shape[1];
  load.counts.resize(static_cast<size_t>(load.layers * load.experts));
  std::memcpy(load.counts.data(), step.data() + routing_offset_, step_counts_.bytes());
  std::vector<float> sums(static_cast<size_t>(2 * load.layers));
  std::memcpy(sums.data(), step.data() + token_sums_offset_, step_token_sums_.bytes());
  const auto divisor = static_cast<float>(std::max<int64_t>(tokens, 1));
  for (size_t i = 0; i < sums.size(); i += 2) {
    load.entropy.push_back(sums[i] / divisor);
    load.z_loss.push_back(sums[i + 1] / divisor);
  }
  return load;
}

}  // namespace hone
