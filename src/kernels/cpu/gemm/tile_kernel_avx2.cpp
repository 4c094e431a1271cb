#include <immintrin.h>

#include "kernels/cpu/gemm/tile_compute.h"

namespace hone {

namespace {
struct Avx2Native {
  typedef float F __attribute__((vector_size(32)));
  typedef uint32_t U __attribute__((vector_size(32)));
  typedef uint16_t Half __attribute__((vector_size(16)));

  static F broadcast(float x) { return _mm256_set1_ps(x); }
  static F multiply_add(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static void stream(float* p, F v) { _mm256_stream_ps(p, v); }
  static void end_streams() { _mm_sfence(); }
};
constexpr int kPanelRows = 6, kPanelVectors = 2;  // 12 sums, 2 of B and 1 of A: 15 of 16 registers
}  // namespace

constinit const TileKernel kTileKernelAvx2{kPanelRows, kPanelVectors * 8,
                                           &TileComputer<Vector<Avx2Native, 8>, kPanelRows, kPanelVectors>::compute};

}  // namespace hone
