#include <immintrin.h>

#include "ops/gemm/tile_compute.h"

namespace hone {

namespace {
struct Avx512Native {
  typedef float F __attribute__((vector_size(64)));
  typedef uint32_t U __attribute__((vector_size(64)));
  typedef uint16_t Half __attribute__((vector_size(32)));

  static F broadcast(float x) { return _mm512_set1_ps(x); }
  static F multiply_add(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
};
constexpr int kPanelRows = 14, kPanelVectors = 2;  // 28 sums, 2 of B and 1 of A: 31 of 32 registers
}  // namespace

constinit const TileKernel kTileKernelAvx512{
    kPanelRows, kPanelVectors * 16, &TileComputer<Vector<Avx512Native, 16>, kPanelRows, kPanelVectors>::compute};

}  // namespace hone
