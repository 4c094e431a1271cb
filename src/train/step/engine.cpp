#include "train/step/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/stream/profiler.h"
#include "dist/exchange/host_sharing.h"
#include "ops/add/add.h"
#include "ops/cast/cast.h"
#include "ops/group_sums/group_sums.h"

namespace hone {

/// Device memory other than parameters and arenas.
struct Engine::Buffers {
  Buffers(const Engine& engine, Device device, const BatchCapacity& capacity) : batch(device, capacity) {
    const DecoderConfig& config = engine.decoder_.config();
    const int64_t layers = config.num_moe_layers(), experts = config.moe.num_experts;
    const int64_t datasets = std::max(engine.options_.train_datasets, engine.options_.eval_datasets);
    routing_offset = kDatasetsOffset + (static_cast<size_t>(2 * datasets) * sizeof(double) + 63) / 64 * 64;
    const size_t counts_bytes = (static_cast<size_t>(layers * experts) * sizeof(float) + 63) / 64 * 64;
    token_sums_offset = routing_offset + counts_bytes;
    step = Buffer(device, token_sums_offset + static_cast<size_t>(2 * layers) * sizeof(float));
    if (datasets > 1) {
      const int64_t most = std::max<int64_t>(capacity.max_supervised, 1);
      dataset_memory = Buffer(device, static_cast<size_t>(2 * most) * sizeof(float));
      token_losses = dataset_memory.tensor({most}, DType::kF32);
      dataset_ids = dataset_memory.tensor({most}, DType::kI32, static_cast<size_t>(most) * sizeof(float));
    }
    scalars = reinterpret_cast<StepScalars*>(step.data());
    totals = reinterpret_cast<LossTotals*>(step.data() + kTotalsOffset);
    if (engine.host_) on_host.emplace(capacity);
    if (layers == 0) return;
    step_counts = step.tensor({layers, experts}, DType::kF32, routing_offset);
    step_token_sums = step.tensor({layers, 2}, DType::kF32, token_sums_offset);
    // Measurements of a micro-batch, followed by the fractions.
    routing_memory =
        Buffer(device, static_cast<size_t>(2 * layers * experts + 2 * layers + experts) * sizeof(float) + 4 * 64);
    size_t offset = 0;
    const auto next = [&](Shape shape) {
      const Tensor tensor = routing_memory.tensor(shape, DType::kF32, offset);
      offset += (tensor.bytes() + 63) / 64 * 64;
      return tensor;
    };
    routing.measurements = {
        .counts = next({layers, experts}), .prob_sum = next({layers, experts}), .token_sums = next({layers, 2})};
    routing.fractions = next({experts});
  }

  /// Measurements of a step that are reduced over ranks: totals and sums over data sets in float64, routing in float32.
  std::vector<Tensor> measurements() const {
    const auto all = [&](size_t begin, size_t end, DType dtype) {
      return step.tensor({static_cast<int64_t>((end - begin) / size_of(dtype))}, dtype, begin);
    };
    std::vector<Tensor> tensors = {all(kTotalsOffset, routing_offset, DType::kF64)};
    if (step_counts.defined()) tensors.push_back(all(routing_offset, step.size(), DType::kF32));
    return tensors;
  }

  static constexpr size_t kTotalsOffset = 128, kDatasetsOffset = 256;
  size_t routing_offset = 0, token_sums_offset = 0;

  DeviceBatchMemory batch;
  Buffer step;  // scalars, totals, routing and sums over data sets of a step; one copy to the host
  StepScalars* scalars = nullptr;
  LossTotals* totals = nullptr;
  Buffer routing_memory;
  RoutingBuffers routing;
  Tensor step_counts, step_token_sums;  // sums over the micro-batches of a step
  Buffer dataset_memory;
  Tensor token_losses, dataset_ids;  // [max_supervised], for losses of data sets

  /// What experts on the host read: dropout draws from the rows of a micro-batch.
  struct OnHost {
    explicit OnHost(const BatchCapacity& capacity)
        : memory(Device{}, kRows + static_cast<size_t>(capacity.max_tokens) * (sizeof(int64_t) + sizeof(int32_t))),
          most(capacity.max_tokens),
          tokens(most) {}

    StepScalars* scalars() const { return reinterpret_cast<StepScalars*>(memory.data()); }
    Tensor sample_ids() const { return memory.tensor({tokens}, DType::kI64, kRows); }
    Tensor positions() const {
      return memory.tensor({tokens}, DType::kI32, kRows + static_cast<size_t>(most) * sizeof(int64_t));
    }

    static constexpr size_t kRows = 128;
    Buffer memory;
    int64_t most, tokens;  // the most of any micro-batch, and those of the one which runs
  };
  std::optional<OnHost> on_host;
};

static_assert(sizeof(StepScalars) <= 128 && sizeof(LossTotals) <= 128);

namespace {

/// The kind of a recorded graph; the first number of its key.
enum class Recorded : int64_t { kMicroBatch, kUpdate };

GraphCache::Key key_of(const DeviceBatch& batch, bool first) {
  return {static_cast<int64_t>(Recorded::kMicroBatch),
          batch.tokens,
          batch.documents,
          batch.supervised,
          batch.max_seqlen,
          first};
}

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

MicroBatch without_tokens() {
  MicroBatch batch;
  batch.cu_seqlens = {0};
  return batch;
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

}  // namespace

Engine::Engine(Decoder& decoder, ParameterStore& store, Stream& stream, EngineOptions options)
    : decoder_(decoder),
      store_(store),
      stream_(stream),
      options_(std::move(options)),
      passes_(stream, store.experts_on_host()),
      idle_passes_(stream),
      context_(passes_.context()),
      host_(passes_.host()),
      ranks_(
          options_.ranks != nullptr && options_.ranks->world().size() > 1
              ? std::optional<DataParallel>(std::in_place, *options_.ranks, store, host_ ? &host_->context() : nullptr)
              : std::nullopt),
      ring_(store.brings_values()
                ? std::optional<WeightRing>(std::in_place, options_.ranks ? &options_.ranks->weights() : nullptr,
                                            options_.weight_fetch, store, decoder.placement(), stream.device())
                : std::nullopt),
      exchange_(store.expert_ranks() > 1
                    ? std::optional<ExpertExchange>(std::in_place, store.expert_rank(), store.expert_ranks(),
                                                    options_.ranks ? options_.ranks->experts() : nullptr,
                                                    options_.expert_round_tokens)
                    : std::nullopt),
      optimizer_(store, options_.optimizer, ranks_ ? &*ranks_ : nullptr, host_),
      // A recorded graph would not have the host's part of the work, nor wait for it.
      graphs_(stream, host_ ? GraphUse::kNever : options_.cuda_graphs, [&store] { return store.values_arrived(); }) {
  passes_.memory().kept.offload(options_.offload_activations);
}

Engine::~Engine() {
  try {
    passes_.synchronize();  // queued work uses these buffers
  } catch (const std::exception&) {
    // A caller that handles the failure has waited for it; the buffers can be freed in any case.
  }
}

Forward Engine::forward_of(const DeviceBatch& batch) {
  Forward forward;
  forward.batch = &batch;
  forward.step = {.scalars = buffers_->scalars, .totals = buffers_->totals};
  forward.methods = options_.methods;
  forward.routing = &buffers_->routing;
  if (buffers_->on_host) {
    const Buffers::OnHost& rows = *buffers_->on_host;
    forward.on_host = {.scalars = rows.scalars(), .sample_ids = rows.sample_ids(), .positions = rows.positions()};
  }
  forward.exchange = exchange_ ? &*exchange_ : nullptr;
  forward.forced_expert_ids = forced_experts_;
  return forward;
}

void Engine::run_micro_batch(PassRunner& passes, const DeviceBatch& batch) {
  const Context& context = passes.context();
  const RoutingBuffers& routing = buffers_->routing;
  const bool routed = routing.fractions.defined();
  if (routed) {
    const ProfileScope scope(context, OpGroup::kExperts, "load_balancing");
    start_load_balancing(context, routing.measurements);
  }
  const Observing observing(decoder_.placement(), *this);
  Tape tape = passes.tape(training_plan_, {.training = true, .recompute = options_.recompute});
  const Forward forward = forward_of(batch);
  decoder_.loss(tape, forward, token_losses());
  add_datasets(context, batch, options_.train_datasets);
  if (routed && batch.tokens > 0) {
    const ProfileScope scope(context, OpGroup::kExperts, "load_balancing");
    const RoutingMeasurements& measured = routing.measurements;
    finish_load_balancing(context, {.counts = measured.counts,
                                    .prob_sum = measured.prob_sum,
                                    .tokens = batch.tokens,
                                    .fractions = routing.fractions,
                                    .totals = buffers_->totals,
                                    .scalars = buffers_->scalars});
    add(context, {.a = measured.counts, .b = {}, .y = buffers_->step_counts, .beta = 1.0f});
    add(context, {.a = measured.token_sums, .b = {}, .y = buffers_->step_token_sums, .beta = 1.0f});
  }
  tape.backward();
  if (steps_in_backward()) step_remaining();
  if (ranks_ && !planning_) ranks_->finish_pass(context_);
}

void Engine::acquired(const Context& context, const ParameterGroup& group, Use use) {
  if (!serves(context)) return;
  if (finishes_gradients_) ranks_->reduce_finished(context_);
  if (ranks_ && use.backward) ranks_->make_room(context_, group);
  if (ring_) ring_->acquire(context_, group, use);
}

void Engine::released(const Context& context, const ParameterGroup& group, Use use) {
  if (use.backward && steps_in_backward()) step_written_layers();
  if (!serves(context)) return;
  if (finishes_gradients_) ranks_->reduce_finished(context_);
  if (ranks_ && use.backward) ranks_->reduce_group(context_, group, idle_);
  if (ring_) ring_->release(group);
}

void Engine::reduce_micro_batch(const DeviceBatch& batch, bool first) {
  first ? begin_step() : store_.continue_step();
  finishes_gradients_ = true;
  run_micro_batch(passes_, batch);
  finishes_gradients_ = false;
}

void Engine::idle_micro_batch(bool first) {
  if (first) {
    begin_step();
    store_.zero_unwritten(context_);
  }
  store_.continue_step();
  finishes_gradients_ = idle_ = true;
  idle_passes_.begin_dry();
  run_micro_batch(idle_passes_, buffers_->batch.largest());
  finishes_gradients_ = idle_ = false;
}

Tensor Engine::token_losses() const { return token_losses_.defined() ? token_losses_ : buffers_->token_losses; }

/// Zeroes all accumulators of a step or an evaluation.
void Engine::start_measurements(int64_t datasets) {
  stream_.upload(bytes_at(buffers_->totals, sizeof(LossTotals), stream_.device()), bytes_of(LossTotals{}));
  if (buffers_->step_counts.defined()) {
    fill_zero(context_, buffers_->step_counts);
    fill_zero(context_, buffers_->step_token_sums);
  }
  if (datasets < 2) return;
  const Tensor sums = buffers_->step.tensor({datasets, 2}, DType::kF64, Buffers::kDatasetsOffset);
  stream_.upload(sums, std::vector<double>(static_cast<size_t>(2 * datasets)));
}

void Engine::sum_measurements() {
  if (ranks_) ranks_->sum(context_, buffers_->measurements());
}

std::vector<const MicroBatch*> Engine::of_this_rank(const std::vector<MicroBatch>& batches) const {
  const size_t first = ranks_ ? static_cast<size_t>(ranks_->rank()) : 0;
  const size_t step = ranks_ ? static_cast<size_t>(ranks_->size()) : 1;
  std::vector<const MicroBatch*> mine;
  for (size_t i = first; i < batches.size(); i += step) mine.push_back(&batches[i]);
  static const MicroBatch no_tokens = without_tokens();
  mine.resize((batches.size() + step - 1) / step, exchange_ || host_ ? &no_tokens : nullptr);
  return mine;
}

void Engine::begin_exchange(const std::vector<MicroBatch>& batches, size_t pass) {
  if (!exchange_) return;
  const auto ranks = static_cast<size_t>(exchange_->ranks());
  const size_t first = pass * static_cast<size_t>(ranks_->size()) + static_cast<size_t>(ranks_->rank()) / ranks * ranks;
  std::vector<int64_t> tokens(ranks);
  for (size_t rank = 0; rank < ranks && first + rank < batches.size(); ++rank) {
    tokens[rank] = batches[first + rank].tokens();
  }
  exchange_->begin_pass(std::move(tokens));
}

void Engine::gather_values() {
  if (ranks_) {
    share_values(ranks_->control(), store_);
    ranks_->gather_values(context_);
  }
  if (ring_) ring_->end_update(context_);
}

void Engine::add_datasets(const Context& context, const DeviceBatch& batch, int64_t datasets) {
  if (datasets < 2 || batch.supervised == 0) return;
  group_sums(context, {.values = token_losses().rows(0, batch.supervised),
                       .weights = batch.loss_weights,
                       .groups = buffers_->dataset_ids.rows(0, batch.supervised),
                       .sums = buffers_->step.tensor({datasets, 2}, DType::kF64, Buffers::kDatasetsOffset)});
}

std::vector<DatasetLoss> Engine::dataset_losses(const std::vector<uint8_t>& step, int64_t datasets) const {
  std::vector<DatasetLoss> losses;
  if (datasets < 2) return losses;
  for (int64_t i = 0; i < datasets; ++i) {
    const auto [sum, weight] =
        struct_at<std::array<double, 2>>(step, Buffers::kDatasetsOffset + static_cast<size_t>(i) * 2 * sizeof(double));
    losses.push_back({weight > 0 ? sum / weight : 0.0, weight});
  }
  return losses;
}

void Engine::step_group(const std::vector<Parameter*>& parameters) {
  const ProfileScope scope(context_, OpGroup::kOptimizer, options_.optimizer.name());
  optimizer_.step_part(context_, parameters, buffers_->scalars);
  stepped_.insert(parameters.begin(), parameters.end());
}

void Engine::step_written_layers() {
  std::vector<Parameter*> written;
  for (Parameter* parameter : store_.trainable()) {
    if (parameter->layer() >= 0 && parameter->gradient_written() && !stepped_.contains(parameter))
      written.push_back(parameter);
  }
  step_group(written);
}

/// Steps parameters outside the layers, and those without a gradient, group by group.
void Engine::step_remaining() {
  std::map<size_t, std::vector<Parameter*>> groups;
  for (Parameter* parameter : store_.trainable()) {
    if (!stepped_.contains(parameter)) groups[parameter->group()->index()].push_back(parameter);
  }
  for (const auto& [group, parameters] : groups) {
    ParameterStore::zero_unwritten(context_, parameters);
    step_group(parameters);
  }
  if (ring_) ring_->end_update(context_);
}

void Engine::upload_scalars(const StepScalars& scalars) {
  const auto upload = [&](Stream& stream, StepScalars* to) {
    stream.upload(bytes_at(to, sizeof(StepScalars), stream.device()), bytes_of(scalars));
  };
  upload(stream_, buffers_->scalars);
  if (host_) upload(host_->stream(), buffers_->on_host->scalars());
}

Optimizer::Scalars Engine::step_scalars() const {
  return {buffers_->scalars, buffers_->on_host ? buffers_->on_host->scalars() : nullptr};
}

void Engine::begin_step() {
  store_.begin_step(buffers_->scalars, step_scalars().host);
  if (!steps_in_backward()) return;
  optimizer_.begin_parts();
  stepped_.clear();
}

void Engine::dry_passes() {
  planning_ = true;
  if (!buffers_) buffers_ = std::make_unique<Buffers>(*this, stream_.device(), options_.capacity);
  const DeviceBatch batch = buffers_->batch.largest();
  training_plan_ = evaluation_plan_ = {};
  if (exchange_) {
    exchange_->begin_pass(std::vector<int64_t>(static_cast<size_t>(exchange_->ranks()), options_.capacity.max_tokens));
  }
  passes_.measure([&] {
    if (options_.training) {
      begin_step();
      run_micro_batch(passes_, batch);
      if (options_.accumulates && !steps_in_backward()) {
        store_.continue_step();
        run_micro_batch(passes_, batch);
      }
      optimizer_.measure(context_, step_scalars());
      optimizer_.update(context_, step_scalars());
    }
    run_evaluation(passes_, batch);
  });
  planning_ = false;
}

MemoryPlan Engine::plan() {
  dry_passes();
  MemoryPlan plan;
  plan.activations = static_cast<int64_t>(passes_.memory().bytes());
  if (exchange_) {
    plan.activations += static_cast<int64_t>(exchange_->bytes(options_.weight_fetch, stream_.device()));
  }
  plan.host_activations = static_cast<int64_t>(passes_.memory().kept.host_bytes());
  if (host_) plan.experts_on_host = static_cast<int64_t>(host_->bytes() + buffers_->on_host->memory.size());
  plan.batch = static_cast<int64_t>(buffers_->batch.bytes() + buffers_->step.size() + buffers_->routing_memory.size() +
                                    buffers_->dataset_memory.size());
  plan.parameters = store_.bytes(options_.training);
  plan.libraries = options_.libraries;
  return plan;
}

void Engine::reserve() {
  dry_passes();
  passes_.reserve();
  if (exchange_) exchange_->connect(options_.weight_fetch, stream_);
  graphs_.clear();
  if (ranks_) share_values(ranks_->control(), store_);
}

void Engine::accumulate(const StepData& data, int64_t step, const OptimizerStep& optimizer_step) {
  HONE_ASSERT(!steps_in_backward() || data.micro_batches.size() <= 1);
  step_tokens_ = data.tokens();
  step_loss_weight_ = data.loss_weight();
  start_measurements(options_.train_datasets);
  HONE_ASSERT(!data.micro_batches.empty());
  const std::vector<const MicroBatch*> mine = of_this_rank(data.micro_batches);
  if (ranks_) ranks_->begin_reduction(mine.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    begin_exchange(data.micro_batches, i);
    if (mine[i] == nullptr) {
      idle_micro_batch(i == 0);
      continue;
    }
    const MicroBatch& micro_batch = *mine[i];
    const double share = static_cast<double>(micro_batch.tokens()) / static_cast<double>(step_tokens_);
    StepScalars scalars;
    scalars.inv_loss_weight = step_loss_weight_ > 0 ? static_cast<float>(1.0 / step_loss_weight_) : 0.0f;
    scalars.aux_scale = static_cast<float>(options_.router_aux_loss_coef * (options_.aux_loss_sum ? 1.0 : share));
    scalars.seed = mix_key(options_.seed, static_cast<uint64_t>(step));
    scalars.token_share = share;
    if (steps_in_backward()) {
      options_.optimizer.set_step(scalars, optimizer_step.learning_rate, optimizer_step.index);
    }
    upload_scalars(scalars);
    const DeviceBatch batch = upload(micro_batch);
    ranks_&& i + 1 == mine.size() ? reduce_micro_batch(batch, i == 0) : queue_micro_batch(batch, i == 0);
  }
  if (!ranks_) return;
  zero_unwritten();
  ranks_->reduce_rest(context_);
  sum_measurements();
}

void Engine::queue_micro_batch(const DeviceBatch& batch, bool first) {
  const auto work = [&] {
    first ? begin_step() : store_.continue_step();
    run_micro_batch(passes_, batch);
    const ProfileScope scope(context_, OpGroup::kMemoryBound, "zero_gradients");
    zero_unwritten();
  };
  brings_or_reduces() ? work() : graphs_.run(key_of(batch, first), work);
  store_.continue_step();
}

DeviceBatch Engine::upload(const MicroBatch& micro_batch) {
  const ProfileScope scope(context_, OpGroup::kMemoryBound, "upload");
  DeviceBatch batch = buffers_->batch.upload(stream_, micro_batch);
  if (buffers_->dataset_ids.defined()) {
    std::vector<int32_t> ids = micro_batch.dataset_ids;
    ids.resize(static_cast<size_t>(batch.supervised));  // padding has no weight
    stream_.upload(buffers_->dataset_ids.rows(0, batch.supervised), std::move(ids));
  }
  if (host_) {
    Buffers::OnHost& rows = *buffers_->on_host;
    rows.tokens = micro_batch.tokens();
    host_->stream().upload(rows.sample_ids(), micro_batch.sample_ids);
    host_->stream().upload(rows.positions(), micro_batch.positions);
  }
  return batch;
}

StepResult Engine::measure() {
  if (steps_in_backward()) return read_results();
  StepScalars scalars;
  scalars.max_grad_norm = static_cast<float>(options_.optimizer.max_grad_norm);
  upload_scalars(scalars);
  if (ranks_) ranks_->await_sums(context_);
  optimizer_.measure(context_, step_scalars());
  return read_results();
}

void Engine::start_update(const OptimizerStep& optimizer_step) {
  if (steps_in_backward()) return;
  StepScalars scalars;
  options_.optimizer.set_step(scalars, optimizer_step.learning_rate, optimizer_step.index);
  scalars.max_grad_norm = static_cast<float>(options_.optimizer.max_grad_norm);
  scalars.seed = mix_key(options_.seed, static_cast<uint64_t>(optimizer_step.index));
  upload_scalars(scalars);
  const auto measure = [&] {
    const ProfileScope scope(context_, OpGroup::kOptimizer, "grad_norm");
    optimizer_.measure(context_, step_scalars());
  };
  const auto step = [&] {
    const ProfileScope scope(context_, OpGroup::kOptimizer, options_.optimizer.name());
    optimizer_.update(context_, step_scalars());
  };
  if (ranks_ && ranks_->shards()) {  // collectives cannot be recorded
    if (ring_) ring_->begin_update(context_);
    measure();
    wait_for_sums();
    step();
    if (ring_) ring_->end_update(context_);
    return;
  }
  if (ranks_) {
    ranks_->await_sums(context_);
    wait_for_sums();
  }
  const auto both = [&] {
    measure();
    step();
  };
  store_.offloads_state() ? both() : graphs_.run({static_cast<int64_t>(Recorded::kUpdate)}, both);
  if (ring_) ring_->end_update(context_);
}

void Engine::wait_for_sums() {
  if (host_) host_->synchronize();  // fails with the cause, whichever side has it
  ranks_->wait(context_);
}

std::vector<uint8_t> Engine::read_step() {
  if (ranks_) ranks_->await_measurements(context_);
  if (host_) host_->synchronize();  // as in wait_for_sums()
  const Buffer& step = buffers_->step;
  return stream_.download<uint8_t>(step.tensor({static_cast<int64_t>(step.size())}, DType::kU8));
}

StepResult Engine::read_results() {
  const std::vector<uint8_t> bytes = read_step();
  StepResult result;
  result.loss = loss_result(struct_at<LossTotals>(bytes, Buffers::kTotalsOffset));
  result.loss.tokens = step_tokens_;
  result.loss.datasets = dataset_losses(bytes, options_.train_datasets);
  const auto scalars = struct_at<StepScalars>(bytes, 0);
  result.grad_norm = static_cast<double>(scalars.grad_norm);
  result.nonfinite = scalars.nonfinite != 0 || !std::isfinite(result.loss.loss);
  if (result.nonfinite) result.first_nonfinite = first_nonfinite();
  result.routing = routing_load(bytes);
  result.loss_with_aux = result.loss.loss + options_.router_aux_loss_coef * result.loss.aux_loss +
                         static_cast<double>(options_.methods.router_z_loss_coef) * result.routing.mean_z_loss();
  return result;
}

/// Collective: every rank has found the step not finite in its own measurements.
std::string Engine::first_nonfinite() {
  const std::string name = optimizer_.first_nonfinite(stream_);
  return ranks_ ? ranks_->control().first_stated(name) : name;
}

RoutingLoad Engine::routing_load(const std::vector<uint8_t>& step) const {
  RoutingLoad load;
  if (!buffers_->step_counts.defined()) return load;
  load.layers = buffers_->step_counts.shape[0];
  load.experts = buffers_->step_counts.shape[1];
  load.counts.resize(static_cast<size_t>(load.layers * load.experts));
  std::memcpy(load.counts.data(), step.data() + buffers_->routing_offset, buffers_->step_counts.bytes());
  std::vector<float> sums(static_cast<size_t>(2 * load.layers));
  std::memcpy(sums.data(), step.data() + buffers_->token_sums_offset, buffers_->step_token_sums.bytes());
  const auto tokens = static_cast<float>(std::max<int64_t>(step_tokens_, 1));
  for (size_t i = 0; i < sums.size(); i += 2) {
    load.entropy.push_back(sums[i] / tokens);
    load.z_loss.push_back(sums[i + 1] / tokens);
  }
  return load;
}

void Engine::run_evaluation(PassRunner& passes, const DeviceBatch& batch) {
  const Observing observing(decoder_.placement(), *this);
  Tape tape = passes.tape(evaluation_plan_);
  const Forward forward = forward_of(batch);
  decoder_.loss(tape, forward, token_losses());
}

LossResult Engine::evaluate(const std::vector<MicroBatch>& batches) {
  start_measurements(options_.eval_datasets);
  int64_t tokens = 0;
  for (const MicroBatch& micro_batch : batches) tokens += micro_batch.tokens();
  size_t pass = 0;
  for (const MicroBatch* one : of_this_rank(batches)) {
    begin_exchange(batches, pass++);
    if (one == nullptr) {
      idle_ = true;
      idle_passes_.begin_dry();
      run_evaluation(idle_passes_, buffers_->batch.largest());
      idle_ = false;
      continue;
    }
    const MicroBatch& micro_batch = *one;
    StepScalars scalars;
    scalars.token_share = static_cast<double>(micro_batch.tokens()) / static_cast<double>(tokens);
    upload_scalars(scalars);
    const RoutingBuffers& routing = buffers_->routing;
    if (routing.fractions.defined()) start_load_balancing(context_, routing.measurements);
    const DeviceBatch batch = upload(micro_batch);
    run_evaluation(passes_, batch);
    add_datasets(context_, batch, options_.eval_datasets);
    if (routing.fractions.defined() && batch.tokens > 0) {
      finish_load_balancing(context_, {.counts = routing.measurements.counts,
                                       .prob_sum = routing.measurements.prob_sum,
                                       .tokens = batch.tokens,
                                       .fractions = routing.fractions,
                                       .totals = buffers_->totals,
                                       .scalars = buffers_->scalars});
    }
  }
  sum_measurements();
  const std::vector<uint8_t> bytes = read_step();
  LossResult result = loss_result(struct_at<LossTotals>(bytes, Buffers::kTotalsOffset));
  result.tokens = tokens;
  result.datasets = dataset_losses(bytes, options_.eval_datasets);
  return result;
}

}  // namespace hone
