// Wrappers of PTX instructions of sm_80 and later, with the names and fragment layouts of the PTX manual. Those of
// sm_90 are in kernels/cuda/sm90.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace hone::cuda {

#ifdef __CUDACC__

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Returns x as an opaque value for the compiler, so that values computed from it are not kept in registers across the
/// iterations of a loop.
__device__ inline int recomputed(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// Packs two bfloat16, the first in the low half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ inline float2 unpack_bf16(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

/// Transposes among four adjacent lanes: lane t holds pairs 4 i + t of a row in packed[i], and afterwards pairs 4 t to
/// 4 t + 3, which are 16 bytes. Its own inverse.
__device__ inline void transpose_quad(uint32_t (&packed)[4]) {
  const auto exchange = [](uint32_t& low, uint32_t& high, uint32_t bit) {
    const bool upper = (threadIdx.x & bit) != 0;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? low : high, bit);
    (upper ? low : high) = other;
  };
  exchange(packed[0], packed[1], 1);
  exchange(packed[2], packed[3], 1);
  exchange(packed[0], packed[2], 2);
  exchange(packed[1], packed[3], 2);
}

/// 2^x; results below 2^-126 become 0.
__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// -- Matrix products of one warp: d += a b, bfloat16 operands, float32 accumulators.

/// a [16, 16] row-major, b [16, 8] column-major.
__device__ inline void mma_m16n8k16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_m16n8k16(d, a[0], a[1], a[2], a[3], b0, b1);
}
/// a [16, 8] row-major, b [8, 8] column-major.
__device__ inline void mma_m16n8k8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// -- Four 8 x 8 matrices of 16-bit elements from shared memory to registers. Lane 8 i + j gives the address of row j of
// matrix i (16 bytes); lane l gets columns 2 (l % 4) and the next of row l / 4 (transposed: of column l / 4).

__device__ inline void ldmatrix_x4(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}

__device__ inline void shared_store_32(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(address), "r"(value) : "memory");
}

// -- A flag in global memory with which CTAs publish their writes.

__device__ inline int load_relaxed(const int* address) {
  int value;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];\n" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline int load_acquire(const int* address) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];\n" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline void store_release(int* address, int value) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;\n" ::"l"(address), "r"(value) : "memory");
}

// -- Asynchronous copies of 16 bytes from global to shared memory by one thread.

__device__ inline void cp_async_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from) : "memory");
}
/// Writes zeros if !valid; `from` must be a legal address in either case.
__device__ inline void cp_async_16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until at most kPending groups of this thread's copies are in flight; copies of other threads also need a
/// barrier.
template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// -- Barriers (mbarrier). `barrier` is the shared-memory address of 8 bytes; phases have alternating parity 0 and 1.

__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
/// Waits for the end of the phase with this parity, by testing (sm_90 has barrier_wait, which suspends the thread). A
/// new barrier behaves as if a phase of parity 1 had ended.
__device__ inline void barrier_poll(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}
/// Arrives at a barrier once all earlier cp_async_16 copies of this thread are complete.
__device__ inline void barrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

/// A stage of a ring of barriers, and the parity of its phase.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t phase = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  __device__ void skip(int steps) {
    const int sum = stage + steps;
    phase ^= static_cast<uint32_t>(sum / kStages) & 1;
    stage = sum % kStages;
  }
};

#endif  // __CUDACC__

}  // namespace hone::cuda
