#include "app/verify/replay.h"

#include <algorithm>
#include <cstring>

#include "app/batch_logits.h"
#include "core/memory/mapped_memory.h"
#include "core/stream/transfer.h"
#include "data/packing/sample_store.h"
#include "dist/exchange/bucket_parts.h"
#include "infer/generator.h"
#include "weights/adapter_layout.h"
#include "weights/tensor_dims.h"

namespace hone {

MicroBatch pack_documents(const std::vector<LabelledDocument>& documents) {
  MicroBatch batch;
  batch.cu_seqlens = {0};
  for (const LabelledDocument& document : documents) {
    const auto first = static_cast<int32_t>(batch.input_ids.size());
    const auto length = static_cast<int32_t>(document.input_ids.size());
    batch.input_ids.insert(batch.input_ids.end(), document.input_ids.begin(), document.input_ids.end());
    batch.sample_ids.insert(batch.sample_ids.end(), document.input_ids.size(), batch.documents());
    for (int32_t i = 0; i < length; ++i) {
      batch.positions.push_back(i);
      if (i + 1 == length || document.labels[static_cast<size_t>(i) + 1] == kIgnoredLabel) continue;
      batch.rows.push_back(first + i);
      batch.targets.push_back(document.labels[static_cast<size_t>(i) + 1]);
    }
    batch.cu_seqlens.push_back(first + length);
    batch.max_seqlen = std::max<int64_t>(batch.max_seqlen, length);
  }
  batch.loss_weights.assign(batch.rows.size(), 1.0f);
  batch.dataset_ids.assign(batch.rows.size(), 0);
  return batch;
}

namespace {

RankShare share_of(const ReplayOptions& options, Device device) {
  RankShare share = options.share;
  if (options.ranks != nullptr) {
    share.rank = options.ranks->rank();
    share.ranks = options.ranks->size();
    share.host_ranks = options.host_ranks > 0 ? options.host_ranks : share.ranks;
  } else {  // nothing to share, whatever the run does that this one is compared with
    share.rank = share.shard_size = 0;
    share.ranks = share.expert_ranks = share.host_ranks = 1;
    share.stage = ZeroStage::kNone;
  }
  share.mapping_granularity = options.map_values ? mapping_granularity(device) : 0;
  share.least_sharded_elements = options.least_sharded_elements;
  share.least_bucket_bytes = options.least_bucket_bytes;
  return share;
}

}  // namespace

Replay::Replay(const std::filesystem::path& model, Stream& stream, const BatchCapacity& capacity,
               const ReplayOptions& options)
    : stream_(stream),
      capacity_(capacity),
      layer_inputs_(options.layer_inputs),
      offload_activations_(options.offload_activations),
      weight_fetch_(options.weight_fetch),
      expert_round_tokens_(options.expert_round_tokens),
      moe_token_tile_(options.moe_token_tile),
      mlp_token_tile_(options.mlp_token_tile),
      model_(model, options.dtype) {
  TrainableOptions trainable;
  trainable.adapter = options.adapter;
  trainable.train_base = trainable.train_router = options.adapter.empty();
  trainable.formats = options.formats;
  hold_base_as(trainable, BaseFormat::parse(options.base, "base_weight_dtype"));
  trainable.fp8 = options.fp8;
  trainable.fp8_keep = options.fp8_keep;
  trainable.state_of = [optimizer = options.optimizer](const Parameter& p, const TrainingFormats& formats) {
    return optimizer.state_of(p, formats);
  };
  trainable.ranks = share_of(options, stream.device());
  if (options.ranks != nullptr) mesh_.emplace(*options.ranks, trainable.ranks);
  trainable.optimizer_in_backward = options.optimizer_in_backward;
  model_.set_trainable(trainable);
  model_.load(stream.device(), stream.pool(), 0);
  model_.decoder().prepare(stream, capacity.max_seqlen);
}

PassCompanions Replay::companions() {
  return {model_.decoder(),
          model_.store(),
          stream_,
          {.ranks = PassRanks(mesh()), .weight_fetch = weight_fetch_, .expert_round_tokens = expert_round_tokens_}};
}

std::unique_ptr<Engine> Replay::make_engine(double router_aux_loss_coef, const OptimizerOptions& optimizer) {
  EngineOptions options;
  options.capacity = capacity_;
  options.optimizer = optimizer;
  options.router_aux_loss_coef = router_aux_loss_coef;
  options.ranks = mesh();
  options.layer_inputs = layer_inputs_;
  options.offload_activations = offload_activations_;
  options.weight_fetch = weight_fetch_;
  options.expert_round_tokens = expert_round_tokens_;
  options.moe_token_tile = moe_token_tile_;
  options.mlp_token_tile = mlp_token_tile_;
  auto engine = std::make_unique<Engine>(model_.decoder(), model_.store(), stream_, std::move(options));
  engine->reserve();
  return engine;
}

std::vector<float> Replay::logits(const MicroBatch& host, ExpertChoices* choices) {
  const Device device = stream_.device();
  DeviceBatchMemory batch_memory(device, capacity_);
  const DeviceBatch batch = batch_memory.upload(stream_, host);
  const Buffer scalar_memory(device, sizeof(StepScalars));
  Forward forward;
  forward.step.scalars = reinterpret_cast<StepScalars*>(scalar_memory.data());
  if (choices != nullptr) {
    const Shape shape{batch.tokens, config().moe.num_experts_per_tok};
    const auto layers = config().num_moe_layers();
    choices->memory = Buffer(device, static_cast<size_t>(layers * shape.numel()) * sizeof(int32_t));
    choices->ids.clear();
    for (int64_t i = 0; i < layers; ++i) {
      choices->ids.push_back(
          choices->memory.tensor(shape, DType::kI32, static_cast<size_t>(i * shape.numel()) * sizeof(int32_t)));
    }
    forward.recorded_expert_ids = choices->ids;
  }
  PassCompanions beside = companions();
  return batch_logits(beside, batch, forward);
}

std::vector<double> Replay::token_losses(Engine& engine, const MicroBatch& batch) {
  const Buffer memory(stream_.device(), static_cast<size_t>(capacity_.max_supervised) * sizeof(float));
  const Tensor losses = memory.tensor({capacity_.max_supervised}, DType::kF32);
  engine.record_token_losses(losses);
  engine.evaluate({batch});
  engine.record_token_losses({});
  const std::vector<float> values = stream_.download<float>(losses);
  return {values.begin(), values.begin() + batch.supervised()};
}

std::vector<int32_t> Replay::generate(const std::vector<int32_t>& prompt, int64_t count) {
  PassCompanions beside = companions();
  Generator generator(beside, {.max_sequences = 1, .max_length = static_cast<int64_t>(prompt.size()) + count});
  GenerationRequest request;
  request.prompts = {prompt};
  request.sampling.max_new_tokens = count;
  return generator.generate(request).front().ids;
}

namespace {

/// Reorders a parameter's values to the layout of files and of transformers.
HostTensor in_file_order(const Parameter& parameter, std::vector<float> values) {
  const std::vector<int64_t> dims = dims_of(file_shape(parameter.spec().order, parameter.shape()));
  if (parameter.spec().order == FileOrder::kSame) return {dims, std::move(values)};
  const MatrixOrder order(parameter.spec().order, parameter.shape());
  std::vector<float> ordered(values.size());
  for (int64_t begin = 0; begin < parameter.shape().numel(); begin += order.numel()) {
    order.to_file(values.data() + begin, ordered.data() + begin);
  }
  return {dims, std::move(ordered)};
}

}  // namespace

HostTensors Replay::collect(const std::function<std::vector<float>(const Parameter&)>& values_of) const {
  HostTensors result;
  const ParameterStore& store = model_.store();
  if (!model_.lora()) {
    for (const Parameter& parameter : store.all()) {
      if (parameter.spec().kind == ParameterKind::kBuffer) continue;
      result[parameter.name()] = in_file_order(parameter, values_of(parameter));
    }
    return result;
  }
  for (const AdapterTensor& tensor : adapter_tensors(store, ExpertNaming::kCanonical)) {
    const std::vector<float> of_parameter = values_of(tensor.parameter());
    std::vector<float> scratch;
    const std::span<const float> values = gather(
        tensor, [&](const Parameter&) { return of_parameter.data(); }, scratch);
    result[tensor.key] = {tensor.dims, {values.begin(), values.end()}};
  }
  return result;
}

std::vector<float> Replay::downloaded(const Tensor& tensor) const {
  stream_.synchronize();
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  HONE_ASSERT(tensor.dtype == DType::kF32);
  copy_to_host(values.data(), tensor);
  return values;
}

HostTensors Replay::values() const {
  return collect([this](const Parameter& p) {
    if (!p.value().home().sharded && !p.share().spread()) return downloaded(stepped_value(p));
    const std::vector<std::byte> bytes = whole_value(p);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  });
}

HostTensors Replay::gradients() const {
  return collect([this](const Parameter& p) { return downloaded(p.gradient().whole()); });
}

std::vector<std::byte> Replay::whole_value(const Parameter& parameter) const {
  Buffer gathered;
  Tensor value;
  if (parameter.value().home().sharded) {
    const Bucket& bucket = *parameter.share().bucket();
    gathered =
        Buffer(stream_.device(), static_cast<size_t>(bucket.layout.elements) * size_of(parameter.value().dtype()));
    const Tensor all = gathered.tensor({bucket.layout.elements}, parameter.value().dtype());
    const std::vector<Part> parts = parts_of(bucket);
    Communicator& ranks = mesh_->shards();
    const Part& own = parts[static_cast<size_t>(ranks.rank())];
    std::vector<std::byte> mine(bucket.own_values.bytes());
    copy_to_host(mine.data(), bucket.own_values);
    copy_from_host(elements_of(all, own), mine.data(), mine.size());
    ranks.fork(stream_);
    ranks.all_gather(stream_, all, parts);
    ranks.finish(stream_);
    const auto at = std::find(bucket.parameters.begin(), bucket.parameters.end(), &parameter);
    const int64_t offset = bucket.layout.offsets[static_cast<size_t>(at - bucket.parameters.begin())];
    value = {element_at(all, offset), parameter.value().dtype(), parameter.shape(), stream_.device()};
  } else if (parameter.share().spread()) {
    gathered =
        Buffer(stream_.device(), static_cast<size_t>(parameter.shape().numel()) * size_of(parameter.value().dtype()));
    value = gathered.tensor(parameter.shape(), parameter.value().dtype());
    Communicator& ranks = *mesh_->experts();
    ranks.fork(stream_);
    ranks.all_gather(stream_, value, even_parts(value.numel(), ranks.size()), parameter.value().stored().payload);
    ranks.finish(stream_);
  } else {
    value = parameter.value().whole();
  }
  std::vector<std::byte> bytes(value.bytes());
  copy_to_host(bytes.data(), value);
  return bytes;
}

}  // namespace hone
