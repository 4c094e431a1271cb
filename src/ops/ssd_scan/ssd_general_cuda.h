// The general kernels of the state-space scan: scratch memory, and products of small matrices in shared memory.
// Included by *_cuda.cu only.
#pragma once

#include "ops/ssd_scan/ssd_scan_cuda.h"

namespace hone::cuda {

inline constexpr int kSsdThreads = 256;

void ssd_scan_general(const Context& context, const SsdScanArgs& args, const SsdGeneralScratch& scratch);
/// All gradients but those of weights, whose sums over each chunk go to `parts`.
void ssd_scan_general_grad(const Context& context, const SsdScanGradArgs& args, const SsdWeightParts& parts,
                           const SsdGeneralScratch& scratch);
/// The scan with a state.
void continue_ssd_states(const Context& context, const SsdScanArgs& args);

/// Computes scratch.states and scratch.growth.
void find_ssd_states(const Context& context, const SsdScanArgs& args, const SsdGeneralScratch& scratch);
/// Computes scratch.dstates from `dout`.
void find_ssd_state_gradients(const Context& context, const SsdScanArgs& args, const Tensor& dout,
                              const SsdGeneralScratch& scratch);

#ifdef __CUDACC__

/// Steps of a chunk's tokens and decays between them, in shared memory.
template <int kRows>
struct SsdTokens {
  float delta[kRows], g[kRows];
  float grown[kRows];   // exp(G_i)
  float to_end[kRows];  // exp(G_last − G_i)
  double sums[kRows];   // G_i: a decay is the exponential of a difference of these

  /// Called by all threads; barriers are before the first write and after the last.
  template <class T>
  __device__ void load(const SsdArguments<T>& in, const SsdPlace& place, int head) {
    __syncthreads();
    const int i = static_cast<int>(threadIdx.x);
    if (i < place.rows) {
      const SsdStep step = in.step(place.row + i, head);
      delta[i] = step.delta;
      g[i] = step.g;
    }
    __syncthreads();
    if (i == 0) {
      double sum = 0.0;
      for (int t = 0; t < place.rows; ++t) sums[t] = sum += static_cast<double>(g[t]);
    }
    __syncthreads();
    if (i < place.rows) {
      grown[i] = expf(static_cast<float>(sums[i]));
      to_end[i] = expf(static_cast<float>(sums[place.rows - 1] - sums[i]));
    }
    __syncthreads();
  }

  __device__ float decay(int i, int j) const { return expf(static_cast<float>(sums[i] - sums[j])); }
};

/// Elements between rows of a matrix in shared memory: an odd number of words, so that columns of it have no bank
/// conflicts.
template <class T>
__host__ __device__ constexpr int ssd_pitch(int width) {
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
  return ((width + kPerWord - 1) / kPerWord | 1) * kPerWord;
}

/// to[i] ← from + i · stride, rows of `width`. Without a barrier.
template <class T>
__device__ void load_ssd_rows(const T* from, int64_t stride, int rows, int width, T* to) {
  const int pitch = ssd_pitch<T>(width);
  for (int i = static_cast<int>(threadIdx.x); i < rows * width; i += kSsdThreads) {
    const int row = i / width, column = i % width;
    to[row * pitch + column] = from[row * stride + column];
  }
}

/// Products of matrices up to 128 wide whose elements a(i, k) and b(k, j) may be computed. For rows i < m of the
/// product Σ_k a(i, k) b(k, j), j < n, ssd_product calls f(i, first, step, sums): sums[c] is that of column j = first +
/// c · step if j < n. Each i has one call for each `first` below ssd_parts(n), which is at most 32. The thread that has
/// an element depends on m and n alone. A barrier follows.
template <class T>
__host__ __device__ constexpr int ssd_parts(int n) {
  return sizeof(T) == 2 ? (n + 31) / 32 * 8 : (n + 3) / 4;
}

/// An operand of a tensor core's product as one or two tf32 numbers: bfloat16 is one exactly; a float32 number is the
/// sum of two but for its last two bits.
struct SsdOperand {
  uint32_t high = 0, low = 0;

  SsdOperand() = default;
  __device__ explicit SsdOperand(__nv_bfloat16 value) { high = __float_as_uint(to_float(value)); }
  __device__ explicit SsdOperand(float value) {
    high = rounded(value);
    low = rounded(value - __uint_as_float(high));
  }
  static __device__ uint32_t rounded(float value) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
  }
};

/// sums [16, 8] += a [16, 8] · b [8, 8], in the fragments of PTX's mma.m16n8k8.
__device__ inline void add_tf32_product(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// ssd_product() by tensor cores: a warp has 16 rows and four times 8 columns at a time. What is not exact in tf32 is
/// multiplied in two parts, so that sums are as float32's.
template <class A, class B, class F>
__device__ void ssd_tensor_product(int m, int n, int depth, const A& a, const B& b, const F& f) {
  constexpr bool kSplitA = sizeof(a(0, 0)) == 4, kSplitB = sizeof(b(0, 0)) == 4;
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4, column = lane % 4;
  const int step = (n + 31) / 32 * 8, across = step / 8, tiles = (m + 15) / 16 * across;
  for (int tile = static_cast<int>(threadIdx.x) / 32; tile < tiles; tile += kSsdThreads / 32) {
    const int i0 = tile / across * 16, j0 = tile % across * 8;
    float sums[4][4] = {};
    for (int k0 = 0; k0 < depth; k0 += 8) {
      uint32_t left[4], left_rest[4];
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int i = i0 + row + part % 2 * 8, k = k0 + column + part / 2 * 4;
        const SsdOperand operand = i < m && k < depth ? SsdOperand(a(i, k)) : SsdOperand();
        left[part] = operand.high;
        left_rest[part] = operand.low;
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        uint32_t right[2], right_rest[2];
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const int j = j0 + row + c * step, k = k0 + column + part * 4;
          const SsdOperand operand = j < n && k < depth ? SsdOperand(b(k, j)) : SsdOperand();
          right[part] = operand.high;
          right_rest[part] = operand.low;
        }
        if constexpr (kSplitA) add_tf32_product(sums[c], left_rest, right);
        if constexpr (kSplitB) add_tf32_product(sums[c], left, right_rest);
        add_tf32_product(sums[c], left, right);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = i0 + row + half * 8;
#pragma unroll
      for (int odd = 0; odd < 2 && i < m; ++odd) {
        const int at = 2 * half + odd;
        const float of_row[4] = {sums[0][at], sums[1][at], sums[2][at], sums[3][at]};
        f(i, j0 + 2 * column + odd, step, of_row);
      }
    }
  }
  __syncthreads();
}

/// ssd_product() in float32: a thread has 4 x 4 elements at a time.
template <class A, class B, class F>
__device__ void ssd_float_product(int m, int n, int depth, const A& a, const B& b, const F& f) {
  const int rows = (m + 3) / 4, columns = (n + 3) / 4;
  for (int tile = static_cast<int>(threadIdx.x); tile < rows * columns; tile += kSsdThreads) {
    const int i0 = tile / columns, j0 = tile % columns;
    float sums[4][4] = {};
    for (int k = 0; k < depth; ++k) {
      float left[4], right[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        left[r] = i0 + r * rows < m ? a(i0 + r * rows, k) : 0.0f;
        right[r] = j0 + r * columns < n ? b(k, j0 + r * columns) : 0.0f;
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[r][c] = fmaf(left[r], right[c], sums[r][c]);
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (i0 + r * rows < m) f(i0 + r * rows, j0, columns, sums[r]);
    }
  }
  __syncthreads();
}

template <class T, class A, class B, class F>
__device__ void ssd_product(int m, int n, int depth, const A& a, const B& b, const F& f) {
  if constexpr (sizeof(T) == 2) {
    ssd_tensor_product(m, n, depth, a, b, f);
  } else {
    ssd_float_product(m, n, depth, a, b, f);
  }
}

/// The same with f(i, j, sum) for each element.
template <class T, class A, class B, class F>
__device__ void ssd_elements(int m, int n, int depth, const A& a, const B& b, const F& f) {
  ssd_product<T>(m, n, depth, a, b, [&](int i, int first, int step, const float(&sums)[4]) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (first + c * step < n) f(i, first + c * step, sums[c]);
    }
  });
}

#endif

}  // namespace hone::cuda
