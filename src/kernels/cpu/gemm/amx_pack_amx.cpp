// Packs AMX operands into tiles: gathers, transposes and rounds float32 to bfloat16 meanwhile. Reading a weight that is
// used few times costs more than multiplying it, so amx_blocks.h has a cost in cycles for each method.
#include <immintrin.h>

#include "kernels/cpu/gemm/amx_tiles.h"
#include "kernels/cpu/gemm/avx512_vector.h"

namespace hone::amx {

namespace {

using Vec = Avx512Vector;
using U = Vec::U;

constexpr uint32_t low_bits(int64_t count) {
  return count >= 32 ? ~uint32_t{0} : (uint32_t{1} << (count > 0 ? count : 0)) - 1;
}

/// The first `count` <= 32 consecutive elements as bfloat16, padded with zeros.
U load_32(const uint16_t* p, int64_t count) {
  if (count >= kDepth) return (U)_mm512_loadu_si512(p);
  return (U)_mm512_maskz_loadu_epi16(low_bits(count), p);
}
U load_32(const float* p, int64_t count) {
  const __mmask16 low = static_cast<__mmask16>(low_bits(count)), high = static_cast<__mmask16>(low_bits(count - 16));
  return (U)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, p + 16), _mm512_maskz_loadu_ps(low, p));
}

/// Byte indices of interleave(): words of the lower and the upper half alternate.
struct InterleaveIndex {
  alignas(64) uint8_t byte[64];
  constexpr InterleaveIndex() : byte{} {
    for (int word = 0; word < 32; ++word) {
      const int from = word / 2 + (word % 2 == 0 ? 0 : 16);
      byte[2 * word] = static_cast<uint8_t>(2 * from);
      byte[2 * word + 1] = static_cast<uint8_t>(2 * from + 1);
    }
  }
};
constexpr InterleaveIndex kInterleave;

U interleave(__m512i halves) {
  // Masked with ones: g++ 12 warns that the plain intrinsic reads an uninitialised value (GCC bug 105593).
  return (U)_mm512_maskz_permutexvar_epi8(~__mmask64{0}, _mm512_load_si512(kInterleave.byte), halves);
}

/// Pairs of k of `lanes` <= 16 consecutive lanes: from p (null: zeros) and q.
U load_pairs(const uint16_t* p, const uint16_t* q, int64_t lanes) {
  const __mmask16 mask = static_cast<__mmask16>(low_bits(lanes));
  const __m256i low = p ? _mm256_maskz_loadu_epi16(mask, p) : _mm256_setzero_si256();
  const __m256i high = q ? _mm256_maskz_loadu_epi16(mask, q) : _mm256_setzero_si256();
  return interleave((__m512i)__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7));
}
U load_pairs(const float* p, const float* q, int64_t lanes) {
  const __mmask16 mask = static_cast<__mmask16>(low_bits(lanes));
  const __m512 low = p ? _mm512_maskz_loadu_ps(mask, p) : _mm512_setzero_ps();
  const __m512 high = q ? _mm512_maskz_loadu_ps(mask, q) : _mm512_setzero_ps();
  return interleave((__m512i)_mm512_cvtne2ps_pbh(high, low));
}

void store_tile(U (&rows)[kLanes], bool transposed, std::byte* tile) {
  if (transposed) Vec::transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) _mm512_store_si512(tile + i * 64, (__m512i)rows[i]);
}

/// A part of an operand, and the destination of its panels.
struct Part {
  int64_t lane, lanes, k, depth;
  std::byte* panels;

  int64_t panel_count() const { return panels_of(lanes); }
  int64_t steps() const { return steps_of(depth); }
  int64_t panel_lanes(int64_t panel) const { return smaller(kLanes, lanes - panel * kLanes); }
  std::byte* tile(int64_t panel, int64_t step) const { return panels + (panel * steps() + step) * kTileBytes; }
};

/// Packs contiguous k: a vector has 32 k of a lane.
template <class T>
void pack_along_depth(const T* data, const Operand& o, TileOrder order, const Part& part) {
  for (int64_t panel = 0; panel < part.panel_count(); ++panel) {
    const void* lanes[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
      const int64_t lane = part.lane + panel * kLanes + smaller(i, part.panel_lanes(panel) - 1);
      lanes[i] = data + (o.lane_index ? o.lane_index[lane] : lane) * o.lane_stride + part.k;
    }
    const auto load = [&](int i, int64_t step, int64_t depth) {
      return load_32(static_cast<const T*>(lanes[i]) + step * kDepth, depth);
    };
    for (int64_t step = 0; step < part.steps(); ++step) {
      const int64_t depth = smaller(kDepth, part.depth - step * kDepth);
      U rows[kLanes];
      bool transposed = order == TileOrder::kByPair;
      if (depth == kDepth && sizeof(T) == 2 && transposed) {
        // A pair of k has 32 bits; 16 x 16 pairs are transposed while they are loaded.
        Vec::load_transposed(lanes, step * kDepth * 2, rows);
        transposed = false;
      } else if (depth == kDepth) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) rows[i] = load(i, step, kDepth);
      } else {
        for (int i = 0; i < kLanes; ++i) rows[i] = load(i, step, depth);
      }
      store_tile(rows, transposed, part.tile(panel, step));
    }
  }
}

/// Packs contiguous lanes: a vector has a pair of k of 16 lanes.
template <class T>
void pack_along_lanes(const T* data, const Operand& o, TileOrder order, const Part& part) {
  for (int64_t step = 0; step < part.steps(); ++step) {
    const T* at[kDepth];
    for (int64_t i = 0; i < kDepth; ++i) {
      const int64_t k = step * kDepth + i;
      const int64_t row = part.k + k;
      at[i] = k < part.depth ? data + (o.depth_index ? o.depth_index[row] : row) * o.depth_stride + part.lane : nullptr;
    }
    const bool whole = (step + 1) * kDepth <= part.depth;
    for (int64_t panel = 0; panel < part.panel_count(); ++panel) {
      const int64_t lanes = part.panel_lanes(panel), first = panel * kLanes;
      U rows[kLanes];
      if (whole && lanes == kLanes) {
#pragma GCC unroll 16
        for (int j = 0; j < kLanes; ++j) rows[j] = load_pairs(at[2 * j] + first, at[2 * j + 1] + first, kLanes);
      } else {
        for (int j = 0; j < kLanes; ++j) {
          const T *p = at[2 * j], *q = at[2 * j + 1];
          rows[j] = load_pairs(p ? p + first : p, q ? q + first : q, lanes);
        }
      }
      store_tile(rows, order == TileOrder::kByLane, part.tile(panel, step));
    }
  }
}

/// Packs any strides and indices, element by element.
template <class T>
void pack_elements(const T* data, const Operand& o, TileOrder order, const Part& part) {
  for (int64_t panel = 0; panel < part.panel_count(); ++panel) {
    for (int64_t step = 0; step < part.steps(); ++step) {
      T elements[kLanes][kDepth] = {};
      const int64_t depth = smaller(kDepth, part.depth - step * kDepth);
      for (int64_t i = 0; i < part.panel_lanes(panel); ++i) {
        const int64_t lane = part.lane + panel * kLanes + i;
        const T* from = data + (o.lane_index ? o.lane_index[lane] : lane) * o.lane_stride;
        for (int64_t j = 0; j < depth; ++j) {
          const int64_t k = part.k + step * kDepth + j;
          elements[i][j] = from[(o.depth_index ? o.depth_index[k] : k) * o.depth_stride];
        }
      }
      U rows[kLanes];
      for (int i = 0; i < kLanes; ++i) rows[i] = load_32(elements[i], kDepth);
      store_tile(rows, order == TileOrder::kByPair, part.tile(panel, step));
    }
  }
}

template <class T>
void pack_as(const Operand& o, TileOrder order, const Part& part) {
  const T* data = static_cast<const T*>(o.data);
  if (depth_is_contiguous(o)) {
    pack_along_depth(data, o, order, part);
  } else if (lanes_are_contiguous(o)) {
    pack_along_lanes(data, o, order, part);
  } else {
    pack_elements(data, o, order, part);
  }
}

}  // namespace

void pack(const Operand& operand, TileOrder order, int64_t lane, int64_t lanes, int64_t k, int64_t depth,
          std::byte* panels) {
  const Part part{lane, lanes, k, depth, panels};
  if (operand.dtype == DType::kBF16) {
    pack_as<uint16_t>(operand, order, part);
  } else {
    pack_as<float>(operand, order, part);
  }
}

}  // namespace hone::amx
