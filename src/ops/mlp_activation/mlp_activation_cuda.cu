#include "core/stream/cuda_launch.h"
#include "kernels/cuda/mlp_activation_cuda.h"
#include "ops/mlp_activation/mlp_activation.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;

template <class T, int kWidth>
struct alignas(kWidth * sizeof(T)) Group {
  T values[kWidth];
};

template <class T>
struct ActivationTensors {
  MlpActivation function;
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

/// glu(gate), rounded, and its slope.
template <class T, bool kSwiglu>
struct RoundedGlu {
  float glu, slope;

  __device__ RoundedGlu(const MlpActivation& f, float gate) {
    if constexpr (kSwiglu) {
      const float s = sigmoid(gate);
      glu = gate * s;
      slope = s * (1.0f + gate * (1.0f - s));
    } else {
      const ActivationElement element(f, gate, 0.0f);
      glu = element.glu;
      slope = element.glu_slope;
    }
    glu = to_float(from_float<T>(glu));
  }
};

template <class T, int kWidth, bool kSwiglu>
__global__ void __launch_bounds__(kThreads) activation_kernel(ActivationTensors<T> t, int64_t groups) {
  using G = Group<T, kWidth>;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= groups) return;
  const int64_t place = t.template place_of<kWidth>(index);
  const G gate = reinterpret_cast<const G*>(t.gate)[place];
  G up, y;
  if (t.up != nullptr) up = reinterpret_cast<const G*>(t.up)[place];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float glu = RoundedGlu<T, kSwiglu>(t.function, to_float(gate.values[i])).glu;
    y.values[i] = from_float<T>(t.up != nullptr ? glu * to_float(up.values[i]) : glu);
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

template <class T, int kWidth, bool kSwiglu>
__global__ void __launch_bounds__(kThreads) activation_grad_kernel(ActivationTensors<T> t, int64_t groups) {
  using G = Group<T, kWidth>;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= groups) return;
  const int64_t place = t.template place_of<kWidth>(index);
  const G gate = reinterpret_cast<const G*>(t.gate)[place], dy = reinterpret_cast<const G*>(t.dy)[index];
  G up = gate;
  if (t.dgate != nullptr && t.up != nullptr) up = reinterpret_cast<const G*>(t.up)[place];
  float dgate[kWidth], dup[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const RoundedGlu<T, kSwiglu> f(t.function, to_float(gate.values[i]));
    const float d = to_float(dy.values[i]);
    dgate[i] = t.up != nullptr ? f.slope * d * to_float(up.values[i]) : f.slope * d;
    dup[i] = f.glu * d;
  }
  if (t.dgate != nullptr) store(t.dgate, place, dgate, t.dgate_beta);
  if (t.dup != nullptr) store(t.dup, place, dup, t.dup_beta);
}

/// Calls body(element, width, swiglu) with a value of the element type, the number of elements per thread, of which
/// `unit` is a multiple, and whether the function is SwiGLU.
template <class Body>
void dispatch_kernel(const MlpActivation& function, DType dtype, int64_t unit,
                     std::initializer_list<const std::byte*> addresses, Body&& body) {
  uintptr_t bits = 0;
  for (const std::byte* address : addresses) bits |= reinterpret_cast<uintptr_t>(address);
  cuda::dispatch_float(dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kWidth = Pack<T>::kSize;
    const auto with_width = [&](auto swiglu) {
      if (bits % 16 == 0 && unit % kWidth == 0) {
        body(element, std::integral_constant<int, kWidth>{}, swiglu);
      } else {
        body(element, std::integral_constant<int, 1>{}, swiglu);
      }
    };
    function.kind == MlpActivation::Kind::kSwiglu ? with_width(std::true_type{}) : with_width(std::false_type{});
  });
}

}  // namespace

void mlp_activation(const Context& context, const MlpActivationArgs& args) {
  const int64_t count = args.y.numel();
  if (context.dry() || count == 0) return;
  const int64_t columns = args.y.shape[-1];
  dispatch_kernel(args.function, args.y.dtype, args.pitch == 0 ? count : columns,
                  {args.gate.data, args.up.data, args.y.data}, [&](auto element, auto width, auto swiglu) {
                    using T = decltype(element);
                    const ActivationTensors<T> tensors{.function = args.function,
                                                       .gate = elements<T>(args.gate),
                                                       .up = elements<T>(args.up),
                                                       .y = elements<T>(args.y),
                                                       .columns = columns,
                                                       .pitch = args.pitch};
                    const int64_t groups = count / width;
                    activation_kernel<T, width, swiglu>
                        <<<blocks_for(groups, kThreads), kThreads, 0, stream_of(context)>>>(tensors, groups);
                    check_launch("activating an MLP");
                  });
}

void mlp_activation_grad(const Context& context, const MlpActivationGradArgs& args) {
  const int64_t count = args.gate.numel();
  if (context.dry() || count == 0 || (!args.dgate.wanted() && !args.dup.wanted())) return;
  const int64_t columns = args.gate.shape[-1];
  dispatch_kernel(args.function, args.gate.dtype, args.pitch == 0 ? count : columns,
                  {args.gate.data, args.up.data, args.dy.data, args.dgate.dst.data, args.dup.dst.data},
                  [&](auto element, auto width, auto swiglu) {
                    using T = decltype(element);
                    const ActivationTensors<T> tensors{.function = args.function,
                                                       .gate = elements<T>(args.gate),
                                                       .up = elements<T>(args.up),
                                                       .dy = elements<T>(args.dy),
                                                       .dgate = elements<T>(args.dgate.dst),
                                                       .dup = elements<T>(args.dup.dst),
                                                       .dgate_beta = args.dgate.beta,
                                                       .dup_beta = args.dup.beta,
                                                       .columns = columns,
                                                       .pitch = args.pitch};
                    const int64_t groups = count / width;
                    activation_grad_kernel<T, width, swiglu>
                        <<<blocks_for(groups, kThreads), kThreads, 0, stream_of(context)>>>(tensors, groups);
                    check_launch("differentiating the activation of an MLP");
                  });
}

}  // namespace hone::cuda
