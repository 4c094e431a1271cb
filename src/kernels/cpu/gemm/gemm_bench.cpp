// Speed of gemm beside the float32 multiply-add peak of the same threads, measured in the same run ("of_peak").
//
// Names: pass_dtype/m/n/k; bf16 means that A, B and C are stored so; expertsN is N products of that shape at once.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <vector>

#include "core/cpu_features.h"
#include "core/thread_pool.h"
#include "kernels/cpu/gemm/gemm.h"

namespace hone {
namespace {

ThreadPool& pool() {
  static ThreadPool threads;
  return threads;
}

typedef float Vector4 __attribute__((vector_size(16)));
typedef float Vector8 __attribute__((vector_size(32)));
typedef float Vector16 __attribute__((vector_size(64)));

/// Independent multiply-adds in registers: 12 sums hide the latency of every CPU's multiply-add (4 or 5 cycles, two a
/// cycle). Returns the number of floating-point operations. In assembly, so that the compiler neither hoists the
/// product nor splits the instruction.
template <class V>
[[gnu::always_inline]] inline int64_t multiply_adds(int64_t rounds) {
  constexpr int kSums = 12;
  V sums[kSums] = {}, x = {}, y = {};
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (V& sum : sums) {
      if constexpr (sizeof(V) == sizeof(Vector4)) {
        V product = x;
        __asm__ volatile("mulps %2, %0\n\taddps %0, %1" : "+x"(product), "+x"(sum) : "x"(y));
      } else {
        __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
      }
    }
  }
  return rounds * kSums * static_cast<int64_t>(sizeof(V) / sizeof(float)) * 2;
}

[[gnu::target("avx512f"), gnu::noinline]] int64_t peak_avx512(int64_t rounds) {
  return multiply_adds<Vector16>(rounds);
}
[[gnu::target("avx2"), gnu::noinline]] int64_t peak_avx2(int64_t rounds) { return multiply_adds<Vector8>(rounds); }
[[gnu::noinline]] int64_t peak_baseline(int64_t rounds) { return multiply_adds<Vector4>(rounds); }

int64_t multiply_adds_of(Isa isa, int64_t rounds) {
  switch (isa) {
    case Isa::kAmx:
    case Isa::kAvx512:
      return peak_avx512(rounds);
    case Isa::kAvx2:
      return peak_avx2(rounds);
    case Isa::kBaseline:
      break;
  }
  return peak_baseline(rounds);
}

/// FLOP/s of all threads with every operand in a register: the best of several runs.
double peak_flops() {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kRounds = 100000;
  double best = 0;
  for (int attempt = 0; attempt < 10; ++attempt) {
    std::vector<int64_t> flops(static_cast<size_t>(pool().size()));
    const auto start = Clock::now();
    pool().parallel_for(pool().size(), [&](int64_t i, int) {
      flops[static_cast<size_t>(i)] = multiply_adds_of(active_isa(), kRounds);
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(std::accumulate(flops.begin(), flops.end(), int64_t{0})) / seconds);
  }
  return best;
}

/// Memory of one operand or result, filled with small numbers.
class Storage {
 public:
  Storage(int64_t count, DType dtype) : dtype_(dtype), bytes_(static_cast<size_t>(count) * size_of(dtype)) {
    std::minstd_rand random(7);
    for (int64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
      if (dtype == DType::kBF16) {
        reinterpret_cast<BFloat16*>(bytes_.data())[i] = BFloat16(value);
      } else {
        reinterpret_cast<float*>(bytes_.data())[i] = value;
      }
    }
  }
  std::byte* at(int64_t i) { return bytes_.data() + static_cast<size_t>(i) * size_of(dtype_); }

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
};

/// How the operands lie: Y = X W^T (forward), dX = dY W (input gradient), dW = dY^T X (weight gradient).
enum class Pass { kForward, kInputGradient, kWeightGradient };

/// `groups` products of m x n x k, one after another in memory.
void gemm_bench(benchmark::State& state, Pass pass, DType dtype, Isa isa, int64_t groups) {
  if (isa > best_isa()) return state.SkipWithError("not on this machine");
  force_isa(isa);
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  Storage a(groups * m * k, dtype), b(groups * k * n, dtype), c(groups * m * n, dtype);
  std::vector<GemmArgs> products;
  for (int64_t group = 0; group < groups; ++group) {
    const bool a_columns = pass == Pass::kWeightGradient, b_columns = pass == Pass::kForward;
    MatrixView view_a{.data = a.at(group * m * k), .dtype = dtype, .row_stride = k};
    MatrixView view_b{.data = b.at(group * k * n), .dtype = dtype, .row_stride = n};
    if (a_columns) view_a.row_stride = 1, view_a.col_stride = m;
    if (b_columns) view_b.row_stride = 1, view_b.col_stride = k;
    products.push_back(
        {.m = m, .n = n, .k = k, .a = view_a, .b = view_b, .c = c.at(group * m * n), .c_dtype = dtype, .ldc = n});
  }
  const double peak = peak_flops();
  using Clock = std::chrono::steady_clock;
  double seconds = 0;
  for (auto _ : state) {
    const auto start = Clock::now();
    grouped_gemm(pool(), products);
    seconds += std::chrono::duration<double>(Clock::now() - start).count();
  }
  const double flops =
      2.0 * static_cast<double>(groups * m * n * k) * static_cast<double>(state.iterations()) / seconds;
  const double bytes = static_cast<double>(groups * (m * k + k * n + m * n)) * static_cast<double>(size_of(dtype));
  state.counters["GFLOP/s"] = flops / 1e9;
  state.counters["peak"] = peak / 1e9;
  state.counters["of_peak"] = flops / peak;
  state.counters["GB/s"] = bytes * static_cast<double>(state.iterations()) / seconds / 1e9;
  force_isa(best_isa());
}

const Isa kBest = best_isa();

void dense_shapes(benchmark::internal::Benchmark* b) {
  for (const int64_t n : {512, 1024, 2048, 4096}) b->Args({n, n, n});
  b->Args({2048, 256, 128})->Args({2048, 128, 256})->Args({2048, 64, 64})->Args({2048, 512, 2048});
}
void skinny_shapes(benchmark::internal::Benchmark* b) {
  for (const int64_t m : {1, 2, 4, 8}) b->Args({m, 4096, 1024});
  b->Args({2048, 8, 1024})->Args({2048, 16, 1024})->Args({2048, 1024, 16})->Args({16, 1024, 2048})->Args({4, 64, 64});
}
void expert_shapes(benchmark::internal::Benchmark* b) {
  for (const int64_t rows : {1, 16, 64, 256}) b->Args({rows, 1024, 1024})->Args({rows, 1024, 512});
}
void small_shapes(benchmark::internal::Benchmark* b) {
  b->Args({512, 128, 128})->Args({512, 256, 64})->Args({64, 64, 64});
}

#define HONE_GEMM_BENCH(name, ...) \
  BENCHMARK_CAPTURE(gemm_bench, name, __VA_ARGS__)->UseRealTime()->Unit(benchmark::kMicrosecond)
HONE_GEMM_BENCH(forward_f32, Pass::kForward, DType::kF32, kBest, 1)->Apply(dense_shapes);
HONE_GEMM_BENCH(forward_bf16, Pass::kForward, DType::kBF16, kBest, 1)->Apply(dense_shapes)->Apply(skinny_shapes);
HONE_GEMM_BENCH(input_gradient_bf16, Pass::kInputGradient, DType::kBF16, kBest, 1)->Apply(dense_shapes);
HONE_GEMM_BENCH(weight_gradient_bf16, Pass::kWeightGradient, DType::kBF16, kBest, 1)->Apply(dense_shapes);
HONE_GEMM_BENCH(experts32_forward_bf16, Pass::kForward, DType::kBF16, kBest, 32)->Apply(expert_shapes);
HONE_GEMM_BENCH(experts32_weight_gradient_bf16, Pass::kWeightGradient, DType::kBF16, kBest, 32)
    ->Args({1024, 1024, 128});
HONE_GEMM_BENCH(experts8_forward_f32, Pass::kForward, DType::kF32, kBest, 8)->Apply(small_shapes);
HONE_GEMM_BENCH(forward_bf16_avx2, Pass::kForward, DType::kBF16, Isa::kAvx2, 1)->Args({1024, 1024, 1024});
HONE_GEMM_BENCH(forward_bf16_baseline, Pass::kForward, DType::kBF16, Isa::kBaseline, 1)->Args({1024, 1024, 1024});
#undef HONE_GEMM_BENCH

}  // namespace
}  // namespace hone
