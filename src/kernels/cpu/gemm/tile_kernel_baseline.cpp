#include "kernels/cpu/gemm/tile_compute.h"

namespace hone {

namespace {
struct BaselineNative {
  typedef float F __attribute__((vector_size(16)));
  typedef uint32_t U __attribute__((vector_size(16)));
  typedef uint16_t Half __attribute__((vector_size(8)));

  static F broadcast(float x) { return F{x, x, x, x}; }
  static F multiply_add(F a, F b, F c) { return a * b + c; }
  static void stream(float* p, F v) { __builtin_memcpy(p, &v, sizeof(v)); }  // limited by arithmetic, not by memory
  static void end_streams() {}
};
constexpr int kPanelRows = 4, kPanelVectors = 2;  // 8 sums, 2 of B, 1 of A and 1 product: 12 of 16 registers
}  // namespace

constinit const TileKernel kTileKernelBaseline{
    kPanelRows, kPanelVectors * 4, &TileComputer<Vector<BaselineNative, 4>, kPanelRows, kPanelVectors>::compute};

}  // namespace hone
