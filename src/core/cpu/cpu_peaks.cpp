#include "core/cpu/cpu_peaks.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "core/cpu/cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "core/cpu/amx_registers.h"
#endif

namespace hone {

namespace {

/// Runs `rounds` of a loop without memory accesses; returns its FLOPs.
using Loop = double (*)(int64_t rounds);

/// Independent chains of multiply-adds: more than the latency of one (4 cycles) times two units per core.
constexpr int kChains = 12;

/// Prevents the compiler from removing the value.
template <class T>
void use(T& value) {
  __asm__ volatile("" : "+m"(value));
}

double baseline_loop(int64_t rounds) {
  using Vector = float __attribute__((vector_size(16)));
  Vector chains[kChains] = {};
  Vector factor = {0.5f, 0.5f, 0.5f, 0.5f}, term = {1, 1, 1, 1};
  use(factor);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (Vector& chain : chains) chain = chain * factor + term;
  }
  for (Vector& chain : chains) use(chain);
  return 2.0 * 4 * kChains * static_cast<double>(rounds);
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) double avx2_loop(int64_t rounds) {
  __m256 chains[kChains], factor = _mm256_set1_ps(0.5f), term = _mm256_set1_ps(1.0f);
  use(factor);
  for (__m256& chain : chains) chain = term;
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (__m256& chain : chains) chain = _mm256_fmadd_ps(chain, factor, term);
  }
  for (__m256& chain : chains) use(chain);
  return 2.0 * 8 * kChains * static_cast<double>(rounds);
}

__attribute__((target("avx512f"))) double avx512_loop(int64_t rounds) {
  __m512 chains[kChains], factor = _mm512_set1_ps(0.5f), term = _mm512_set1_ps(1.0f);
  use(factor);
  for (__m512& chain : chains) chain = term;
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (__m512& chain : chains) chain = _mm512_fmadd_ps(chain, factor, term);
  }
  for (__m512& chain : chains) use(chain);
  return 2.0 * 16 * kChains * static_cast<double>(rounds);
}

/// Six accumulators alternately: a tile product takes 52 cycles, and one starts every 16.
template <bool Int8>
double amx_loop(int64_t rounds) {
  alignas(64) uint16_t halves[16 * 32];
  std::fill(std::begin(halves), std::end(halves), uint16_t{0x3f00});  // 0.5, or 0 and 63
  amx::configure_tiles();
  amx::load<6>(halves, 64), amx::load<7>(halves, 64);
  amx::zero<0>(), amx::zero<1>(), amx::zero<2>(), amx::zero<3>(), amx::zero<4>(), amx::zero<5>();
  for (int64_t i = 0; i < rounds; ++i) {
    amx::multiply_add<0, 6, 7, Int8>(), amx::multiply_add<1, 6, 7, Int8>(), amx::multiply_add<2, 6, 7, Int8>();
    amx::multiply_add<3, 6, 7, Int8>(), amx::multiply_add<4, 6, 7, Int8>(), amx::multiply_add<5, 6, 7, Int8>();
  }
  return 2.0 * 16 * 16 * (Int8 ? 64 : 32) * 6 * static_cast<double>(rounds);
}

Loop loop_for(DType dtype) {
  const Isa isa = best_isa();
  if (dtype == DType::kBF16 && isa >= Isa::kAmx) return amx_loop<false>;
  if (dtype == DType::kI8 && isa >= Isa::kAmx) return amx_loop<true>;
  return isa >= Isa::kAvx512 ? avx512_loop : isa >= Isa::kAvx2 ? avx2_loop : baseline_loop;
}

#else

Loop loop_for(DType) { return baseline_loop; }

#endif

}  // namespace

double measured_peak_flops(DType dtype, ThreadPool& pool) {
  using Clock = std::chrono::steady_clock;
  constexpr double kSeconds = 1.5e-3;  // for a repetition: long compared to the wake-up time of the threads
  const Loop loop = loop_for(dtype);
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  int64_t rounds = 1 << 10;
  for (double seconds = 0; seconds < kSeconds; rounds *= 2) {
    const Clock::time_point begin = Clock::now();
    loop(rounds);
    seconds = seconds_since(begin);
  }
  double best = 0;
  for (int repetition = 0; repetition < 20; ++repetition) {
    const Clock::time_point begin = Clock::now();
    std::vector<double> flops(static_cast<size_t>(pool.size()));
    pool.parallel_for(pool.size(), [&](int64_t i, int) { flops[static_cast<size_t>(i)] = loop(rounds); });
    const double seconds = seconds_since(begin);
    best = std::max(best, std::accumulate(flops.begin(), flops.end(), 0.0) / seconds);
  }
  return best;
}

double measured_read_rate(ThreadPool& pool) {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kWords = (size_t{512} << 20) / sizeof(uint64_t);  // several times the caches of a socket
  const auto parts = static_cast<size_t>(pool.size());
  const std::unique_ptr<uint64_t[]> words(new uint64_t[kWords]);  // not touched here
  const auto part = [&](int64_t i) {
    const auto begin = kWords * static_cast<size_t>(i) / parts, end = kWords * static_cast<size_t>(i + 1) / parts;
    return std::span(words.get() + begin, end - begin);
  };
  const auto on_each_part = [&](const auto& body) {
    pool.parallel_for(pool.size(), [&](int64_t i, int) { body(part(i)); });
  };
  on_each_part([](std::span<uint64_t> mine) { std::fill(mine.begin(), mine.end(), 1); });
  double best = 0;
  for (int repetition = 0; repetition < 3; ++repetition) {
    const Clock::time_point begin = Clock::now();
    on_each_part([](std::span<uint64_t> mine) {
      uint64_t sum = std::accumulate(mine.begin(), mine.end(), uint64_t{0});
      use(sum);
    });
    best = std::max(best, static_cast<double>(kWords * sizeof(uint64_t)) /
                              std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

}  // namespace hone
