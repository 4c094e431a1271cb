#include "kernels/cpu/gemm/avx512_vector.h"
#include "kernels/cpu/gemm/tile_compute.h"

namespace hone {

namespace {
constexpr int kPanelRows = 14, kPanelVectors = 2;  // 28 sums, 2 of B and 1 of A: 31 of 32 registers
}  // namespace

constinit const TileKernel kTileKernelAvx512{kPanelRows, kPanelVectors * 16,
                                             &TileComputer<Avx512Vector, kPanelRows, kPanelVectors>::compute};

}  // namespace hone
