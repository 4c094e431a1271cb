// Stores a warp's accumulators of a weight gradient: 16 rows by 32 columns at a time through its strip of shared
// memory, as float32, so that threads write 4 consecutive elements and warps whole lines, or half lines if transposed.
// Included by *_cuda.cu only.
#pragma once

#include "kernels/cuda/sm90/wgmma_cuda.h"

namespace hone::cuda::sm90 {

/// 16 rows p by 32 columns s of float32 in 2048 bytes, aligned to 1024. A line of 128 bytes has the columns of row p
/// or, transposed, the rows of columns s and s + 16. The 16-byte units of a line are permuted to avoid bank conflicts
/// in both directions. Addresses differ by constants in separate bits, since the accumulators leave few registers.
template <bool kTransposed>
class WeightStrip {
 public:
  static constexpr int kColumns = 32;
  static constexpr int kGets = 4;  // per warp, for the whole strip
  static constexpr int kStep = 4;  // rows p (transposed: columns s) from one get to the next
  int p, s;                        ///< position of the thread's first element in get 0

  __device__ explicit WeightStrip(uint32_t strip) {
    const int lane = static_cast<int>(threadIdx.x) % 32, line = lane / 8, unit = lane % 8;
    p = kTransposed ? unit % 4 * 4 : line;
    s = kTransposed ? line + unit / 4 * 16 : unit * 4;
    get_ = strip + address(line, unit);
    const int row = lane / 4, pair = lane % 4;
    put_ = strip + (kTransposed ? address(2 * pair, row / 4) + static_cast<uint32_t>(row % 4 * 4)
                                : address(row, pair / 2) + static_cast<uint32_t>(pair % 2 * 8));
  }

  /// Accumulators [16 part, 16 part + 16) of a thread, which are columns [32 part, 32 part + 32) of its warp.
  template <int kSize>
  __device__ void put(const float (&sums)[kSize], int part) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float first = sums[16 * part + 4 * j + 2 * i], second = sums[16 * part + 4 * j + 2 * i + 1];
        if constexpr (kTransposed) {
          const uint32_t to =
              (put_ ^ static_cast<uint32_t>((4 * (j / 2) + 2 * i) * 16)) + static_cast<uint32_t>(j % 2 * 1024);
          store(to, first);
          store(to ^ (128 + 16), second);
        } else {
          asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"((put_ ^ static_cast<uint32_t>(j * 32)) +
                                                                  static_cast<uint32_t>(i * 1024)),
                       "f"(first), "f"(second)
                       : "memory");
        }
      }
    }
  }

  __device__ float4 get(int i) const {
    const uint32_t from =
        (kTransposed ? get_ ^ static_cast<uint32_t>(i % 2 * 64) : get_) + static_cast<uint32_t>(i * 512);
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
  }

 private:
  __device__ static uint32_t address(int line, int unit) {
    return static_cast<uint32_t>(line * 128 + (unit ^ (kTransposed ? line % 8 : line % 4 * 2)) * 16);
  }
  __device__ static void store(uint32_t to, float value) {
    asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(to), "f"(value) : "memory");
  }

  uint32_t put_, get_;
};

/// Overwrites four consecutive elements of a gradient. They are not read soon, so they should not displace operands in
/// L2.
struct OverwriteWeights {
  __device__ void operator()(float* to, const float4& v) const {
    asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
  }
  __device__ void operator()(__nv_bfloat16* to, const float4& v) const {
    asm volatile("st.global.cs.v2.b32 [%0], {%1, %2};\n" ::"l"(to), "r"(pack_bf16(v.x, v.y)), "r"(pack_bf16(v.z, v.w))
                 : "memory");
  }
};

/// Adds to four elements. Each is added to once, so results do not depend on the order of threads, and no thread waits
/// for the old value.
struct AddToWeights {
  __device__ void operator()(float* to, const float4& v) const {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
  }
};

}  // namespace hone::cuda::sm90
