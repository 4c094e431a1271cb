// FLOPs: 4 D a visible pair forward (scores and values), 10 D backward (scores again, dP, dq, dk, dv). The ceiling is
// gemm, measured beside it at a size where it is fastest.
#include <benchmark/benchmark.h>

#include <cstring>

#include "core/philox.h"
#include "core/thread_pool.h"
#include "kernels/cpu/gemm/gemm.h"
#include "ops/attention/attention.h"

namespace hone {
namespace {

constexpr int64_t kHeads = 8, kKvHeads = 2;

Tensor random_tensor(Buffer& buffer, Shape shape, DType dtype, uint64_t key) {
  PhiloxSequence random(key);
  buffer = Buffer(Device{}, static_cast<size_t>(shape.numel()) * size_of(dtype));
  Tensor tensor = buffer.tensor(shape, dtype);
  dispatch_float(dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t i = 0; i < shape.numel(); ++i) tensor.as<T>()[i] = T(random.normal());
  });
  return tensor;
}

/// Arguments: documents, tokens of each, head_dim, bf16, backward.
void attention_speed(benchmark::State& state) {
  const int64_t documents = state.range(0), length = state.range(1), dim = state.range(2), tokens = documents * length;
  const DType dtype = state.range(3) ? DType::kBF16 : DType::kF32;
  ThreadPool pool;
  Stream stream(Device{}, pool);
  Arena scratch(Device{}, "scratch");
  const Context context(stream, scratch);
  Buffer bytes[10];
  const Shape of_q{tokens, kHeads * dim}, of_kv{tokens, kKvHeads * dim};
  const auto make = [&](int i, Shape shape, DType type) {
    return random_tensor(bytes[i], shape, type, static_cast<uint64_t>(i));
  };
  std::vector<int32_t> offsets;
  for (int64_t i = 0; i <= documents; ++i) offsets.push_back(static_cast<int32_t>(i * length));
  bytes[9] = Buffer(Device{}, offsets.size() * sizeof(int32_t));
  const Tensor cu_seqlens = bytes[9].tensor({documents + 1}, DType::kI32);
  std::memcpy(cu_seqlens.data, offsets.data(), offsets.size() * sizeof(int32_t));
  const AttentionArgs forward{
      .q = make(0, of_q, dtype),
      .k = make(1, of_kv, dtype),
      .v = make(2, of_kv, dtype),
      .out = make(3, of_q, dtype),
      .lse = make(4, {kHeads, tokens}, DType::kF32),
      .options = {.num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = dim, .v_head_dim = dim, .scale = 0.1f},
      .sequences = {cu_seqlens, documents, length}};
  const AttentionBackwardArgs backward{.forward = forward,
                                       .dout = make(5, of_q, dtype),
                                       .dq = {make(6, of_q, dtype)},
                                       .dk = {make(7, of_kv, dtype)},
                                       .dv = {make(8, of_kv, dtype)}};
  attention(context, forward);
  attention_backward(context, backward);
  scratch.reserve(scratch.high_water());
  attention(context, forward);
  for (auto _ : state) {
    if (state.range(4)) {
      attention_backward(context, backward);
    } else {
      attention(context, forward);
    }
    stream.synchronize();
  }
  const int64_t seen = length * (length + 1) / 2;  // pairs of tokens of a document
  const double pairs = static_cast<double>(documents * seen * kHeads * dim);
  state.counters["FLOP/s"] =
      benchmark::Counter((state.range(4) ? 10 : 4) * pairs, benchmark::Counter::kIsIterationInvariantRate);
}

void gemm_ceiling(benchmark::State& state) {
  constexpr int64_t kSize = 1024;
  ThreadPool pool;
  Buffer bytes[3];
  Tensor t[3];
  for (int i = 0; i < 3; ++i) t[i] = random_tensor(bytes[i], {kSize, kSize}, DType::kF32, static_cast<uint64_t>(i));
  for (auto _ : state) {
    gemm(pool,
         {.m = kSize, .n = kSize, .k = kSize, .a = matrix(t[0]), .b = matrix(t[1]), .c = t[2].data, .ldc = kSize});
  }
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * kSize * kSize * kSize, benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK(gemm_ceiling)->UseRealTime();
BENCHMARK(attention_speed)
    ->ArgNames({"documents", "tokens", "head_dim", "bf16", "backward"})
    ->ArgsProduct({{4}, {512}, {64, 128}, {0, 1}, {0, 1}})
    ->ArgsProduct({{1}, {4096}, {64, 128}, {0}, {0, 1}})
    ->ArgsProduct({{500}, {8}, {64}, {0}, {0, 1}})
    ->UseRealTime();

}  // namespace
}  // namespace hone
