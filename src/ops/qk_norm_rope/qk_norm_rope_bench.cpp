// Bytes: x read and y written; backward x and dy read, dx written. The ceiling is memory bandwidth.
#include <benchmark/benchmark.h>

#include <cstring>

#include "core/philox.h"
#include "core/thread_pool.h"
#include "ops/qk_norm_rope/qk_norm_rope.h"
#include "ops/qk_norm_rope/rope_table.h"

namespace hone {
namespace {

constexpr int64_t kTokens = 2048, kHeads = 16, kHeadDim = 128;

template <class T>
Tensor to_device(Buffer& buffer, const std::vector<T>& values, Shape shape) {
  buffer = Buffer(Device{}, values.size() * sizeof(T));
  const Tensor tensor = buffer.tensor(shape, DTypeOf<T>::value);
  std::memcpy(tensor.data, values.data(), tensor.bytes());
  return tensor;
}

template <class T>
std::vector<T> random_values(int64_t count, uint64_t key) {
  PhiloxSequence random(key);
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(T(random.normal()));
  return values;
}

template <class T>
void qk_norm_rope_speed(benchmark::State& state) {
  const bool with_norm = state.range(0) != 0, backward = state.range(1) != 0;
  ThreadPool pool;
  Stream stream(Device{}, pool);
  Arena scratch(Device{}, "scratch");
  const Context context(stream, scratch);
  Buffer bytes[9];
  const Shape shape{kTokens, kHeads * kHeadDim};
  const auto table =
      rope_table_values(rope_frequencies({.rotary_dim = kHeadDim, .max_position_embeddings = kTokens}, 0), kTokens);
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < kTokens; ++i) positions.push_back(i);
  QkNormRopeArgs args{.x = to_device(bytes[0], random_values<T>(shape.numel(), 1), shape),
                      .norm = {},
                      .eps = 1e-6f,
                      .table = {to_device(bytes[1], table.cos, {kTokens, kHeadDim / 2}),
                                to_device(bytes[2], table.sin, {kTokens, kHeadDim / 2})},
                      .positions = to_device(bytes[3], positions, {kTokens}),
                      .head_dim = kHeadDim,
                      .layout = {},
                      .y = to_device(bytes[4], random_values<T>(shape.numel(), 2), shape)};
  if (with_norm) args.norm = to_device(bytes[5], random_values<T>(kHeadDim, 3), {kHeadDim});
  QkNormRopeBackwardArgs backward_args{.forward = args, .dy = args.y, .dx = {}, .dnorm = {}};
  backward_args.dx.dst = to_device(bytes[6], random_values<T>(shape.numel(), 4), shape);
  if (with_norm) backward_args.dnorm.dst = to_device(bytes[7], random_values<float>(kHeadDim, 5), {kHeadDim});
  qk_norm_rope_backward(context, backward_args);
  scratch.reserve(scratch.high_water());
  for (auto _ : state) {
    if (backward) {
      qk_norm_rope_backward(context, backward_args);
    } else {
      qk_norm_rope(context, args);
    }
    stream.synchronize();
  }
  const auto passes = backward && with_norm ? 3 : 2;
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * passes * static_cast<int64_t>(args.x.bytes()));
}

BENCHMARK(qk_norm_rope_speed<float>)->ArgNames({"norm", "backward"})->ArgsProduct({{0, 1}, {0, 1}})->UseRealTime();
BENCHMARK(qk_norm_rope_speed<BFloat16>)->ArgNames({"norm", "backward"})->ArgsProduct({{0, 1}, {0, 1}})->UseRealTime();

}  // namespace
}  // namespace hone
