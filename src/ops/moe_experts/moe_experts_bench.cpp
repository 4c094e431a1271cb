#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/cpu_peaks.h"
#include "core/thread_pool.h"
#include "core/transfer.h"
#include "kernels/cpu/gemm/gemm.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/random_fill/random_fill.h"
#include "ops/start_gradient.h"
#include "tape/tape.h"

namespace hone {
namespace {

/// A weight of random values, with a float32 gradient where it is trained.
class BenchWeight : public Weight {
 public:
  BenchWeight(const Context& context, Shape shape, DType dtype, bool trained)
      : shape_(shape),
        values_(context.device(), static_cast<size_t>(shape.numel()) * size_of(dtype)),
        gradients_(context.device(), trained ? static_cast<size_t>(shape.numel()) * sizeof(float) : 1),
        dtype_(dtype),
        trained_(trained) {
    random_fill(context, {.dst = view().payload, .scale = 0.02f, .key = static_cast<uint64_t>(shape.numel())});
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

struct Setting {
  int64_t tokens, experts;  // experts 0: the benchmark's argument
  int64_t hidden, intermediate, k;
  int64_t rank = 0;  // 0: full training; else a frozen base with split adapters
};

/// FLOP/s of a large dense product, to compare the experts' products with: the best of several runs, once per dtype.
double dense_speed(ThreadPool& pool, DType dtype) {
  static std::map<DType, double> speeds;
  if (speeds.contains(dtype)) return speeds[dtype];
  constexpr int64_t kSize = 2048;
  const Buffer a(Device{}, kSize * kSize * size_of(dtype)), b(Device{}, kSize * kSize * size_of(dtype)),
      c(Device{}, kSize * kSize * size_of(dtype));
  const GemmArgs args{.m = kSize,
                      .n = kSize,
                      .k = kSize,
                      .a = matrix(a.tensor({kSize, kSize}, dtype)),
                      .b = transposed(matrix(b.tensor({kSize, kSize}, dtype))),
                      .c = c.tensor({kSize, kSize}, dtype).data,
                      .c_dtype = dtype,
                      .ldc = kSize};
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    gemm(pool, args);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, 2.0 * kSize * kSize * kSize / seconds.count());
  }
  return speeds[dtype] = best;
}

/// Forward and backward on the CPU (`hone bench ops` measures a GPU) of one layer of experts whose tokens are spread
/// evenly. FLOP: two for each multiply-add of the base products, forward and the backward that is wanted; adapters not
/// counted. `of dense` compares with one large product on the same threads, `of peak` with what their arithmetic units
/// reach.
void moe_forward_backward(benchmark::State& state, Setting s, DType dtype) {
  if (s.experts == 0) s.experts = state.range(0);
  const Device device;
  ThreadPool pool;
  Stream stream(device, pool);
  TapeMemory memory{device};
  const Context context(stream, memory.scratch);
  Arena no_scratch(device, "no scratch");
  no_scratch.reserve(1);
  const Context filling(stream, no_scratch);
  const bool full = s.rank == 0;
  BenchWeight gate_up(filling, {s.experts, 2 * s.intermediate, s.hidden}, dtype, full);
  BenchWeight down(filling, {s.experts, s.hidden, s.intermediate}, dtype, full);
  BenchWeight x(filling, {s.tokens, s.hidden}, dtype, true), router_weights(filling, {s.tokens, s.k}, dtype, true);
  BenchWeight dout(filling, {s.tokens, s.hidden}, dtype, false);
  const Buffer dx(device, x.view().payload.bytes()), dweights(device, router_weights.view().payload.bytes());
  std::vector<int32_t> id_values(static_cast<size_t>(s.tokens * s.k));
  for (size_t i = 0; i < id_values.size(); ++i) {
    id_values[i] = static_cast<int32_t>((i * 7 + i / static_cast<size_t>(s.k)) % static_cast<size_t>(s.experts));
  }
  const Buffer ids_memory(device, id_values.size() * sizeof(int32_t));
  const Tensor ids = ids_memory.tensor({s.tokens, s.k}, DType::kI32);
  copy_from_host(ids, id_values.data(), ids.bytes());
  std::vector<std::unique_ptr<BenchWeight>> lora;
  ExpertAdapters adapters;
  const auto add_adapter = [&](std::vector<ExpertAdapter>& list, int64_t in, int64_t begin, int64_t out) {
    lora.push_back(std::make_unique<BenchWeight>(filling, Shape{s.experts, s.rank, in}, DType::kF32, true));
    lora.push_back(std::make_unique<BenchWeight>(filling, Shape{s.experts, out, s.rank}, DType::kF32, true));
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
      StartGradient::record(tape, out, dout.view().payload);
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
  const double dense = dense_speed(pool, dtype);
  const double products = full ? 3 : 2;  // forward, gradient of the input, gradient of the weights
  const double flop = 2 * products * 3 * static_cast<double>(s.tokens * s.k * s.hidden * s.intermediate);
  const auto rate = [](double amount) {
    return benchmark::Counter(amount, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["FLOP/s"] = rate(flop);
  state.counters["FLOP/s/core"] = rate(flop / pool.size());
  state.counters["of dense"] = rate(flop / dense);
  state.counters["of peak"] = rate(flop / measured_peak_flops(dtype, pool));
  state.counters["tokens/s"] = rate(static_cast<double>(s.tokens));
}

void register_all() {
  const auto add = [](const char* name, const Setting& setting, DType dtype) {
    return benchmark::RegisterBenchmark(name, &moe_forward_backward, setting, dtype)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  };
  const auto bf16 = DType::kBF16;
  add("moe/cpu/e32_h1024_i512_k4_f32", {2048, 32, 1024, 512, 4}, DType::kF32);
  add("moe/cpu/e32_h1024_i512_k4_bf16", {2048, 32, 1024, 512, 4}, bf16);
  add("moe/cpu/e32_h1024_i512_k4_bf16_lora16", {2048, 32, 1024, 512, 4, 16}, bf16);
  add("moe/cpu/e8_h128_i64_k2_f32", {2048, 8, 128, 64, 2}, DType::kF32);
  add("moe/cpu/e128_h2048_i768_k8_bf16_lora16/t2048", {2048, 128, 2048, 768, 8, 16}, bf16);
  add("moe/cpu/e128_h2048_i768_k8_bf16_lora16/t16384", {16384, 128, 2048, 768, 8, 16}, bf16);
  // The cost of a token if few experts have any.
  for (int64_t tokens : {1, 8, 64}) {
    add(("moe/cpu/e128_h2048_i768_k8_bf16_lora16/t" + std::to_string(tokens)).c_str(), {tokens, 128, 2048, 768, 8, 16},
        bf16);
  }
  // The width of DeepSeek-V3, whose 256 experts take 22.5 GB.
  add("moe/cpu/h7168_i2048_k8_bf16_lora16", {2048, 0, 7168, 2048, 8, 16}, bf16)->Arg(32)->Arg(256);
}
const bool registered = (register_all(), true);

}  // namespace
}  // namespace hone
