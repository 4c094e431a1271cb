// Speed of linear beside the bare products of the same shapes: forward, all gradients, and the cost that an adapter of
// rank 16 adds. Names: what/tokens/in/out; bf16 storage. "of_gemm" is the time of the products alone over the time of
// the op.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/cpu/gemm/gemm.h"
#include "ops/linear/linear.h"

namespace hone {
namespace {

constexpr int64_t kRank = 16;

struct Machine {
  ThreadPool pool;
  Stream stream{Device{}, pool};
  Arena scratch{Device{}, "scratch"};
  Machine() { scratch.reserve(size_t{256} << 20); }
};

Machine& machine() {
  static Machine m;
  return m;
}

/// Tensors of a linear layer with an adapter, filled with small numbers.
struct Layer {
  int64_t tokens, in, out;
  std::vector<Buffer> buffers;
  Tensor x, w, y, dx, dw, a, b, xa, da, db, dxa;

  Layer(int64_t t, int64_t i, int64_t o) : tokens(t), in(i), out(o) {
    x = take({tokens, in}, DType::kBF16), w = take({out, in}, DType::kBF16), y = take({tokens, out}, DType::kBF16);
    dx = take({tokens, in}, DType::kBF16), dw = take({out, in}, DType::kF32);
    a = take({kRank, in}, DType::kF32), b = take({out, kRank}, DType::kF32);
    xa = take({tokens, kRank}, DType::kF32), dxa = take({tokens, kRank}, DType::kF32);
    da = take({kRank, in}, DType::kF32), db = take({out, kRank}, DType::kF32);
  }
  Tensor take(Shape shape, DType dtype) {
    buffers.emplace_back(Device{}, static_cast<size_t>(shape.numel()) * size_of(dtype));
    const Tensor tensor = buffers.back().tensor(shape, dtype);
    dispatch_float(dtype, [&](auto element) {
      using T = decltype(element);
      for (int64_t i = 0; i < tensor.numel(); ++i) tensor.as<T>()[i] = T(static_cast<float>(i % 7) - 3.0f);
    });
    return tensor;
  }
  double flops() const { return 2.0 * static_cast<double>(tokens * in * out); }
};

double seconds_of(const std::function<void()>& work) {
  double best = 1e30;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

double gemm_seconds(Layer& layer) {
  return seconds_of([&] {
    gemm(machine().pool, {.m = layer.tokens,
                          .n = layer.out,
                          .k = layer.in,
                          .a = matrix(layer.x),
                          .b = transposed(matrix(layer.w)),
                          .c = layer.y.data,
                          .c_dtype = DType::kBF16,
                          .ldc = layer.out});
  });
}

void report(benchmark::State& state, double flops, double gemm_time) {
  state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of_gemm"] = benchmark::Counter(gemm_time, benchmark::Counter::kIsIterationInvariantRate);
}

void forward(benchmark::State& state, bool adapter) {
  Layer layer(state.range(0), state.range(1), state.range(2));
  const Context context(machine().stream, machine().scratch);
  const double gemm_time = gemm_seconds(layer);
  for (auto _ : state) {
    LinearArgs args{.x = layer.x, .w = layer.w, .y = layer.y};
    if (adapter) {
      lora_down(context, {.x = layer.x, .lora_a = layer.a, .dropout = {}, .xa = layer.xa});
      args.xa = layer.xa;
      args.lora_b = layer.b;
      args.scaling = 2.0f;
    }
    linear(context, args);
    machine().stream.synchronize();
  }
  report(state, layer.flops(), gemm_time);
}

void backward_full(benchmark::State& state) {
  Layer layer(state.range(0), state.range(1), state.range(2));
  const Context context(machine().stream, machine().scratch);
  const double gemm_time = gemm_seconds(layer);
  for (auto _ : state) {
    linear_grad(context, {.dy = layer.y,
                          .x = layer.x,
                          .w = layer.w,
                          .dx = {layer.dx},
                          .dw = {layer.dw},
                          .dbias = {},
                          .dxa = {},
                          .dlora_b = {}});
    machine().stream.synchronize();
  }
  report(state, 2 * layer.flops(), 2 * gemm_time);
}

void backward_adapter(benchmark::State& state) {
  Layer layer(state.range(0), state.range(1), state.range(2));
  const Context context(machine().stream, machine().scratch);
  const double gemm_time = gemm_seconds(layer);
  for (auto _ : state) {
    linear_grad(context, {.dy = layer.y,
                          .w = layer.w,
                          .xa = layer.xa,
                          .lora_b = layer.b,
                          .scaling = 2.0f,
                          .dx = {layer.dx},
                          .dw = {},
                          .dbias = {},
                          .dxa = {layer.dxa},
                          .dlora_b = {layer.db}});
    lora_down_grad(context, {.dxa = layer.dxa,
                             .x = layer.x,
                             .lora_a = layer.a,
                             .dropout = {},
                             .dx = {layer.dx, 1.0f},
                             .dlora_a = {layer.da}});
    machine().stream.synchronize();
  }
  report(state, layer.flops(), gemm_time);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({512, 256, 512})->Args({2048, 1024, 4096})->Args({2048, 2048, 2048})->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(forward, base, false)->Apply(shapes)->UseRealTime();
BENCHMARK_CAPTURE(forward, with_adapter, true)->Apply(shapes)->UseRealTime();
BENCHMARK(backward_full)->Apply(shapes)->UseRealTime();
BENCHMARK(backward_adapter)->Apply(shapes)->UseRealTime();

}  // namespace
}  // namespace hone
