// Speed of the head with and without gradients. Names: what/supervised tokens/hidden/vocabulary; bf16 storage.
// "FLOP/s" counts the products (one without gradients, three with).
#include <benchmark/benchmark.h>

#include "core/thread_pool.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace hone {
namespace {

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

void head(benchmark::State& state, bool gradients) {
  const int64_t tokens = state.range(0), hidden = state.range(1), vocab = state.range(2);
  std::vector<Buffer> buffers;
  const auto take = [&](Shape shape, DType dtype) {
    buffers.emplace_back(Device{}, static_cast<size_t>(shape.numel()) * size_of(dtype));
    return buffers.back().tensor(shape, dtype);
  };
  StepScalars scalars;
  LossTotals totals;
  LinearCrossEntropyArgs args{.x = take({tokens, hidden}, DType::kBF16),
                              .w = take({vocab, hidden}, DType::kBF16),
                              .tokens = {.rows = take({tokens}, DType::kI32),
                                         .targets = take({tokens}, DType::kI32),
                                         .weights = take({tokens}, DType::kF32)},
                              .scalars = &scalars,
                              .totals = &totals,
                              .dw = {},
                              .dlora_b = {}};
  for (int64_t i = 0; i < args.x.numel(); ++i) args.x.as<BFloat16>()[i] = BFloat16(static_cast<float>(i % 7) - 3.0f);
  for (int64_t i = 0; i < args.w.numel(); ++i) args.w.as<BFloat16>()[i] = BFloat16(static_cast<float>(i % 5) * 0.01f);
  for (int64_t t = 0; t < tokens; ++t) {
    args.tokens.rows.as<int32_t>()[t] = static_cast<int32_t>(t);
    args.tokens.targets.as<int32_t>()[t] = static_cast<int32_t>(t % vocab);
    args.tokens.weights.as<float>()[t] = 1.0f;
  }
  if (gradients) {
    args.dx = take({tokens, hidden}, DType::kBF16);
    args.dw = {take({vocab, hidden}, DType::kF32), 0.0f};
  }
  const Context context(machine().stream, machine().scratch);
  for (auto _ : state) {
    linear_cross_entropy(context, args);
    machine().stream.synchronize();
  }
  const double products = gradients ? 3.0 : 1.0;
  state.counters["FLOP/s"] = benchmark::Counter(products * 2.0 * static_cast<double>(tokens * hidden * vocab),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({2048, 256, 512})->Args({1024, 1024, 32000})->Args({256, 1024, 151936})->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(head, loss_only, false)->Apply(shapes)->UseRealTime();
BENCHMARK_CAPTURE(head, with_gradients, true)->Apply(shapes)->UseRealTime();

}  // namespace
}  // namespace hone
