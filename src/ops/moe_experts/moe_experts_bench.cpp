#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/philox.h"
#include "graph/tape.h"
#include "ops/moe_experts/moe_experts.h"

namespace hone {
namespace {

/// A weight of random values, with a float32 gradient where it is trained.
class BenchWeight : public Weight {
 public:
  BenchWeight(Shape shape, DType dtype, bool trained)
      : shape_(shape),
        values_(Device{}, static_cast<size_t>(shape.numel()) * size_of(dtype)),
        gradients_(Device{}, trained ? static_cast<size_t>(shape.numel()) * sizeof(float) : 1),
        dtype_(dtype),
        trained_(trained) {
    PhiloxSequence random(1);
    dispatch_float(dtype, [&](auto element) {
      using T = decltype(element);
      T* values = view().payload.as<T>();
      for (int64_t i = 0; i < shape.numel(); ++i) values[i] = T(0.05f * (random.uniform() - 0.5f));
    });
  }
  const Shape& shape() const override { return shape_; }
  WeightView view() const override { return {values_.tensor(shape_, dtype_)}; }
  bool wants_grad() const override { return trained_; }
  GradDest grad() override { return trained_ ? GradDest{gradients_.tensor(shape_, DType::kF32), 0.0f} : GradDest{}; }

 private:
  Shape shape_;
  Buffer values_, gradients_;
  DType dtype_;
  bool trained_;
};

/// Hands the gradient `ones` to its input.
struct StartGradient : Node {
  std::string_view kind() const override { return "start_gradient"; }
  bool starts_gradient() const override { return true; }
  void forward(Tape&) override {}
  void backward(Tape& tape) override {
    const GradDest dest = tape.grad_dest(inputs[0]);
    tape.context().launch([dst = dest.dst](ThreadPool&) {
      dispatch_float(dst.dtype, [&](auto element) {
        using T = decltype(element);
        std::fill_n(dst.as<T>(), dst.numel(), T(1.0f));
      });
    });
  }
};

struct Setting {
  int64_t experts, hidden, intermediate, k;
  int64_t rank = 0;  // 0: full training; else a frozen base with split adapters
};

/// Forward and backward of one layer of experts for 2048 tokens, spread evenly. FLOP: two for each multiply-add of the
/// base products, forward and the backward that is wanted; adapters not counted.
void moe_forward_backward(benchmark::State& state, Setting s, DType dtype) {
  constexpr int64_t kTokens = 2048;
  ThreadPool pool;
  Stream stream(Device{}, pool);
  TapeMemory memory{Device{}};
  const Context context(stream, memory.scratch);
  const bool full = s.rank == 0;
  BenchWeight gate_up({s.experts, 2 * s.intermediate, s.hidden}, dtype, full);
  BenchWeight down({s.experts, s.hidden, s.intermediate}, dtype, full);
  BenchWeight x({kTokens, s.hidden}, dtype, true), router_weights({kTokens, s.k}, dtype, true);
  const Buffer ids_memory(Device{}, kTokens * static_cast<size_t>(s.k) * sizeof(int32_t));
  const Buffer dx(Device{}, x.view().payload.bytes()), dweights(Device{}, router_weights.view().payload.bytes());
  const Tensor ids = ids_memory.tensor({kTokens, s.k}, DType::kI32);
  for (int64_t i = 0; i < ids.numel(); ++i) ids.as<int32_t>()[i] = static_cast<int32_t>((i * 7 + i / s.k) % s.experts);
  std::vector<std::unique_ptr<BenchWeight>> lora;
  ExpertAdapters adapters;
  const auto add_adapter = [&](std::vector<ExpertAdapter>& list, int64_t in, int64_t begin, int64_t out) {
    lora.push_back(std::make_unique<BenchWeight>(Shape{s.experts, s.rank, in}, DType::kF32, true));
    lora.push_back(std::make_unique<BenchWeight>(Shape{s.experts, out, s.rank}, DType::kF32, true));
    list.push_back({{.lora_a = lora[lora.size() - 2].get(), .lora_b = lora.back().get()}, begin, out});
  };
  if (!full) {
    add_adapter(adapters.gate_up, s.hidden, 0, s.intermediate);
    add_adapter(adapters.gate_up, s.hidden, s.intermediate, s.intermediate);
    add_adapter(adapters.down, s.intermediate, 0, s.hidden);
  }
  TapePlan plan;
  const auto step = [&] {
    Tape tape(context, memory, plan, {.training = true, .recompute = {}});
    const Var in = tape.input(x.view().payload, dx.tensor(x.shape(), dtype));
    const Var weights = tape.input(router_weights.view().payload, dweights.tensor(router_weights.shape(), dtype));
    tape.block([&] {
      const Var out = moe_experts(tape, in, {tape.input(ids), weights}, {&gate_up, &down}, adapters);
      auto start = std::make_unique<StartGradient>();
      start->inputs = {out};
      tape.add_output(*start, {1}, DType::kF32);
      tape.record(std::move(start));
    });
    tape.backward();
    stream.synchronize();
  };
  for (int dry = 0; dry < 2; ++dry) {
    memory.begin_dry();
    step();
  }
  memory.reserve();
  step();
  for (auto _ : state) step();
  const double products = full ? 3 : 2;  // forward, gradient of the input, gradient of the weights
  const double flop = 2 * products * 3 * static_cast<double>(kTokens * s.k * s.hidden * s.intermediate);
  state.counters["FLOP/s"] = benchmark::Counter(flop, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(kTokens), benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(moe_forward_backward, e32_h1024_i512_k4_f32, Setting{32, 1024, 512, 4}, DType::kF32)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(moe_forward_backward, e32_h1024_i512_k4_bf16, Setting{32, 1024, 512, 4}, DType::kBF16)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(moe_forward_backward, e32_h1024_i512_k4_bf16_lora16, Setting{32, 1024, 512, 4, 16}, DType::kBF16)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(moe_forward_backward, e8_h128_i64_k2_f32, Setting{8, 128, 64, 2}, DType::kF32)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace hone
