// The activation of experts and its gradient as passes over rows for any GPU: memory-bound, 16 bytes per thread at a
// time if rows are aligned. Tensor-core tiers do this in their epilogues.
#include "kernels/cuda/grouped_gemm/gated_rows_cuda.h"

#include "core/stream/cuda_launch.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// kWidth consecutive elements as float32; 1, or the size of an aligned pack of bfloat16 or float32.
template <int kWidth, class T>
__device__ void load_floats(const T* from, float (&to)[kWidth]) {
  constexpr int kStep = kWidth < Pack<T>::kSize ? 1 : Pack<T>::kSize;
#pragma unroll
  for (int i = 0; i < kWidth; i += kStep) {
    if constexpr (kStep == 1) {
      to[i] = to_float(from[i]);
    } else {
      const Pack<T> pack = load_pack(from + i);
#pragma unroll
      for (int j = 0; j < kStep; ++j) to[i + j] = to_float(pack.values[j]);
    }
  }
}

template <int kWidth, class T>
__device__ void store_floats(T* to, const float (&from)[kWidth]) {
  if constexpr (kWidth == 1) {
    to[0] = from_float<T>(from[0]);
  } else {
    static_assert(kWidth == Pack<T>::kSize);
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) pack.values[i] = from_float<T>(from[i]);
    store_pack(to, pack);
  }
}

/// Uses vectors if rows of I elements keep them aligned, else single elements.
template <class T, class F>
void with_width(int64_t intermediate, F f) {
  if (intermediate % Pack<T>::kSize == 0) {
    f(std::integral_constant<int, Pack<T>::kSize>{});
  } else {
    f(std::integral_constant<int, 1>{});
  }
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    activate_kernel(const T* h, T* activation, int64_t groups_in_row, int64_t groups) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= groups) return;
  const int64_t row = at / groups_in_row, column = at % groups_in_row * kWidth, intermediate = groups_in_row * kWidth;
  float gate[kWidth], up[kWidth];
  load_floats(h + row * 2 * intermediate + column, gate);
  load_floats(h + row * 2 * intermediate + intermediate + column, up);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) gate[i] = gate[i] * sigmoid(gate[i]) * up[i];
  store_floats(activation + row * intermediate + column, gate);
}

template <class T, class D>
struct GatedGrad {
  const int64_t* used;
  const int32_t* assignment;
  const T* h;
  const T* weights;
  const D* dact;
  T* dh;
  T* scaled_act;
  float* dweights;
  int64_t intermediate;
};

/// One warp per row, so that the sum over i needs no shared memory and has a fixed order.
template <class T, class D, int kWidth>
__global__ void __launch_bounds__(kThreads) gated_grad_kernel(GatedGrad<T, D> g) {
  const int64_t r = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (r >= *g.used) return;
  const int32_t choice = g.assignment[r];
  const float weight = to_float(g.weights[choice]);
  const int64_t gate_row = r * 2 * g.intermediate, up_row = gate_row + g.intermediate, row = r * g.intermediate;
  float dot = 0.0f;
  for (int64_t column = threadIdx.x % 32 * kWidth; column < g.intermediate; column += 32 * kWidth) {
    float gate[kWidth], up[kWidth], act[kWidth];
    load_floats(g.h + gate_row + column, gate);
    load_floats(g.h + up_row + column, up);
    float dact[kWidth] = {};
    if (g.dact != nullptr) load_floats(g.dact + row + column, dact);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float s = sigmoid(gate[i]), silu = gate[i] * s;
      act[i] = silu * up[i];
      dot += dact[i] * act[i];
      gate[i] = weight * dact[i] * up[i] * s * (1.0f + gate[i] * (1.0f - s));
      up[i] = weight * dact[i] * silu;
      act[i] *= weight;
    }
    if (g.dh != nullptr) {
      store_floats(g.dh + gate_row + column, gate);
      store_floats(g.dh + up_row + column, up);
    }
    if (g.scaled_act != nullptr) store_floats(g.scaled_act + row + column, act);
  }
  if (g.dweights == nullptr) return;
  dot = warp_sum(dot);
  if (threadIdx.x % 32 == 0) g.dweights[choice] = dot;
}

template <class T, class D>
void launch_gated_grad(const Context& context, const GatedGradArgs& args) {
  const GatedGrad<T, D> g{.used = args.offsets.as<int64_t>() + args.offsets.numel() - 1,
                          .assignment = args.assignment.as<int32_t>(),
                          .h = elements<T>(args.h),
                          .weights = elements<T>(args.weights),
                          .dact = elements<D>(args.dact),
                          .dh = elements<T>(args.dh),
                          .scaled_act = elements<T>(args.scaled_act),
                          .dweights = elements<float>(args.dweights),
                          .intermediate = args.h.shape[1] / 2};
  with_width<T>(g.intermediate, [&](auto width) {
    gated_grad_kernel<T, D, decltype(width)::value>
        <<<blocks_for(args.h.shape[0], kWarps), kThreads, 0, stream_of(context)>>>(g);
  });
  check_launch("differentiating expert activations");
}

}  // namespace

void activate_rows(const Context& context, const Tensor& h, const Tensor& activation) {
  if (context.dry() || h.numel() == 0) return;
  cuda::dispatch_float(h.dtype, [&](auto element) {
    using T = decltype(element);
    with_width<T>(activation.shape[1], [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int64_t groups_in_row = activation.shape[1] / kWidth, groups = groups_in_row * activation.shape[0];
      activate_kernel<T, kWidth><<<blocks_for(groups, kThreads), kThreads, 0, stream_of(context)>>>(
          elements<T>(h), elements<T>(activation), groups_in_row, groups);
    });
  });
  check_launch("activating expert rows");
}

void gated_rows_grad(const Context& context, const GatedGradArgs& args) {
  if (context.dry() || args.h.numel() == 0) return;
  cuda::dispatch_float(args.h.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.dact.defined() && args.dact.dtype == args.h.dtype) {
      launch_gated_grad<T, T>(context, args);
    } else {
      launch_gated_grad<T, float>(context, args);
    }
  });
}

}  // namespace hone::cuda
