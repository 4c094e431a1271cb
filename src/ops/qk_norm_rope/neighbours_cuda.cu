#include "ops/qk_norm_rope/neighbours_cuda.h"

#include "ops/qk_norm_rope/head_rows_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kPairs = kHalfValues / 2;

template <class T>
__global__ void __launch_bounds__(kThreads)
    turn_neighbours_kernel(const HeadRows<T> rows, T* to, float direction, bool accumulate) {
  const uint32_t vectors_of_head = static_cast<uint32_t>(rows.head_dim) / kHalfValues;
  const uint32_t vectors_of_token = static_cast<uint32_t>(rows.heads) * vectors_of_head;
  const uint32_t item = blockIdx.x * kThreads + threadIdx.x, token = item / vectors_of_token;
  if (token >= rows.tokens) return;
  const int column = static_cast<int>(item % vectors_of_head) * kHalfValues;
  const int64_t at = int64_t{item} * kHalfValues;
  HalfValues values;
  load_floats(rows.x + at, values);
  const int64_t first = column - rows.layout.offset;  // relative to the rotated dimensions
  if (first >= 0 && first < 2 * rows.half) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float2 angle = rows.angle(token, first / 2 + i);
      const float a = values[2 * i], b = values[2 * i + 1], sin = direction * angle.y;
      values[2 * i] = a * angle.x - b * sin;
      values[2 * i + 1] = b * angle.x + a * sin;
    }
  }
  if (accumulate) {
    HalfValues before;
    load_floats(to + at, before);
#pragma unroll
    for (int i = 0; i < kHalfValues; ++i) values[i] += before[i];
  }
  store_floats(to + at, values);
}

}  // namespace

bool allows_turning_neighbours(const Context& context, const QkNormRopeArgs& args, const Tensor& from,
                               const Tensor& to) {
  return args.layout.interleaved && !args.norm.defined() && !context.stream().general_kernels() &&
         args.layout.offset % kHalfValues == 0 && args.table.cos.shape[1] % kPairs == 0 &&
         allows_vectors(from, args.head_dim, kHalfValues) && allows_vectors(to, args.head_dim, kHalfValues) &&
         from.numel() / kHalfValues <= INT32_MAX;
}

void turn_neighbours(const Context& context, const QkNormRopeArgs& args, const Tensor& from, const GradDest& to,
                     float direction) {
  cuda::dispatch_float(from.dtype, [&](auto element) {
    using T = decltype(element);
    HeadRows<T> rows = head_rows<T>(args, from.shape[0], from.shape[1]);
    rows.x = elements<T>(from);
    turn_neighbours_kernel<T><<<blocks_for(from.numel() / kHalfValues, kThreads), kThreads, 0, stream_of(context)>>>(
        rows, elements<T>(to.dst), direction, to.beta != 0.0f);
  });
  check_launch("turning neighbours");
}

}  // namespace hone::cuda
