// The product tile of tier sm80: a CTA computes 128 x 256 elements of C with 8 warps, 64 x 64 each, from a ring of
// shared-memory stages that its threads fill by cp.async. Included by *_cuda.cu only.
//
// A warp tile of 64 x 64 loads 4 KB of fragments for 32 MMAs: the least shared-memory traffic that registers allow (128
// accumulators, and two sets of 32 fragment registers, so that one is loaded while the other is multiplied). Registers
// (ptxas 13.0): 252 to 255 of 255; at most 40 bytes are spilled (the gated activation's gradient on 8.0). To save
// registers, copy addresses are recomputed in each step (recomputed()), and a stage's copies are spread over its steps
// of 16. Stages of 64 of k, of which three fit in 144 KB, spilled 170 to 300 bytes on 8.0 and were dropped. Ceiling on
// an H200: for 16 of k a CTA reads 32 KB of fragments and writes 12 KB of copies, 352 clocks of shared memory against
// some 410 of MMAs (mma.sync reaches about 62 % of wgmma's rate).
//
// Measured on one H200 limited to this tier, 2026-11-23, 128 experts of 2048 x 768, 16,384 tokens, top-8, TFLOP/s: gate
// and up 270, down 286, dx 307, activation's gradient 228, dw 223; a layer forward and backward 262, with LoRA r16 on a
// frozen base 241 (sm90: 495 and 409). Raw: bench/results/sm80-kernels-2026-11-23.txt.
//
// Loads run kStages - 1 steps ahead, across the tiles of a persistent CTA, so that the first stages of a tile arrive
// during the epilogue of the previous one.
#pragma once

#include "kernels/cuda/sm80/operand_cuda.h"

namespace hone::cuda::sm80 {

constexpr int kProductThreads = 256;
constexpr int kTileRows = 128, kTileColumns = 256;
constexpr int kWarpRows = 64, kWarpColumns = 64, kWarpsAcross = kTileColumns / kWarpColumns;

/// kDepth of k per stage, and kStages stages; with_product_shape chooses by the device's shared memory.
template <int kDepthOfStage, int kStageCount>
struct ProductShape {
  static constexpr int kDepth = kDepthOfStage, kStages = kStageCount;
  static constexpr int kABytes = kTileRows * kDepth * 2, kStageBytes = kABytes + kTileColumns * kDepth * 2;
  static constexpr int kBytes = kStages * kStageBytes;
  static constexpr int kParts = kDepth / 16;  // a stage is loaded in parts, one during each 16 of k
};

/// Calls f with the shape for a device with this shared memory per CTA, of which `extra` bytes are used otherwise.
template <class F>
decltype(auto) with_product_shape(size_t shared_memory, size_t extra, F&& f) {
  using Large = ProductShape<32, 6>;  // 144 KB: 8.0, 9.0, 10.0
  using Small = ProductShape<32, 4>;  // 96 KB: 8.6, 8.9, 12.0
  if (Large::kBytes + extra <= shared_memory) return f(Large{});
  return f(Small{});
}

/// Position of a warp's part of the tile among 2 x 4 warps.
__device__ inline int warp_row() { return static_cast<int>(threadIdx.x) / 32 / kWarpsAcross * kWarpRows; }
__device__ inline int warp_across() { return static_cast<int>(threadIdx.x) / 32 % kWarpsAcross; }

using WarpSums = Accumulators<kWarpRows / 16, kWarpColumns / 8>;

template <class Shape, bool kMnMajor>
using OperandA =
    std::conditional_t<kMnMajor, SharedLines<Shape::kDepth, kTileRows>, SharedLines<kTileRows, Shape::kDepth>>;
template <class Shape, bool kMnMajor>
using OperandB =
    std::conditional_t<kMnMajor, SharedLines<Shape::kDepth, kTileColumns>, SharedLines<kTileColumns, Shape::kDepth>>;

/// The ring of stages: A, then B. A loader's load(stage, part) issues this thread's copies of a part of the next step,
/// if there is one.
template <class Shape>
class StageRing {
 public:
  __device__ explicit StageRing(const void* memory) : begin_(shared_address(memory)) {}

  template <class Loader>
  __device__ void fill(Loader& loader) {
    for (int i = 0; i < Shape::kStages - 1; ++i) {
#pragma unroll
      for (int part = 0; part < Shape::kParts; ++part) load(loader, part);
    }
  }
  template <class Loader>
  __device__ void load(Loader& loader, int part) {
    loader.load(begin_ + write_, part);
    if (part + 1 < Shape::kParts) return;
    cp_async_commit();
    write_ = next(write_);
  }
  /// Waits until the next step has arrived and all threads have read the previous one, whose stage is then free.
  __device__ void arrive() const {
    cp_async_wait<Shape::kStages - 2>();
    __syncthreads();
  }
  __device__ void advance() { read_ = next(read_); }
  __device__ uint32_t begin() const { return begin_; }
  /// Offset of the stage to be read from begin().
  __device__ uint32_t read_offset() const { return read_; }

 private:
  __device__ static uint32_t next(uint32_t offset) {
    return offset == (Shape::kStages - 1) * Shape::kStageBytes ? 0 : offset + Shape::kStageBytes;
  }

  uint32_t begin_, read_ = 0, write_ = 0;
};

/// d += the product of the next `steps` stages.
template <class Shape, bool kAMnMajor, bool kBMnMajor, class Loader>
__device__ inline void add_product(WarpSums& d, StageRing<Shape>& ring, int steps, Loader& loader) {
  using A = OperandA<Shape, kAMnMajor>;
  using B = OperandB<Shape, kBMnMajor>;
  const FragmentReader<A, kAMnMajor, true> read_a({ring.begin()}, warp_row());
  const FragmentReader<B, kBMnMajor, false> read_b({ring.begin() + Shape::kABytes}, warp_across() * kWarpColumns);
  Fragment a[2][kWarpRows / 16], b[2][kWarpColumns / 16];
  const auto read = [&](int buffer, int k16) {
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i) read_a.read(a[buffer][i], i, k16, ring.read_offset());
#pragma unroll
    for (int j = 0; j < kWarpColumns / 16; ++j) read_b.read(b[buffer][j], j, k16, ring.read_offset());
  };
  if (steps == 0) return;
  ring.arrive();
  read(0, 0);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int k16 = 0; k16 < Shape::kParts; ++k16) {
      ring.load(loader, k16);
      if (k16 + 1 < Shape::kParts) {
        read((k16 + 1) % 2, k16 + 1);
      } else {
        ring.advance();
        if (step + 1 < steps) {
          ring.arrive();
          read(0, 0);
        }
      }
      multiply(d, a[k16 % 2], b[k16 % 2]);
    }
  }
}

}  // namespace hone::cuda::sm80
