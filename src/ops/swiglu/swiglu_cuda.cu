#include "core/stream/cuda_launch.h"
#include "ops/swiglu/swiglu.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;

template <class T, int kWidth>
struct alignas(kWidth * sizeof(T)) Group {
  T values[kWidth];
};

template <class T>
struct SwigluTensors {
  const T* gate = nullptr;
  const T* up = nullptr;
  const T* dy = nullptr;
  T* y = nullptr;
  T* dgate = nullptr;  ///< may be null; also dup
  T* dup = nullptr;
  float dgate_beta = 0, dup_beta = 0;
  int64_t columns = 0, pitch = 0;  ///< pitch 0: gate and up have the layout of y

  /// Index of the group of kWidth elements in gate and up, in groups.
  template <int kWidth>
  __device__ int64_t place_of(int64_t group) const {
    if (pitch == 0) return group;
    const int64_t groups = columns / kWidth, row = group / groups;
    return row * (pitch / kWidth) + group - row * groups;
  }
};

__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

template <class T>
__device__ inline float rounded_silu(float gate, float sigmoid_of_gate) {
  return to_float(from_float<T>(gate * sigmoid_of_gate));
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(SwigluTensors<T> t, int64_t groups) {
  using G = Group<T, kWidth>;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= groups) return;
  const int64_t place = t.template place_of<kWidth>(index);
  const G gate = reinterpret_cast<const G*>(t.gate)[place], up = reinterpret_cast<const G*>(t.up)[place];
  G y;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float g = to_float(gate.values[i]);
    y.values[i] = from_float<T>(rounded_silu<T>(g, sigmoid(g)) * to_float(up.values[i]));
  }
  reinterpret_cast<G*>(t.y)[index] = y;
}

/// values + beta · the old value.
template <class T, int kWidth>
__device__ inline void store(T* to, int64_t index, const float (&values)[kWidth], float beta) {
  using G = Group<T, kWidth>;
  G* destination = reinterpret_cast<G*>(to) + index;
  G result;
  if (beta != 0.0f) result = *destination;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    result.values[i] = from_float<T>(values[i] + (beta != 0.0f ? to_float(result.values[i]) : 0.0f));
  }
  *destination = result;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) swiglu_grad_kernel(SwigluTensors<T> t, int64_t groups) {
  using G = Group<T, kWidth>;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= groups) return;
  const int64_t place = t.template place_of<kWidth>(index);
  const G gate = reinterpret_cast<const G*>(t.gate)[place], dy = reinterpret_cast<const G*>(t.dy)[index];
  G up = gate;
  if (t.dgate != nullptr) up = reinterpret_cast<const G*>(t.up)[place];
  float dgate[kWidth], dup[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float g = to_float(gate.values[i]), s = sigmoid(g), d = to_float(dy.values[i]);
    dgate[i] = s * (1.0f + g * (1.0f - s)) * d * to_float(up.values[i]);
    dup[i] = rounded_silu<T>(g, s) * d;
  }
  if (t.dgate != nullptr) store(t.dgate, place, dgate, t.dgate_beta);
  if (t.dup != nullptr) store(t.dup, place, dup, t.dup_beta);
}

/// Calls body(element, width) with a value of the element type and the number of elements per thread, of which `unit`
/// is a multiple.
template <class Body>
void dispatch_width(DType dtype, int64_t unit, std::initializer_list<const std::byte*> addresses, Body&& body) {
  uintptr_t bits = 0;
  for (const std::byte* address : addresses) bits |= reinterpret_cast<uintptr_t>(address);
  cuda::dispatch_float(dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kWidth = Pack<T>::kSize;
    if (bits % 16 == 0 && unit % kWidth == 0) {
      body(element, std::integral_constant<int, kWidth>{});
    } else {
      body(element, std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace

void swiglu(const Context& context, const SwigluArgs& args) {
  const int64_t count = args.y.numel();
  if (context.dry() || count == 0) return;
  const int64_t columns = args.y.shape[-1];
  dispatch_width(args.y.dtype, args.pitch == 0 ? count : columns, {args.gate.data, args.up.data, args.y.data},
                 [&](auto element, auto width) {
                   using T = decltype(element);
                   const SwigluTensors<T> tensors{.gate = elements<T>(args.gate),
                                                  .up = elements<T>(args.up),
                                                  .y = elements<T>(args.y),
                                                  .columns = columns,
                                                  .pitch = args.pitch};
                   const int64_t groups = count / width;
                   swiglu_kernel<T, width>
                       <<<blocks_for(groups, kThreads), kThreads, 0, stream_of(context)>>>(tensors, groups);
                   check_launch("computing SwiGLU");
                 });
}

void swiglu_grad(const Context& context, const SwigluGradArgs& args) {
  const int64_t count = args.gate.numel();
  if (context.dry() || count == 0 || (!args.dgate.wanted() && !args.dup.wanted())) return;
  const int64_t columns = args.gate.shape[-1];
  dispatch_width(args.gate.dtype, args.pitch == 0 ? count : columns,
                 {args.gate.data, args.up.data, args.dy.data, args.dgate.dst.data, args.dup.dst.data},
                 [&](auto element, auto width) {
                   using T = decltype(element);
                   const SwigluTensors<T> tensors{.gate = elements<T>(args.gate),
                                                  .up = elements<T>(args.up),
                                                  .dy = elements<T>(args.dy),
                                                  .dgate = elements<T>(args.dgate.dst),
                                                  .dup = elements<T>(args.dup.dst),
                                                  .dgate_beta = args.dgate.beta,
                                                  .dup_beta = args.dup.beta,
                                                  .columns = columns,
                                                  .pitch = args.pitch};
                   const int64_t groups = count / width;
                   swiglu_grad_kernel<T, width>
                       <<<blocks_for(groups, kThreads), kThreads, 0, stream_of(context)>>>(tensors, groups);
                   check_launch("differentiating SwiGLU");
                 });
}

}  // namespace hone::cuda
