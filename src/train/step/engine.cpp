#include "train/step/engine.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/stream/profiler.h"

namespace hone {

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

/// What a rank without a micro-batch computes.
const MicroBatch& no_tokens() {
  static const MicroBatch batch = [] {
    MicroBatch none;
    none.cu_seqlens = {0};
    return none;
  }();
  return batch;
}

const MicroBatch& batch_of(const RankPass& pass, const std::vector<MicroBatch>& batches) {
  return pass.batch ? batches[*pass.batch] : no_tokens();
}

}  // namespace

Engine::Engine(Decoder& decoder, ParameterStore& store, Stream& stream, EngineOptions options)
    : decoder_(decoder),
      store_(store),
      stream_(stream),
      options_(std::move(options)),
      companions_(decoder, store, stream,
                  {.ranks = PassRanks(options_.ranks),
                   .weight_fetch = options_.weight_fetch,
                   .expert_round_tokens = options_.expert_round_tokens}),
      passes_(companions_.runner()),
      idle_passes_(stream),
      context_(passes_.context()),
      ranks_(options_.ranks, store, passes_.host_context()),
      optimizer_(store, options_.optimizer, &ranks_, passes_.host()),
      // A recorded graph would not have the host's part of the work, nor wait for it.
      graphs_(stream, store.experts_on_host() ? GraphUse::kNever : options_.cuda_graphs,
              [&store] { return store.values_arrived(); }) {
  passes_.memory().kept.offload(options_.offload_activations);
}

Engine::~Engine() {
  try {
    passes_.synchronize();  // queued work uses these buffers
  } catch (const std::exception&) {
    // A caller that handles the failure has waited for it; the buffers can be freed in any case.
  }
}

int64_t Engine::moe_token_tile() const {
  if (decoder_.config().num_moe_layers() == 0 || companions_.spreads_experts()) return 0;
  if (options_.moe_token_tile) return *options_.moe_token_tile;
  const bool recomputes =
      options_.recompute.level >= RecomputeLevel::kExperts && (!store_.experts_on_host() || options_.recompute.on_host);
  if (options_.training && !recomputes) return 0;
  return bounded_token_tile(options_.capacity.max_tokens, decoder_.config().moe.num_experts_per_tok);
}

int64_t Engine::mlp_token_tile() const {
  const int64_t width = decoder_.config().widest_mlp();
  if (width == 0) return 0;
  if (options_.mlp_token_tile) return *options_.mlp_token_tile;
  const bool recomputes = options_.recompute.level > RecomputeLevel::kExperts;
  return options_.training && !recomputes ? 0 : bounded_mlp_tile(options_.capacity.max_tokens, width);
}

Forward Engine::forward_of(const Pass& pass, const DeviceBatch& batch) const {
  Forward forward = buffers_->forward(batch);
  forward.methods = options_.methods;
  forward.exchange = pass.exchange();
  forward.moe_token_tile = moe_token_tile();
  forward.mlp_token_tile = mlp_token_tile();
  forward.forced_expert_ids = forced_experts_;
  return forward;
}

void Engine::run_micro_batch(PassRunner& passes, const Pass& pass, const DeviceBatch& batch) {
  const Context& context = passes.context();
  if (buffers_->routes()) {
    const ProfileScope scope(context, OpGroup::kExperts, "load_balancing");
    buffers_->begin_routing(context);
  }
  Tape tape = passes.tape(training_plan_,
                          {.training = true, .recompute = options_.recompute, .crossing = options_.layer_inputs});
  const Forward forward = forward_of(pass, batch);
  decoder_.loss(tape, forward, token_losses());
  buffers_->add_datasets(context, batch, token_losses(), options_.train_datasets);
  if (buffers_->routes() && batch.tokens > 0) {
    const ProfileScope scope(context, OpGroup::kExperts, "load_balancing");
    buffers_->end_routing(context, batch.tokens);
    buffers_->count_routing(context);
  }
  tape.backward();
  if (steps_in_backward()) step_remaining();
  if (pass.part().work != PassWork::kPlanned) ranks_.finish_pass(context_);
}

void Engine::acquired(const Context& context, const ParameterGroup& group, Use use) {
  if (!companions_.serves(context)) return;
  if (finishes_gradients_) ranks_.reduce_finished(context_);
  if (use.backward) ranks_.make_room(context_, group);
  companions_.acquired(context_, group, use);
}

void Engine::released(const Context& context, const ParameterGroup& group, Use use) {
  if (use.backward && steps_in_backward()) step_written_layers();
  if (!companions_.serves(context)) return;
  if (finishes_gradients_) ranks_.reduce_finished(context_);
  if (use.backward) ranks_.reduce_group(context_, group, companions_.idle());
  companions_.released(context_, group, use);
}

void Engine::reduce_micro_batch(const Pass& pass, const DeviceBatch& batch, bool first) {
  first ? begin_step() : store_.continue_step();
  finishes_gradients_ = true;
  run_micro_batch(passes_, pass, batch);
  finishes_gradients_ = false;
}

void Engine::idle_micro_batch(const Pass& pass, bool first) {
  if (first) {
    begin_step();
    store_.zero_unwritten(context_);
  }
  store_.continue_step();
  finishes_gradients_ = true;
  idle_passes_.begin_dry();
  run_micro_batch(idle_passes_, pass, buffers_->largest());
  finishes_gradients_ = false;
}

std::vector<RankPass> Engine::deal(const std::vector<MicroBatch>& batches) const {
  std::vector<int64_t> tokens;
  for (const MicroBatch& batch : batches) tokens.push_back(batch.tokens());
  return companions_.deal(tokens);
}

void Engine::gather_values() {
  companions_.share_values();
  ranks_.gather_values(context_);
  companions_.end_update(context_);
}

void Engine::step_group(const std::vector<Parameter*>& parameters) {
  const ProfileScope scope(context_, OpGroup::kOptimizer, options_.optimizer.name());
  optimizer_.step_part(context_, parameters, buffers_->scalars().device);
  stepped_.insert(parameters.begin(), parameters.end());
}

void Engine::step_written_layers() {
  std::vector<Parameter*> written;
  for (Parameter* parameter : store_.trainable()) {
    if (parameter->spec().layer >= 0 && parameter->gradient().written() && !stepped_.contains(parameter))
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
  companions_.end_update(context_);
}

void Engine::begin_step() {
  store_.begin_step(buffers_->scalars().device, buffers_->scalars().host);
  if (!steps_in_backward()) return;
  optimizer_.begin_parts();
  stepped_.clear();
}

void Engine::dry_passes() {
  if (!buffers_) {
    buffers_ = std::make_unique<StepBuffers>(decoder_.config(), stream_, passes_.host(), options_.capacity,
                                             std::max(options_.train_datasets, options_.eval_datasets));
  }
  const DeviceBatch batch = buffers_->largest();
  training_plan_ = evaluation_plan_ = {};
  const Pass pass(companions_, companions_.largest(options_.capacity.max_tokens), this);
  passes_.measure([&] {
    if (options_.training) {
      begin_step();
      run_micro_batch(passes_, pass, batch);
      if (options_.accumulates && !steps_in_backward()) {
        store_.continue_step();
        run_micro_batch(passes_, pass, batch);
      }
      optimizer_.measure(context_, buffers_->scalars());
      optimizer_.update(context_, buffers_->scalars());
    }
    run_evaluation(passes_, pass, batch);
  });
}

MemoryPlan Engine::plan() {
  dry_passes();
  MemoryPlan plan;
  plan.activations = static_cast<int64_t>(passes_.memory().bytes()) + companions_.bytes();
  plan.host_activations = static_cast<int64_t>(passes_.memory().kept.host_bytes());
  if (passes_.host()) plan.experts_on_host = static_cast<int64_t>(passes_.host()->bytes()) + buffers_->host_bytes();
  plan.batch = buffers_->bytes();
  plan.parameters = store_.bytes(options_.training);
  plan.libraries = options_.libraries;
  plan.moe_token_tile = moe_token_tile();
  plan.mlp_token_tile = mlp_token_tile();
  plan.work = passes_.memory().work;
  plan.float32 = decoder_.dtype() == DType::kF32;
  return plan;
}

void Engine::reserve() {
  dry_passes();
  passes_.reserve();
  companions_.connect();
  graphs_.clear();
  companions_.share_values();
}

void Engine::accumulate(const StepData& data, int64_t step, const OptimizerStep& optimizer_step) {
  HONE_ASSERT(!steps_in_backward() || data.micro_batches.size() <= 1);
  step_tokens_ = data.tokens();
  step_loss_weight_ = data.loss_weight();
  buffers_->clear(context_, options_.train_datasets);
  HONE_ASSERT(!data.micro_batches.empty());
  const std::vector<RankPass> dealt = deal(data.micro_batches);
  ranks_.begin_reduction(dealt.size());
  for (size_t i = 0; i < dealt.size(); ++i) {
    const Pass pass(companions_, dealt[i], this);
    if (companions_.idle()) {
      idle_micro_batch(pass, i == 0);
      continue;
    }
    const MicroBatch& micro_batch = batch_of(dealt[i], data.micro_batches);
    const double share = static_cast<double>(micro_batch.tokens()) / static_cast<double>(step_tokens_);
    StepScalars scalars;
    scalars.inv_loss_weight = step_loss_weight_ > 0 ? static_cast<float>(1.0 / step_loss_weight_) : 0.0f;
    scalars.aux_scale = static_cast<float>(options_.router_aux_loss_coef * (options_.aux_loss_sum ? 1.0 : share));
    scalars.seed = mix_key(options_.seed, static_cast<uint64_t>(step));
    scalars.token_share = share;
    if (steps_in_backward()) {
      options_.optimizer.set_step(scalars, optimizer_step.learning_rate, optimizer_step.index);
    }
    buffers_->upload(scalars);
    const DeviceBatch batch = upload(micro_batch);
    const bool reduces = ranks_.several() && i + 1 == dealt.size();
    reduces ? reduce_micro_batch(pass, batch, i == 0) : queue_micro_batch(pass, batch, i == 0);
  }
  if (!ranks_.several()) return;
  zero_unwritten();
  ranks_.reduce_rest(context_);
  ranks_.sum(context_, buffers_->measurements());
}

void Engine::queue_micro_batch(const Pass& pass, const DeviceBatch& batch, bool first) {
  const auto work = [&] {
    first ? begin_step() : store_.continue_step();
    run_micro_batch(passes_, pass, batch);
    const ProfileScope scope(context_, OpGroup::kMemoryBound, "zero_gradients");
    zero_unwritten();
  };
  recordable() ? graphs_.run(key_of(batch, first), work) : work();
  store_.continue_step();
}

DeviceBatch Engine::upload(const MicroBatch& micro_batch) {
  const ProfileScope scope(context_, OpGroup::kMemoryBound, "upload");
  return buffers_->upload(micro_batch);
}

StepResult Engine::measure() {
  if (steps_in_backward()) return read_results();
  StepScalars scalars;
  scalars.max_grad_norm = static_cast<float>(options_.optimizer.max_grad_norm);
  buffers_->upload(scalars);
  ranks_.await_sums(context_);
  optimizer_.measure(context_, buffers_->scalars());
  return read_results();
}

void Engine::start_update(const OptimizerStep& optimizer_step) {
  if (steps_in_backward()) return;
  StepScalars scalars;
  options_.optimizer.set_step(scalars, optimizer_step.learning_rate, optimizer_step.index);
  scalars.max_grad_norm = static_cast<float>(options_.optimizer.max_grad_norm);
  scalars.seed = mix_key(options_.seed, static_cast<uint64_t>(optimizer_step.index));
  buffers_->upload(scalars);
  const auto measure = [&] {
    const ProfileScope scope(context_, OpGroup::kOptimizer, "grad_norm");
    optimizer_.measure(context_, buffers_->scalars());
  };
  const auto step = [&] {
    const ProfileScope scope(context_, OpGroup::kOptimizer, options_.optimizer.name());
    optimizer_.update(context_, buffers_->scalars());
  };
  if (ranks_.shards()) {  // collectives cannot be recorded
    companions_.begin_update(context_);
    measure();
    wait_for_sums();
    step();
    companions_.end_update(context_);
    return;
  }
  if (ranks_.several()) {
    ranks_.await_sums(context_);
    wait_for_sums();
  }
  const auto both = [&] {
    measure();
    step();
  };
  store_.steps_from_host() ? both() : graphs_.run({static_cast<int64_t>(Recorded::kUpdate)}, both);
  companions_.end_update(context_);
}

void Engine::wait_for_sums() {
  passes_.await_host();  // fails with the cause, whichever side has it
  ranks_.wait(context_);
}

StepReadings Engine::read_step(int64_t tokens, int64_t datasets) {
  ranks_.await_measurements(context_);
  passes_.await_host();  // as in wait_for_sums()
  return buffers_->read(tokens, datasets);
}

StepResult Engine::read_results() {
  StepReadings read = read_step(step_tokens_, options_.train_datasets);
  StepResult result;
  result.loss = std::move(read.loss);
  result.grad_norm = static_cast<double>(read.scalars.grad_norm);
  result.nonfinite = read.scalars.nonfinite != 0 || !std::isfinite(result.loss.loss);
  if (result.nonfinite) result.first_nonfinite = first_nonfinite();
  result.routing = std::move(read.routing);
  result.loss_with_aux = result.loss.loss + options_.router_aux_loss_coef * result.loss.aux_loss +
                         static_cast<double>(options_.methods.router_z_loss_coef) * result.routing.mean_z_loss();
  return result;
}

/// Collective: every rank has found the step not finite in its own measurements.
std::string Engine::first_nonfinite() {
  const std::string name = optimizer_.first_nonfinite(stream_);
  Control* const others = companions_.control();
  return others != nullptr ? others->first_stated(name) : name;
}

void Engine::run_evaluation(PassRunner& passes, const Pass& pass, const DeviceBatch& batch) {
  Tape tape = passes.tape(evaluation_plan_);
  const Forward forward = forward_of(pass, batch);
  decoder_.loss(tape, forward, token_losses());
}

LossResult Engine::evaluate(const std::vector<MicroBatch>& batches) {
  buffers_->clear(context_, options_.eval_datasets);
  int64_t tokens = 0;
  for (const MicroBatch& micro_batch : batches) tokens += micro_batch.tokens();
  for (const RankPass& part : deal(batches)) {
    const Pass pass(companions_, part, this);
    if (companions_.idle()) {
      idle_passes_.begin_dry();
      run_evaluation(idle_passes_, pass, buffers_->largest());
      continue;
    }
    const MicroBatch& micro_batch = batch_of(part, batches);
    StepScalars scalars;
    scalars.token_share = static_cast<double>(micro_batch.tokens()) / static_cast<double>(tokens);
    buffers_->upload(scalars);
    if (buffers_->routes()) buffers_->begin_routing(context_);
    const DeviceBatch batch = upload(micro_batch);
    run_evaluation(passes_, pass, batch);
    buffers_->add_datasets(context_, batch, token_losses(), options_.eval_datasets);
    if (buffers_->routes() && batch.tokens > 0) buffers_->end_routing(context_, batch.tokens);
  }
  ranks_.sum(context_, buffers_->measurements());
  return read_step(tokens, options_.eval_datasets).loss;
}

}  // namespace hone
