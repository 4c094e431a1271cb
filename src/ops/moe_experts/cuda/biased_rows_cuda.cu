// Biases, and activations other than SwiGLU, row by row: memory-bound passes in addition to the products, with sums in
// a fixed order.
#include "core/stream/cuda_launch.h"
#include "kernels/cuda/mlp_activation_cuda.h"
#include "ops/moe_experts/cuda/biased_rows_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct RowExperts {
  const int64_t* offsets;
  int experts;

  explicit RowExperts(const ExpertRows& rows)
      : offsets(elements<int64_t>(rows.offsets)), experts(static_cast<int>(rows.offsets.numel() - 1)) {}

  /// Rows [0, used()) belong to experts.
  __device__ int64_t used() const { return offsets[experts]; }
  /// The expert whose rows [offsets[e], offsets[e + 1]) include `row`.
  __device__ int of(int64_t row) const {
    int low = 0, high = experts;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (offsets[middle] <= row ? low : high) = middle;
    }
    return low;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) add_bias_kernel(RowExperts experts, const T* bias, T* y, int64_t n) {
  const int64_t row = blockIdx.x;
  if (row >= experts.used()) return;
  const T* from = bias + int64_t{experts.of(row)} * n;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    y[row * n + i] = from_float<T>(to_float(y[row * n + i]) + to_float(from[i]));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    biased_activation_kernel(RowExperts experts, const T* bias, MlpActivation f, T* h, T* act, int64_t n) {
  const bool gated = f.gated();
  const int64_t row = blockIdx.x, columns = f.columns(n), gate_row = row * columns, up_row = gate_row + n;
  if (row >= experts.used()) return;
  const int64_t of_expert = bias == nullptr ? 0 : int64_t{experts.of(row)} * columns;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    if (bias != nullptr) {
      h[gate_row + i] = from_float<T>(to_float(h[gate_row + i]) + to_float(bias[of_expert + i]));
      if (gated) h[up_row + i] = from_float<T>(to_float(h[up_row + i]) + to_float(bias[of_expert + n + i]));
    }
    const ActivationElement element(f, to_float(h[gate_row + i]), gated ? to_float(h[up_row + i]) : 0.0f);
    act[row * n + i] = from_float<T>(element.glu * element.linear);
  }
}

template <class T>
struct ActivationGrad {
  RowExperts experts;
  const int32_t *token, *assignment;
  const T *h, *weights, *dout, *bias, *dact;
  MlpActivation function;
  T *dh, *scaled_act;
  float* dweights;
  int64_t intermediate, hidden;
};

/// One warp per row, so that the sums have a fixed order.
template <class T>
__global__ void __launch_bounds__(kThreads) biased_activation_grad_kernel(ActivationGrad<T> g) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= g.experts.used()) return;
  const int32_t choice = g.assignment[row];
  const float weight = to_float(g.weights[choice]);
  const bool gated = g.function.gated();
  const int64_t gate_row = row * g.function.columns(g.intermediate), up_row = gate_row + g.intermediate;
  float dot = 0.0f;
  for (int64_t i = lane; i < g.intermediate; i += 32) {
    const int64_t at = row * g.intermediate + i;
    const ActivationElement f(g.function, to_float(g.h[gate_row + i]), gated ? to_float(g.h[up_row + i]) : 0.0f);
    // Rounded as in the product's operand.
    const float act = to_float(from_float<T>(f.glu * f.linear));
    const float dact = g.dact != nullptr ? to_float(g.dact[at]) : 0.0f;
    dot += dact * act;
    if (g.dh != nullptr) {
      g.dh[gate_row + i] = from_float<T>(weight * dact * f.glu_slope * f.linear);
      if (gated) g.dh[up_row + i] = from_float<T>(weight * dact * f.glu * f.linear_slope);
    }
    if (g.scaled_act != nullptr) g.scaled_act[at] = from_float<T>(weight * act);
  }
  if (g.dweights == nullptr) return;
  if (g.bias != nullptr) {
    const T* dout = g.dout + g.token[row] * g.hidden;
    const T* bias = g.bias + int64_t{g.experts.of(row)} * g.hidden;
    for (int64_t i = lane; i < g.hidden; i += 32) dot += to_float(dout[i]) * to_float(bias[i]);
  }
  dot = warp_sum(dot);
  if (lane == 0) g.dweights[choice] = dot;
}

constexpr int kGradColumns = 64, kGradLanes = kThreads / kGradColumns;

template <class T>
struct BiasGrad {
  const int64_t* offsets;
  const int32_t *index, *assignment;
  const T *dy, *weights;
  float* dbias;
  int64_t n;
  float beta;
};

/// kGradColumns columns of one expert: kGradLanes threads per column process every kGradLanes-th row, and their sums
/// are added in order.
template <class T>
__global__ void __launch_bounds__(kThreads) bias_grad_kernel(BiasGrad<T> g) {
  __shared__ float partial[kGradLanes][kGradColumns];
  const int64_t expert = blockIdx.y, column = int64_t{blockIdx.x} * kGradColumns + threadIdx.x % kGradColumns;
  const int lane = threadIdx.x / kGradColumns;
  float sum = 0.0f;
  if (column < g.n) {
    for (int64_t row = g.offsets[expert] + lane; row < g.offsets[expert + 1]; row += kGradLanes) {
      const int64_t from = g.index != nullptr ? g.index[row] : row;
      const float weight = g.weights != nullptr ? to_float(g.weights[g.assignment[row]]) : 1.0f;
      sum += weight * to_float(g.dy[from * g.n + column]);
    }
  }
  partial[lane][threadIdx.x % kGradColumns] = sum;
  __syncthreads();
  if (lane != 0 || column >= g.n) return;
  sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kGradLanes; ++i) sum += partial[i][threadIdx.x];
  float& to = g.dbias[expert * g.n + column];
  to = g.beta != 0.0f ? sum + g.beta * to : sum;
}

}  // namespace

void add_bias_rows(const Context& context, const ExpertRows& rows, const Tensor& bias, const Tensor& y) {
  HONE_ASSERT(bias.dtype == y.dtype);
  if (context.dry() || y.numel() == 0) return;
  cuda::dispatch_float(y.dtype, [&](auto element) {
    using T = decltype(element);
    add_bias_kernel<T><<<blocks_for(y.shape[0], 1), kThreads, 0, stream_of(context)>>>(
        RowExperts(rows), elements<T>(bias), elements<T>(y), y.shape[1]);
  });
  check_launch("adding the biases of experts");
}

void activate_biased_rows(const Context& context, const BiasedActivationArgs& args) {
  HONE_ASSERT(!args.bias.defined() || args.bias.dtype == args.h.dtype);
  if (context.dry() || args.h.numel() == 0) return;
  cuda::dispatch_float(args.h.dtype, [&](auto element) {
    using T = decltype(element);
    biased_activation_kernel<T><<<blocks_for(args.h.shape[0], 1), kThreads, 0, stream_of(context)>>>(
        RowExperts(args.rows), elements<T>(args.bias), args.function, elements<T>(args.h), elements<T>(args.activation),
        args.activation.shape[1]);
  });
  check_launch("activating expert rows");
}

void biased_activation_grad(const Context& context, const BiasedActivationGradArgs& args) {
  HONE_ASSERT(!args.bias.defined() || args.bias.dtype == args.h.dtype);
  HONE_ASSERT(!args.dact.defined() || args.dact.dtype == args.h.dtype);
  if (context.dry() || args.h.numel() == 0) return;
  cuda::dispatch_float(args.h.dtype, [&](auto element) {
    using T = decltype(element);
    const ActivationGrad<T> grad{.experts = RowExperts(args.rows),
                                 .token = args.rows.token.as<int32_t>(),
                                 .assignment = args.rows.assignment.as<int32_t>(),
                                 .h = elements<T>(args.h),
                                 .weights = elements<T>(args.weights),
                                 .dout = elements<T>(args.dout),
                                 .bias = elements<T>(args.bias),
                                 .dact = elements<T>(args.dact),
                                 .function = args.function,
                                 .dh = elements<T>(args.dh),
                                 .scaled_act = elements<T>(args.scaled_act),
                                 .dweights = elements<float>(args.dweights),
                                 .intermediate = args.function.width(args.h.shape[1]),
                                 .hidden = args.dout.shape[1]};
    biased_activation_grad_kernel<T><<<blocks_for(args.h.shape[0], kWarps), kThreads, 0, stream_of(context)>>>(grad);
  });
  check_launch("differentiating expert activations");
}

void bias_rows_grad(const Context& context, const BiasRowsGradArgs& args) {
  const Tensor& dbias = args.dbias.dst;
  if (context.dry() || dbias.numel() == 0) return;
  cuda::dispatch_float(args.dy.dtype, [&](auto element) {
    using T = decltype(element);
    HONE_ASSERT(!args.weights.defined() || args.weights.dtype == args.dy.dtype);
    const BiasGrad<T> grad{.offsets = args.rows.offsets.as<int64_t>(),
                           .index = args.gathered ? args.rows.token.as<int32_t>() : nullptr,
                           .assignment = args.rows.assignment.as<int32_t>(),
                           .dy = elements<T>(args.dy),
                           .weights = elements<T>(args.weights),
                           .dbias = elements<float>(dbias),
                           .n = dbias.shape[1],
                           .beta = args.dbias.beta};
    const dim3 grid(blocks_for(grad.n, kGradColumns), static_cast<unsigned>(dbias.shape[0]));
    bias_grad_kernel<T><<<grid, kThreads, 0, stream_of(context)>>>(grad);
  });
  check_launch("summing the bias gradients of experts");
}

}  // namespace hone::cuda
