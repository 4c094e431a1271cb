// Wrappers for feeding Hopper's tensor cores: mbarriers, tile copies by the tensor memory accelerator (TMA), clusters,
// and register counts of warpgroups. Included by *_cuda.cu only.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/base/tensor.h"
#include "kernels/cuda/ptx_cuda.h"

namespace hone::cuda::sm90 {

// -- Host: tensor maps for TMA

/// Boxes of a bfloat16 tensor for TMA copies to shared memory. `sizes` are its three dimensions, the contiguous one
/// first; `strides` those of the other two, in elements, multiples of 8. A box has 64 elements of the first dimension
/// (128 bytes, swizzled) and box[i] of dimension i + 1. Elements of a box outside of the sizes are zero.
CUtensorMap tensor_map(const Tensor& tensor, const std::array<int64_t, 3>& sizes, const std::array<int64_t, 2>& strides,
                       const std::array<int, 2>& box);

/// The boxes of 64 columns by `box_rows` rows of one matrix of [matrices, rows, columns]; columns is a multiple of 8.
inline CUtensorMap matrix_map(const Tensor& tensor, int64_t matrices, int64_t rows, int64_t columns, int box_rows) {
  return tensor_map(tensor, {columns, rows, matrices}, {columns, std::max<int64_t>(rows, 1) * columns}, {box_rows, 1});
}

#ifdef __CUDACC__

// -- Barriers (mbarrier): what sm_80 lacks of those in kernels/cuda/ptx_cuda.h.

/// Called after the last barrier_init by the same thread; a barrier of the cluster must follow.
__device__ inline void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }

/// Arrives at the barrier at the same address in CTA `rank` of the cluster.
__device__ inline void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
/// Arrives, and adds bytes that must be received before the phase ends.
__device__ inline void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Waits for the end of the phase with this parity. A new barrier behaves as if a phase of parity 1 had ended.
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}

// -- Copies of boxes. Coordinates follow the sizes of the map: column, row, matrix for a matrix_map.

__device__ inline void copy_box(const CUtensorMap& map, int column, int row, int matrix, uint32_t to,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];\n" ::
          "r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(column), "r"(row), "r"(matrix)
      : "memory");
}
/// Copies to the same shared-memory address, with the same barrier address, in every CTA of the cluster whose bit is
/// set in `blocks`.
__device__ inline void copy_box_to_cluster(const CUtensorMap& map, int column, int row, int matrix, uint32_t to,
                                           uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;\n" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(column), "r"(row), "r"(matrix), "h"(blocks)
      : "memory");
}

/// Copies `bytes` bytes; size and both addresses are multiples of 16.
__device__ inline void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

/// Copies from this CTA's shared memory to the same address in CTA `rank` of the cluster, with that CTA's barrier.
__device__ inline void copy_to_cta(uint32_t address, uint32_t bytes, uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 to, remote;\n"
      "mapa.shared::cluster.u32 to, %0, %3;\n"
      "mapa.shared::cluster.u32 remote, %2, %3;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %1, [remote];\n"
      "}\n" ::"r"(address),
      "r"(bytes), "r"(barrier), "r"(rank)
      : "memory");
}
/// Stores four bytes at this address in CTA `rank` of the cluster, which its barrier counts as received.
__device__ inline void store_at(uint32_t address, int value, uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 to, remote;\n"
      "mapa.shared::cluster.u32 to, %0, %3;\n"
      "mapa.shared::cluster.u32 remote, %2, %3;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [to], %1, [remote];\n"
      "}\n" ::"r"(address),
      "r"(value), "r"(barrier), "r"(rank)
      : "memory");
}

/// Needed between ordinary writes (and cp.async) to shared memory and their reads by wgmma or TMA: in the writing
/// thread, or in the reading one after a barrier.
__device__ inline void fence_for_async_reads() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// -- Clusters, warpgroups

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
/// Called by all threads of all CTAs of the cluster.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}
/// A barrier of `threads` threads of the CTA; id 1..15.
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
/// Arrives at a barrier of `threads` threads in total without waiting.
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

/// True in one thread of a fully active warp, known to the compiler as a single thread. If a thread is chosen by its
/// index instead, the compiler puts each of its copies into a loop over lanes, which takes longer than the MMAs of a
/// stage.
__device__ inline bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

/// Sets the registers per thread of this warpgroup; a multiple of 8.
template <int kRegisters>
__device__ inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

/// Stores four 8 x 8 matrices from registers to shared memory: the converse of ldmatrix_x4.
__device__ inline void stmatrix_x4(uint32_t address, const uint32_t (&registers)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(registers[0]),
               "r"(registers[1]), "r"(registers[2]), "r"(registers[3])
               : "memory");
}

#endif  // __CUDACC__

}  // namespace hone::cuda::sm90
