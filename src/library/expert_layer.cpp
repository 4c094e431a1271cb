#include "library/expert_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/text/json.h"
#include "formats/tiled_weights.h"
#include "library/settings.h"
#include "ops/cast/cast.h"
#include "ops/start_gradient.h"
#include "session/frozen_formats.h"
#include "tape/pass_runner.h"

namespace hone {

// Weights.

LayerWeight::LayerWeight(Shape shape, Shape matrices, DType dtype, const WeightFormat& format)
    : shape_(shape), matrices_(format.packed() ? matrices : shape), dtype_(dtype), format_(&format) {
  const FormatTensor payload = format.payload(matrices_, dtype);
  payload_ = Buffer(Device{}, static_cast<size_t>(payload.shape.numel()) * size_of(payload.dtype));
  if (const std::optional<FormatTensor> scales = format.scales(matrices_)) {
    scales_ = Buffer(Device{}, static_cast<size_t>(scales->shape.numel()) * size_of(scales->dtype));
  }
}

LayerWeight::LayerWeight(Shape shape)
    : shape_(shape),
      matrices_(shape),
      format_(&dense_format()),
      payload_(Device{}, static_cast<size_t>(shape.numel()) * sizeof(float)),
      gradient_(Device{}, static_cast<size_t>(shape.numel()) * sizeof(float)) {}

Tensor LayerWeight::payload() const {
  const FormatTensor tensor = format_->payload(matrices_, dtype_);
  return payload_.tensor(tensor.shape, tensor.dtype);
}

Tensor LayerWeight::scales() const {
  const std::optional<FormatTensor> tensor = format_->scales(matrices_);
  return tensor ? scales_.tensor(tensor->shape, tensor->dtype) : Tensor{};
}

void LayerWeight::fill(int64_t row, int64_t count, const float* values) const {
  format_->fill({matrices_, payload(), scales()}, row, count, values);
}

WeightView LayerWeight::view() const {
  HONE_ASSERT(!format_->packed());
  return {payload(), format_, scales()};
}

std::optional<PackedWeight> LayerWeight::packed_view() const {
  if (!format_->packed()) return std::nullopt;
  const PackedLayout layout = static_cast<const PackedFormat*>(format_)->layout(matrices_[-2], matrices_[-1]);
  return PackedWeight{layout, payload(), dtype_, format_};
}

GradDest LayerWeight::grad() {
  if (!wants_grad()) return {};
  return {gradient(), std::exchange(written_, true) ? 1.0f : 0.0f};
}

void LayerWeight::zero_grad() {
  written_ = false;
  std::memset(gradient_.data(), 0, gradient_.size());
}

// Threads and passes.

/// What a pass takes and gives, in memory of its own: a caller's may be gone before backward.
struct ExpertLayer::Pass {
  explicit Pass(Stream& stream) : runner(stream) {}

  PassSizes sizes;  // for which it has memory and a plan
  PassRunner runner;
  TapePlan plan;
  Buffer x, dx, ids, weights, dweights, dout, out;
  std::optional<Tape> tape;
};

class ExpertWorkers {
 public:
  explicit ExpertWorkers(int threads) : pool(threads), stream(Device{}, pool) {}

  /// The workers of this process with so many threads (0: one for each core).
  static std::shared_ptr<ExpertWorkers> of(int threads) {
    static std::mutex mutex;
    static std::map<int, std::weak_ptr<ExpertWorkers>> all;
    const std::lock_guard lock(mutex);
    std::shared_ptr<ExpertWorkers> workers = all[threads].lock();
    if (!workers) all[threads] = workers = std::make_shared<ExpertWorkers>(threads);
    return workers;
  }

  /// A pass of these sizes, if one is free; else any free one, or a new one.
  std::unique_ptr<ExpertLayer::Pass> take(const PassSizes& sizes) {
    if (free_.empty()) return std::make_unique<ExpertLayer::Pass>(stream);
    auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& pass) { return pass->sizes == sizes; });
    if (found == free_.end()) found = free_.begin();
    std::unique_ptr<ExpertLayer::Pass> pass = std::move(*found);
    free_.erase(found);
    return pass;
  }
  void give_back(std::unique_ptr<ExpertLayer::Pass> pass) {
    pass->tape.reset();
    free_.push_back(std::move(pass));
  }

  std::mutex mutex;  ///< held by a call of any of the layers
  ThreadPool pool;
  Stream stream;

 private:
  std::vector<std::unique_ptr<ExpertLayer::Pass>> free_;
};

namespace {

DType parse_layer_dtype(const std::string& name) {
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float32") return DType::kF32;
  throw UserError(fmt::format("'{}' is not a dtype of a layer", name), "settings: dtype", "use bfloat16 or float32");
}

const WeightFormat& format_of(const std::string& name, DType dtype, const Shape& shape) {
  if (name == "dtype") return gains_from_tiles(Device{}, dtype, shape) ? tile_format() : dense_format();
  std::string names = "dtype";
  for (const WeightFormat* format : expert_formats()) {
    if (format->name() == name) return *format;
    names += fmt::format(", {}", format->name());
  }
  throw UserError(fmt::format("'{}' is not a format of weights", name), "settings: weight_dtype",
                  "use one of " + names);
}

std::unique_ptr<LayerWeight> frozen(const Shape& shape, const Shape& matrices, DType dtype, const std::string& name) {
  const WeightFormat& format = format_of(name, dtype, shape);
  if (!format.fits(format.packed() ? matrices : shape)) {
    throw UserError(fmt::format("weights of shape {} cannot be held in {}", shape.to_string(), name), "settings",
                    fmt::format("sizes must be {}", format.sizes()));
  }
  return std::make_unique<LayerWeight>(shape, matrices, dtype, format);
}

std::vector<float> floats(const void* from, int64_t count, DType dtype) {
  std::vector<float> values(static_cast<size_t>(count));
  if (dtype == DType::kF32) {
    std::memcpy(values.data(), from, values.size() * sizeof(float));
  } else {
    const auto* elements = static_cast<const BFloat16*>(from);
    std::transform(elements, elements + count, values.begin(), [](BFloat16 x) { return static_cast<float>(x); });
  }
  return values;
}

Tensor borrowed(const void* data, const Shape& shape, DType dtype) {
  return {static_cast<std::byte*>(const_cast<void*>(data)), dtype, shape, Device{}};
}

}  // namespace

// The layer.

ExpertLayer::ExpertLayer(const JsonValue& stated) {
  JsonValue settings = stated;
  experts_ = take_size(settings, "experts");
  hidden_ = take_size(settings, "hidden");
  intermediate_ = take_size(settings, "intermediate");
  dtype_ = parse_layer_dtype(take_text(settings, "dtype", "bfloat16"));
  const std::string format = take_text(settings, "weight_dtype", "dtype");
  const int64_t rank = take_size(settings, "lora_r", 0, 0), threads = take_size(settings, "threads", 0, 0);
  const double alpha = take_number(settings, "lora_alpha", 2.0 * static_cast<double>(rank));
  if (!settings.empty()) {
    throw UserError(fmt::format("'{}' is not a setting of experts", settings->items().begin().key()), "settings",
                    "use experts, hidden, intermediate, dtype, weight_dtype, lora_r, lora_alpha and threads");
  }
  workers_ = ExpertWorkers::of(static_cast<int>(threads));
  gate_up_ = frozen({experts_, 2 * intermediate_, hidden_}, {2 * experts_, intermediate_, hidden_}, dtype_, format);
  down_ = frozen({experts_, hidden_, intermediate_}, {experts_, hidden_, intermediate_}, dtype_, format);
  lora_r_ = rank;
  if (rank > 0) add_adapters(rank, alpha);
}

ExpertLayer::~ExpertLayer() {
  const std::lock_guard lock(workers_->mutex);
  workers_->stream.settle();
  if (pending_) workers_->give_back(std::move(pending_));
}

void ExpertLayer::add_adapters(int64_t rank, double alpha) {
  const auto add = [&](const std::string& name, int64_t in, int64_t out, int64_t begin) {
    auto& a = factors_[name + ".lora_a"] = std::make_unique<LayerWeight>(Shape{experts_, rank, in});
    auto& b = factors_[name + ".lora_b"] = std::make_unique<LayerWeight>(Shape{experts_, out, rank});
    Adapter adapter;
    adapter.lora_a = a.get();
    adapter.lora_b = b.get();
    adapter.scaling = static_cast<float>(alpha / static_cast<double>(rank));
    return ExpertAdapter{adapter, begin, out};
  };
  adapters_.gate_up = {add("gate", hidden_, intermediate_, 0), add("up", hidden_, intermediate_, intermediate_)};
  adapters_.down = {add("down", intermediate_, hidden_, 0)};
}

void ExpertLayer::set(int64_t expert, const void* gate, const void* up, const void* down) {
  if (expert < 0 || expert >= experts_) {
    throw UserError(fmt::format("there is no expert {}", expert), "expert", fmt::format("0 to {}", experts_ - 1));
  }
  const std::lock_guard lock(workers_->mutex);
  workers_->stream.synchronize();
  const int64_t count = hidden_ * intermediate_;
  gate_up_->fill(2 * expert * intermediate_, intermediate_, floats(gate, count, dtype_).data());
  gate_up_->fill((2 * expert + 1) * intermediate_, intermediate_, floats(up, count, dtype_).data());
  down_->fill(expert * hidden_, hidden_, floats(down, count, dtype_).data());
}

Tensor ExpertLayer::tensor(const std::string& name) const {
  const std::string suffix = ".grad";
  const bool gradient = name.ends_with(suffix);
  const auto found = factors_.find(gradient ? name.substr(0, name.size() - suffix.size()) : name);
  if (found == factors_.end()) {
    throw UserError(fmt::format("the experts have no tensor '{}'", name), "name",
                    factors_.empty() ? "state lora_r: they have no adapters"
                                     : "gate, up or down, then .lora_a or .lora_b, then .grad for its gradient");
  }
  return gradient ? found->second->gradient() : found->second->value();
}

void ExpertLayer::zero_grad() {
  const std::lock_guard lock(workers_->mutex);
  workers_->stream.synchronize();
  for (const auto& [name, factor] : factors_) factor->zero_grad();
}

void ExpertLayer::record(Pass& pass) const {
  const bool training = pass.sizes.training;
  const Shape rows = {pass.sizes.tokens, hidden_}, choices = {pass.sizes.tokens, pass.sizes.choices};
  const auto grad = [&](const Buffer& buffer, const Shape& shape) {
    return training ? buffer.tensor(shape, dtype_) : Tensor{};
  };
  Tape& tape = *pass.tape;
  const Var x = tape.input(pass.x.tensor(rows, dtype_), grad(pass.dx, rows));
  const Var ids = tape.input(pass.ids.tensor(choices, DType::kI32));
  const Var weights = tape.input(pass.weights.tensor(choices, dtype_), grad(pass.dweights, choices));
  tape.block([&] {
    const Var out = moe_experts(tape, x, {.ids = ids, .weights = weights},
                                {.gate_up = gate_up_.get(), .down = down_.get()}, adapters_);
    copy(tape.context(), tape.data(out), pass.out.tensor(rows, dtype_));
    if (training) StartGradient::record(tape, out, pass.dout.tensor(rows, dtype_));
  });
}

void ExpertLayer::begin_tape(Pass& pass) const {
  TapeOptions options;
  options.training = pass.sizes.training;
  pass.tape.emplace(pass.runner.context(), pass.runner.memory(), pass.plan, options);
}

void ExpertLayer::plan(Pass& pass) const {
  workers_->stream.synchronize();  // queued work reads the memory
  const auto elements = [](int64_t a, int64_t b, DType dtype) { return static_cast<size_t>(a * b) * size_of(dtype); };
  const auto [tokens, choices, training] = std::tuple(pass.sizes.tokens, pass.sizes.choices, pass.sizes.training);
  for (Buffer* buffer : {&pass.x, &pass.out}) *buffer = Buffer(Device{}, elements(tokens, hidden_, dtype_));
  pass.ids = Buffer(Device{}, elements(tokens, choices, DType::kI32));
  pass.weights = Buffer(Device{}, elements(tokens, choices, dtype_));
  for (Buffer* buffer : {&pass.dx, &pass.dout}) {
    *buffer = training ? Buffer(Device{}, elements(tokens, hidden_, dtype_)) : Buffer();
  }
  pass.dweights = training ? Buffer(Device{}, elements(tokens, choices, dtype_)) : Buffer();
  pass.plan = TapePlan();
  std::vector<bool> written;
  for (const auto& [name, factor] : factors_) written.push_back(factor->written());
  pass.runner.measure([&, backward = training] {
    begin_tape(pass);
    record(pass);
    if (backward) pass.tape->backward();
    pass.tape.reset();
  });
  auto before = written.begin();
  for (const auto& [name, factor] : factors_) factor->restore_written(*before++);
  pass.runner.reserve();
}

void ExpertLayer::forward(const ExpertTokens& in, void* out, bool training) {
  if (in.tokens < 1 || in.choices < 1 || in.choices > experts_) {
    throw UserError(
        fmt::format("{} tokens of {} choices are not an input of {} experts", in.tokens, in.choices, experts_),
        "forward");
  }
  const auto chosen = static_cast<size_t>(in.tokens * in.choices);
  std::vector<int32_t> ids(chosen);
  for (size_t i = 0; i < chosen; ++i) {
    if (in.ids[i] < 0 || in.ids[i] >= experts_) {
      throw UserError(
          fmt::format("token {} chooses expert {}, of {}", i / static_cast<size_t>(in.choices), in.ids[i], experts_),
          "ids", "are these the experts of another layer?");
    }
    ids[i] = static_cast<int32_t>(in.ids[i]);
  }
  const std::lock_guard lock(workers_->mutex);
  if (training && pending_) workers_->give_back(std::move(pending_));  // nobody asked for its gradients
  const PassSizes sizes = {in.tokens, in.choices,          experts_, hidden_, intermediate_,
                           lora_r_,   &gate_up_->format(), dtype_,   training};
  std::unique_ptr<Pass> pass = workers_->take(sizes);
  if (pass->sizes != sizes) {
    pass->sizes = sizes;
    plan(*pass);
  }
  Stream& stream = workers_->stream;
  const Context& context = pass->runner.context();
  const Shape rows = {in.tokens, hidden_}, choices = {in.tokens, in.choices};
  copy(context, borrowed(in.x, rows, dtype_), pass->x.tensor(rows, dtype_));
  stream.upload(pass->ids.tensor(choices, DType::kI32), std::move(ids));
  if (dtype_ == DType::kF32) {
    stream.upload(pass->weights.tensor(choices, dtype_), std::vector<float>(in.weights, in.weights + chosen));
  } else {
    std::vector<BFloat16> weights(in.weights, in.weights + chosen);
    stream.upload(pass->weights.tensor(choices, dtype_), std::move(weights));
  }
  begin_tape(*pass);
  record(*pass);
  copy(context, pass->out.tensor(rows, dtype_), borrowed(out, rows, dtype_));
  if (training) {
    pending_ = std::move(pass);
  } else {
    workers_->give_back(std::move(pass));
  }
}

void ExpertLayer::backward(const void* dout, void* dx, float* dweights) {
  const std::lock_guard lock(workers_->mutex);
  if (!pending_) {
    throw UserError("there is no forward to differentiate", "backward",
                    "call forward with training before each backward");
  }
  std::unique_ptr<Pass> pass = std::move(pending_);
  const Context& context = pass->runner.context();
  const Shape rows = {pass->sizes.tokens, hidden_}, choices = {pass->sizes.tokens, pass->sizes.choices};
  copy(context, borrowed(dout, rows, dtype_), pass->dout.tensor(rows, dtype_));
  pass->tape->backward();
  pass->tape.reset();
  if (dx != nullptr) copy(context, pass->dx.tensor(rows, dtype_), borrowed(dx, rows, dtype_));
  if (dweights != nullptr) {
    const Tensor from = pass->dweights.tensor(choices, dtype_), to = borrowed(dweights, choices, DType::kF32);
    dtype_ == DType::kF32 ? copy(context, from, to) : cast(context, from, to);
  }
  workers_->give_back(std::move(pass));
}

void ExpertLayer::synchronize() {
  const std::lock_guard lock(workers_->mutex);
  workers_->stream.synchronize();
}

}  // namespace hone
