#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/sigmoid_gate/sigmoid_gate.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <class T>
struct GateTensors {
  const T* gate;
  const T* x;
  const T* dy = nullptr;
  T* y = nullptr;
  T* dgate = nullptr;  ///< may be null; also dx
  T* dx = nullptr;
  bool accumulate_dgate = false, accumulate_dx = false;
  int64_t rows, columns;
};

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/// values, or values + the old value.
template <int kSize, class T>
__device__ inline void store_gradient(T* to, float (&values)[kSize], bool accumulate) {
  if (accumulate) {
    float before[kSize];
    load_floats(to, before);
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] += before[i];
  }
  if constexpr (kSize == 1) {
    *to = from_float<T>(values[0]);
  } else {
    store_floats(to, values);
  }
}

/// A thread processes kSize elements of one row.
template <class T, int kSize, bool kRowGate>
__global__ void __launch_bounds__(kThreads) gate_kernel(const GateTensors<T> a) {
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kSize;
  if (begin >= a.rows * a.columns) return;
  float x[kSize], gate[kSize];
  load_floats(a.x + begin, x);
  if constexpr (kRowGate) {
    gate[0] = to_float(a.gate[begin / a.columns]);
  } else {
    load_floats(a.gate + begin, gate);
  }
#pragma unroll
  for (int i = 0; i < kSize; ++i) x[i] *= rounded<T>(sigmoid(gate[kRowGate ? 0 : i]));
  store_gradient(a.y + begin, x, false);
}

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads) grad_elements(const GateTensors<T> a) {
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kSize;
  if (begin >= a.rows * a.columns) return;
  float x[kSize], dy[kSize], gate[kSize];
  load_floats(a.x + begin, x);
  load_floats(a.dy + begin, dy);
  load_floats(a.gate + begin, gate);
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const float s = sigmoid(gate[i]);
    x[i] *= dy[i] * s * (1.0f - s);
    dy[i] *= rounded<T>(s);
  }
  if (a.dgate != nullptr) store_gradient(a.dgate + begin, x, a.accumulate_dgate);
  if (a.dx != nullptr) store_gradient(a.dx + begin, dy, a.accumulate_dx);
}

/// One warp per row.
template <class T, int kSize>
__global__ void __launch_bounds__(kThreads) grad_rows(const GateTensors<T> a) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= a.rows) return;
  const float s = sigmoid(to_float(a.gate[row])), s_rounded = rounded<T>(s);
  float dot = 0.0f;
  for (int64_t i = lane * kSize; i < a.columns; i += 32 * kSize) {
    float x[kSize], dy[kSize];
    load_floats(a.x + row * a.columns + i, x);
    load_floats(a.dy + row * a.columns + i, dy);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      dot += x[j] * dy[j];
      dy[j] *= s_rounded;
    }
    if (a.dx != nullptr) store_gradient(a.dx + row * a.columns + i, dy, a.accumulate_dx);
  }
  float dgate[1] = {warp_sum(dot) * s * (1.0f - s)};
  if (lane == 0 && a.dgate != nullptr) store_gradient(a.dgate + row, dgate, a.accumulate_dgate);
}

/// Calls body(element, size) with a value of the element type and the number of elements per thread.
template <class Body>
void dispatch_size(const Context& context, const Tensor& x, std::initializer_list<Tensor> others, bool row_gate,
                   Body&& body) {
  cuda::dispatch_float(x.dtype, [&](auto element) {
    constexpr int kSize = 16 / sizeof(element);
    const int64_t unit = row_gate ? x.shape[1] : x.numel();
    bool vectors = !context.stream().general_kernels() && allows_vectors(x, unit, kSize);
    for (const Tensor& tensor : others) vectors = vectors && allows_vectors(tensor, unit, kSize);
    if (vectors) {
      body(element, std::integral_constant<int, kSize>{});
    } else {
      body(element, std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace

void sigmoid_gate(const Context& context, const SigmoidGateArgs& args) {
  const int64_t count = args.x.numel();
  if (context.dry() || count == 0) return;
  const bool row_gate = args.gate.shape[1] != args.x.shape[1];
  dispatch_size(context, args.x, {args.y, row_gate ? Tensor{} : args.gate}, row_gate, [&](auto element, auto size) {
    using T = decltype(element);
    const GateTensors<T> tensors{.gate = elements<T>(args.gate),
                                 .x = elements<T>(args.x),
                                 .y = elements<T>(args.y),
                                 .rows = args.x.shape[0],
                                 .columns = args.x.shape[1]};
    const auto kernel = row_gate ? &gate_kernel<T, size(), true> : &gate_kernel<T, size(), false>;
    kernel<<<blocks_for(count, kThreads * size()), kThreads, 0, stream_of(context)>>>(tensors);
  });
  check_launch("gating by a sigmoid");
}

void sigmoid_gate_grad(const Context& context, const SigmoidGateGradArgs& args) {
  const int64_t count = args.x.numel();
  if (context.dry() || count == 0 || (!args.dgate.wanted() && !args.dx.wanted())) return;
  const bool row_gate = args.gate.shape[1] != args.x.shape[1];
  const Tensor none;
  const std::initializer_list<Tensor> others = {args.dy, args.dx.dst, row_gate ? none : args.gate,
                                                row_gate ? none : args.dgate.dst};
  dispatch_size(context, args.x, others, row_gate, [&](auto element, auto size) {
    using T = decltype(element);
    const GateTensors<T> tensors{.gate = elements<T>(args.gate),
                                 .x = elements<T>(args.x),
                                 .dy = elements<T>(args.dy),
                                 .dgate = elements<T>(args.dgate.dst),
                                 .dx = elements<T>(args.dx.dst),
                                 .accumulate_dgate = args.dgate.beta != 0.0f,
                                 .accumulate_dx = args.dx.beta != 0.0f,
                                 .rows = args.x.shape[0],
                                 .columns = args.x.shape[1]};
    if (row_gate) {
      grad_rows<T, size()><<<blocks_for(tensors.rows, kWarps), kThreads, 0, stream_of(context)>>>(tensors);
    } else {
      grad_elements<T, size()><<<blocks_for(count, kThreads * size()), kThreads, 0, stream_of(context)>>>(tensors);
    }
  });
  check_launch("differentiating a sigmoid gate");
}

}  // namespace hone::cuda
