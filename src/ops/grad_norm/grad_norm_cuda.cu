#include "kernels/cuda/rows/tensor_table_cuda.h"
#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/grad_norm/grad_norm.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 512, kWidth = 4, kUnroll = 4;
/// Elements per CTA: few enough CTAs that adding their sums takes negligible time.
constexpr int64_t kChunk = 65536;

struct Entry {
  const void* gradient;
  int64_t elements;
  int32_t index;  // index of the gradient in the list
  bool narrow;    // bfloat16, else float32
};

using Table = TensorTable<Entry, 128, kChunk>;

__device__ double square(float value) {
  const auto wide = static_cast<double>(value);
  return wide * wide;
}

/// A thread's part of the sum of squares of elements [begin, end).
template <class T>
__device__ double sum_squares(const T* gradient, int64_t begin, int64_t end, bool vectors) {
  int64_t i = begin + threadIdx.x;
  double sum = 0.0;
  if (vectors && reinterpret_cast<uintptr_t>(gradient) % (kWidth * sizeof(T)) == 0) {
    const int64_t vectors_end = end - end % kWidth;
    for (int64_t first = begin + threadIdx.x * kWidth; first < vectors_end; first += kThreads * kWidth * kUnroll) {
      float values[kUnroll][kWidth] = {};
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t at = first + u * kThreads * kWidth;
        if (at < vectors_end) load_floats(gradient + at, values[u]);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (float value : values[u]) sum += square(value);
      }
    }
    i = vectors_end + threadIdx.x;
  }
  for (; i < end; i += kThreads) sum += square(to_float(gradient[i]));
  return sum;
}

/// A CTA sums the squares of a chunk of a tensor; writes [chunks] sums and the index of each chunk's gradient.
__global__ void __launch_bounds__(kThreads)
    square_chunks(const __grid_constant__ Table table, bool vectors, double* sums, int32_t* owners) {
  __shared__ double partial[kThreads / 32];
  const int index = table.find(blockIdx.x);
  const Entry& entry = table.entries[index];
  const int64_t begin = table.begin(index, blockIdx.x), end = min(entry.elements, begin + kChunk);
  double sum = entry.narrow ? sum_squares(static_cast<const __nv_bfloat16*>(entry.gradient), begin, end, vectors)
                            : sum_squares(static_cast<const float*>(entry.gradient), begin, end, vectors);
  sum = block_sum<kThreads>(sum, partial);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
    owners[blockIdx.x] = entry.index;
  }
}

constexpr int kSumThreads = 1024;

/// A single CTA. Chunks are in the order of the gradients, so the first bad chunk belongs to the first bad gradient.
__global__ void __launch_bounds__(kSumThreads)
    add_chunks(const double* sums, const int32_t* owners, int64_t chunks, double* sum_of_squares,
               int32_t* first_nonfinite, int32_t earlier_gradients) {
  __shared__ double partial[kSumThreads / 32];
  __shared__ int32_t first;
  if (threadIdx.x == 0) first = INT32_MAX;
  __syncthreads();
  double sum = 0.0;
  int64_t bad = chunks;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < chunks; i += kSumThreads) {
    sum += sums[i];
    // Squares of finite float32 do not overflow float64.
    if (bad == chunks && !isfinite(sums[i])) bad = i;
  }
  if (bad < chunks) atomicMin(&first, static_cast<int32_t>(bad));
  sum = block_sum<kSumThreads>(sum, partial);
  if (threadIdx.x != 0) return;
  const bool goes_on = earlier_gradients >= 0;
  *sum_of_squares = goes_on ? *sum_of_squares + sum : sum;
  if (goes_on && *first_nonfinite >= 0) return;
  *first_nonfinite = first == INT32_MAX ? -1 : owners[first] + max(earlier_gradients, 0);
}

__global__ void finish_kernel(const double* sum_of_squares, StepScalars* step) {
  const double norm = sqrt(*sum_of_squares);
  step->grad_norm = static_cast<float>(norm);
  step->clip_coefficient = 1.0f;
  if (!isfinite(step->grad_norm)) {
    step->nonfinite = 1;
  } else if (step->max_grad_norm > 0) {
    step->clip_coefficient = static_cast<float>(min(1.0, static_cast<double>(step->max_grad_norm) / (norm + 1e-6)));
  }
}

}  // namespace

void sum_of_squares(const Context& context, const SumOfSquaresArgs& args) {
  int64_t chunks = 0;
  for (const Tensor& gradient : args.gradients) chunks += (gradient.numel() + kChunk - 1) / kChunk;
  ArenaScope scratch(context.scratch());
  const Tensor sums = scratch.take({chunks}, DType::kF64), owners = scratch.take({chunks}, DType::kI32);
  if (context.dry()) return;
  HONE_ASSERT(chunks < INT32_MAX);
  Table table;
  int64_t done = 0;
  const auto launch = [&] {
    if (table.chunks == 0) return;
    square_chunks<<<table.chunks, kThreads, 0, stream_of(context)>>>(
        table, !context.stream().general_kernels(), elements<double>(sums) + done, elements<int32_t>(owners) + done);
    check_launch("squaring gradients");
    done += table.chunks;
    table = {};
  };
  for (size_t i = 0; i < args.gradients.size(); ++i) {
    if (table.full()) launch();
    const Tensor& gradient = args.gradients[i];
    table.add({gradient.data, gradient.numel(), static_cast<int32_t>(i), gradient.dtype == DType::kBF16},
              gradient.numel());
  }
  launch();
  add_chunks<<<1, kSumThreads, 0, stream_of(context)>>>(
      elements<double>(sums), elements<int32_t>(owners), chunks, elements<double>(args.sum_of_squares),
      elements<int32_t>(args.first_nonfinite), args.earlier_gradients);
  check_launch("adding up squares");
}

void finish_grad_norm(const Context& context, const FinishGradNormArgs& args) {
  if (context.dry()) return;
  finish_kernel<<<1, 1, 0, stream_of(context)>>>(elements<double>(args.sum_of_squares), args.scalars);
  check_launch("finishing the gradient norm");
}

}  // namespace hone::cuda
