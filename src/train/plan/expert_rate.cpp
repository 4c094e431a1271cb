#include "train/plan/expert_rate.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/base/tensor.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/unpack_weights/unpacked_weight.h"
#include "params/frozen_weights.h"
#include "params/parameter_store.h"

namespace hone {

namespace {

/// Products of more rows are no faster.
constexpr int64_t kMostRows = 512;
/// The sample: its bytes, and the FLOPs of a pass for each thread, which are 0.03 s of a core with AVX-512.
constexpr int64_t kSampleBytes = int64_t{128} << 20, kThreadFlops = 2'000'000'000;

/// Some experts as a run has them. Their bytes make ordinary numbers in every format.
Parameter& sample_of(ParameterStore& store, const Parameter& gate_up, int64_t rows, ThreadPool& pool) {
  const Shape& all = gate_up.shape();
  const int64_t expert_bytes = std::max<int64_t>(ParameterStore::bytes_of(gate_up).weights / all[0], 1);
  const int64_t most = std::min(kSampleBytes / expert_bytes, pool.size() * kThreadFlops / (2 * rows * all[1] * all[2]));
  const Shape shape{std::clamp<int64_t>(most, 1, all[0]), all[1], all[2]};
  Parameter& sample = store.add(
      {.name = "sample", .shape = shape, .kind = gate_up.spec().kind, .layer = 0, .layouts = {}, .of_experts = true},
      gate_up.value().dtype());
  hold_frozen_in(sample, gate_up.value().format());
  store.allocate({}, /*inference=*/true);
  for (const Tensor& bytes : {sample.value().stored().payload, sample.value().stored().scales}) {
    if (bytes.defined()) std::memset(bytes.data, 0x3c, static_cast<size_t>(bytes.bytes()));
  }
  order_frozen_experts(store, pool);
  return sample;
}

/// The forward pass of gate and up for `rows` tokens of each expert. Which function follows does not count.
void multiply(const Context& context, Arena& activations, const Parameter& weight, int64_t rows, DType dtype) {
  const int64_t experts = weight.shape()[0], outputs = weight.shape()[1], hidden = weight.shape()[2];
  const int64_t tokens = rows * experts;
  const bool gated = weight.spec().kind == ParameterKind::kExpertsGateUp;
  const MlpActivation function{gated ? MlpActivation::Kind::kSwiglu : MlpActivation::Kind::kSquaredRelu};
  const ArenaScope scope(activations);
  const Tensor x = activations.take({tokens, hidden}, dtype), ids = activations.take({tokens, 1}, DType::kI32);
  context.launch([=](ThreadPool&) {
    std::memset(x.data, 0, static_cast<size_t>(x.bytes()));
    for (int64_t t = 0; t < tokens; ++t) ids.as<int32_t>()[t] = static_cast<int32_t>(t / rows);
  });
  const ExpertRows sorted{.offsets = activations.take({experts + 1}, DType::kI64),
                          .token = activations.take({tokens}, DType::kI32),
                          .assignment = activations.take({tokens}, DType::kI32),
                          .row = activations.take({tokens, 1}, DType::kI32)};
  moe_permutation(context, {ids, sorted});
  const UnpackedWeight unpacked(context, weight, WeightProduct::kExperts);
  moe_gate_up(context, {.rows = sorted,
                        .x = x,
                        .weight = unpacked.view,
                        .adapters = {},
                        .dropout = {},
                        .function = function,
                        .xa = {},
                        .h = activations.take({tokens, outputs}, dtype),
                        .activation = activations.take({tokens, function.width(outputs)}, dtype)});
}

}  // namespace

double measured_expert_rate(const Parameter& gate_up, int64_t rows, DType dtype, ThreadPool& pool) {
  rows = std::clamp<int64_t>(rows, 1, kMostRows);
  ParameterStore store;
  const Parameter& sample = sample_of(store, gate_up, rows, pool);
  Stream stream(Device{}, pool);
  Arena scratch({}, "scratch"), activations({}, "activations");
  const Context context(stream, scratch);
  const auto pass = [&] {
    const auto begin = std::chrono::steady_clock::now();
    multiply(context, activations, sample, rows, dtype);
    stream.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  pass();  // dry: it measures the arenas
  scratch.reserve(scratch.high_water());
  activations.reserve(activations.high_water());
  pass();  // pages are committed
  const double seconds = std::min(pass(), pass());
  return 2.0 * static_cast<double>(sample.shape().numel()) * static_cast<double>(rows) / seconds;
}

}  // namespace hone
