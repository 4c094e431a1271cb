// One decoding step of a batch: bytes are the cached keys and values, each read once; the ceiling is memory bandwidth.
#include <benchmark/benchmark.h>

#include <cstring>

#include "core/philox.h"
#include "core/thread_pool.h"
#include "ops/attention/cached/cached_attention.h"

namespace hone {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 4, kHeadDim = 128;

template <class T>
Tensor random_tensor(Buffer& buffer, Shape shape, uint64_t key) {
  PhiloxSequence random(key);
  buffer = Buffer(Device{}, static_cast<size_t>(shape.numel()) * sizeof(T));
  const Tensor tensor = buffer.tensor(shape, DTypeOf<T>::value);
  for (int64_t i = 0; i < shape.numel(); ++i) tensor.as<T>()[i] = T(random.normal());
  return tensor;
}

Tensor integers(Buffer& buffer, const std::vector<int32_t>& values) {
  buffer = Buffer(Device{}, values.size() * sizeof(int32_t));
  const Tensor tensor = buffer.tensor({static_cast<int64_t>(values.size())}, DType::kI32);
  std::memcpy(tensor.data, values.data(), tensor.bytes());
  return tensor;
}

template <class T>
void decoding_speed(benchmark::State& state) {
  const int64_t sequences = state.range(0), length = state.range(1), width = kKvHeads * kHeadDim;
  ThreadPool pool;
  Stream stream(Device{}, pool);
  Arena scratch(Device{}, "scratch");
  const Context context(stream, scratch);
  Buffer bytes[8];
  std::vector<int32_t> offsets;
  for (int32_t i = 0; i <= sequences; ++i) offsets.push_back(i);
  const Shape of_q{sequences, kHeads * kHeadDim}, of_kv{sequences, width}, of_cache{sequences, length + 1, width};
  const CachedAttentionArgs args{
      .q = random_tensor<T>(bytes[0], of_q, 1),
      .k = random_tensor<T>(bytes[1], of_kv, 2),
      .v = random_tensor<T>(bytes[2], of_kv, 3),
      .out = random_tensor<T>(bytes[3], of_q, 4),
      .options =
          {.num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = kHeadDim, .v_head_dim = kHeadDim, .scale = 0.1f},
      .cache = {.k = random_tensor<T>(bytes[4], of_cache, 5),
                .v = random_tensor<T>(bytes[5], of_cache, 6),
                .lengths = integers(bytes[6],
                                    std::vector<int32_t>(static_cast<size_t>(sequences), static_cast<int32_t>(length))),
                .added = {integers(bytes[7], offsets), sequences, 1}}};
  cached_attention(context, args);
  scratch.reserve(scratch.high_water());
  for (auto _ : state) {
    cached_attention(context, args);
    stream.synchronize();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(2 * args.cache.k.bytes()));
}

BENCHMARK(decoding_speed<float>)->ArgNames({"sequences", "length"})->Args({1, 4096})->Args({8, 512})->UseRealTime();
BENCHMARK(decoding_speed<BFloat16>)->ArgNames({"sequences", "length"})->Args({1, 4096})->Args({8, 512})->UseRealTime();

}  // namespace
}  // namespace hone
