// Panels of bfloat16 tiles from packed matrices (formats/packed_weights.h). Included only by expert_tiles_amx.cpp.
//
// Codes of 4 bits are indices into a register of bfloat16 values, which holds the 16 values of the code times the scale
// of a block: values are multiplied and rounded once for a block, and an element costs a permutation. A vector of
// output then has one scale (rows of W as rows of a tile: blocks lie along rows) or two (pairs of rows as pairs of k),
// each in its half of the register. Tiles are the ones that unpacked weights would be packed to, bit for bit.
//
// Speed of one thread of an EPYC 9004 (AVX-512 in two passes), 2026-11-26, blocks of 128 x 512 that stay in level 2, in
// 1e9 elements a second, rows and columns: int4 18 and 16, int4_128 25 and 13, mxfp4 12 and 10, nf4 8 and 8, int8 17
// and 7, fp8 6 and 4; from memory (2,048 x 7,168) int4 15 and 12. The ceiling are permutations: two of a vector of 32
// elements, which take a cycle each on Intel. An expert's products of 64 rows at 5 TFLOP/s on 8 cores need 4.9 a core.
// Products of DeepSeek-V3's layer, forward and dX, 2,048 tokens, int4, sixteen virtual CPUs with AMX, 2026-11-26: 4.4
// TFLOP/s. The layer with LoRA took 764 ms there, 670 in int4_128; 477 and 448 without unpacking; 107 and 97 without
// products, too. Raw: bench/results/one-gpu-2026-11-26.txt.
// Lost: float32 products of each element, packed in pairs and permuted, by count of its operations (12 a vector on two
// ports, where these are 3 to 7); offsets of scales by division, 2 to 4 times slower; a strip of columns at a time, 1.4
// times slower in all; two strips, or blocks of 256 of k, no faster.
#pragma once

#include <immintrin.h>

#include "formats/packed_weights.h"
#include "kernels/cpu/gemm/amx_tiles.h"
#include "kernels/cpu/gemm/avx512_vector.h"

namespace hone::amx {
namespace {

/// Elements of a row that have one scale in every format, if they begin at a multiple of them.
constexpr int64_t kScaleRun = 32;

/// A row and a column of W.
struct PackedPlace {
  int64_t n, k;
};

/// The matrices of an expert's W [N, K] one after another, N and K multiples of 32.
class PackedPanels {
 public:
  PackedPanels(const PackedLayout& layout, const std::byte* chunks)
      : layout_(layout), chunks_(chunks), code_(layout.code), half_bytes_(2), runs_per_scale_(1) {
    const HalfCodes halves = half_codes(code_);
    if (halves.values != nullptr) {
      half_bytes_ = 1;
      values_ = _mm512_loadu_ps(halves.values);
    }
    upper_first_ = halves.upper_first;
    if (layout.columns % layout.block == 0) runs_per_scale_ = smaller(layout.block, kMostRuns * kScaleRun) / kScaleRun;
  }

  /// Packs rows [n, n + 16), columns [k, k + depth), as a panel whose rows are those of W: the left operand. depth and
  /// k are multiples of 32, and depth is at most 512. Prefetches the scales of the 16 rows at `next`.
  void pack_rows(const PackedPlace& at, int64_t depth, const PackedPlace& next, std::byte* panel) const {
    const int64_t k = at.k;
    const Row first = row(at.n);
    const char* ahead = scales_at(next);
    float scales[kMostRuns];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t in_matrix = first.row + lane;
      _mm_prefetch(ahead + lane * scale_row_bytes(), _MM_HINT_T1);
      read_scales_of(first.chunk, in_matrix, k, depth / kScaleRun, scales);
      const uint8_t* codes = codes_at(first.chunk, in_matrix, k);
      std::byte* to = panel + 64 * lane;
      half_bytes_ == 1 ? pack_row_of_halves(codes, scales, depth / kScaleRun, to)
                       : pack_row_of_bytes(codes, scales, depth / kScaleRun, to);
    }
  }

  /// Packs rows [n, n + depth), columns [k, k + 32 · runs), as 2 · runs panels whose lanes are columns of W: the right
  /// operand. All are multiples of 32.
  /// Prefetches the scales of as many rows at `next`.
  void pack_columns(const PackedPlace& at, int64_t depth, int64_t runs, const PackedPlace& next, int64_t panel_bytes,
                    std::byte* panels) const {
    const int64_t n = at.n, k = at.k;
    const char* ahead = scales_at(next);
    float scales[2][kMostRuns];
    const int64_t together = k / kScaleRun % runs_per_scale_ == 0 ? runs_per_scale_ : 1;
    for (int64_t i = 0; i < depth; i += kDepth, panels += kTileBytes) {
      const Row first = row(n + i);
      for (int64_t pair = 0; pair < kDepth; pair += 2) {
        const uint8_t* codes[2];
        for (int64_t j = 0; j < 2; ++j) {
          _mm_prefetch(ahead, _MM_HINT_T1);
          ahead += scale_row_bytes();
          read_scales_of(first.chunk, first.row + pair + j, k, runs, scales[j]);
          codes[j] = codes_at(first.chunk, first.row + pair + j, k);
        }
        std::byte* to = panels + pair / 2 * 64;
        half_bytes_ == 1 ? pack_pair_of_halves(codes, scales, runs, together, panel_bytes, to)
                         : pack_pair_of_bytes(codes, scales, runs, panel_bytes, to);
      }
    }
  }

  /// Bytes of `columns` columns of a row, and where those of row n begin at column k.
  int64_t code_bytes(int64_t columns) const { return columns * half_bytes_ / 2; }
  const char* codes_of(int64_t n, int64_t k) const {
    const Row at = row(n);
    return reinterpret_cast<const char*>(codes_at(at.chunk, at.row, k));
  }
  int64_t row_bytes() const { return code_bytes(layout_.columns); }

 private:
  static constexpr int64_t kMostRuns = 16;

  struct Row {
    const std::byte* chunk;
    int64_t row;  ///< in its matrix
  };
  Row row(int64_t n) const {
    const int64_t matrix = n / layout_.rows;
    return {chunks_ + matrix * layout_.bytes, n - matrix * layout_.rows};
  }
  /// The scales of a place, if rows have their own; else any address.
  const char* scales_at(const PackedPlace& at) const {
    const Row of = row(at.n);
    const int64_t bytes = of.row * scale_row_bytes() + (code_ == PackedCode::kInt4 ? 2 * (at.k / layout_.block) : 0);
    return reinterpret_cast<const char*>(of.chunk + layout_.scales + bytes);
  }
  int64_t scale_row_bytes() const { return code_ == PackedCode::kInt4 ? 2 * layout_.scale_columns : 0; }
  const uint8_t* codes_at(const std::byte* chunk, int64_t in_matrix, int64_t k) const {
    return reinterpret_cast<const uint8_t*>(chunk) + code_bytes(in_matrix * layout_.columns + k);
  }

  /// Scales of `runs` runs of a row from column k on.
  [[gnu::always_inline]] void read_scales_of(const std::byte* chunk, int64_t in_matrix, int64_t k, int64_t runs,
                                             float* scales) const {
    if (code_ != PackedCode::kInt4) {
      return read_scales(layout_, chunk, in_matrix, k, kScaleRun, runs, scales);
    }
    const auto* from = reinterpret_cast<const uint16_t*>(chunk + layout_.scales) + in_matrix * layout_.scale_columns;
    if (layout_.block == kScaleRun) {
      const __m256i bits = _mm256_maskz_loadu_epi16(first_lanes(runs), from + k / kScaleRun);
      return _mm512_storeu_ps(scales, Avx512Vector::widened(bits));
    }
    constexpr int64_t kBlock = 128, kRuns = kBlock / kScaleRun;
    const int64_t first = k / kBlock, count = (k + runs * kScaleRun - 1) / kBlock + 1 - first;
    const __m256i bits = _mm256_maskz_loadu_epi16(first_lanes(count), from + first);
    const __m512i run = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i skipped = _mm512_set1_epi32(static_cast<int>(k % kBlock / kScaleRun));
    static_assert(kRuns == 4);
    const __m512i index = _mm512_srli_epi32(_mm512_add_epi32(run, skipped), 2);
    _mm512_storeu_ps(scales, _mm512_maskz_permutexvar_ps(0xffff, index, Avx512Vector::widened(bits)));
  }

  /// 32 bfloat16: the values of all codes times one scale, then times another.
  [[gnu::always_inline]] __m512i scaled(float low, float high) const {
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(values_, _mm512_set1_ps(high)),
                                        _mm512_mul_ps(values_, _mm512_set1_ps(low)));
  }

  /// Runs of a row, 16 bytes of codes each, as rows of consecutive tiles.
  void pack_row_of_halves(const uint8_t* codes, const float* scales, int64_t runs, std::byte* to) const {
    // Each byte to two words, which are shifted to have their code in the lowest bits; a permutation reads five bits,
    // of which the fifth chooses among equal halves.
    const __m512i twice = _mm512_set_epi8(-1, 15, -1, 15, -1, 14, -1, 14, -1, 13, -1, 13, -1, 12, -1, 12,  //
                                          -1, 11, -1, 11, -1, 10, -1, 10, -1, 9, -1, 9, -1, 8, -1, 8,      //
                                          -1, 7, -1, 7, -1, 6, -1, 6, -1, 5, -1, 5, -1, 4, -1, 4,          //
                                          -1, 3, -1, 3, -1, 2, -1, 2, -1, 1, -1, 1, -1, 0, -1, 0);
    const __m512i shift = _mm512_set1_epi32(upper_first_ ? 0x00000004 : 0x00040000);
    for (int64_t run = 0; run < runs;) {
      const __m512i table = scaled(scales[run], scales[run]);
      for (const int64_t end = smaller(run + runs_per_scale_, runs); run < end; ++run, codes += 16, to += kTileBytes) {
        const __m512i bytes =
            _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
        const __m512i index = _mm512_srlv_epi16(_mm512_shuffle_epi8(bytes, twice), shift);
        _mm512_store_si512(to, _mm512_permutexvar_epi16(index, table));
      }
    }
  }

  /// Runs of two rows, of which some together have one scale, as a row of the tiles of two panels each: pairs of the
  /// rows' elements.
  void pack_pair_of_halves(const uint8_t* const (&codes)[2], const float (&scales)[2][kMostRuns], int64_t runs,
                           int64_t together, int64_t panel_bytes, std::byte* to) const {
    // A byte of each row to four words: first and second code, of either row.
    alignas(64) static constexpr struct Order {
      int8_t first[64] = {}, second[64] = {};
      constexpr Order() {
        for (int word = 0; word < 32; ++word) {
          first[2 * word] = static_cast<int8_t>(word / 4 + (word % 2 != 0 ? 16 : 0));
          second[2 * word] = static_cast<int8_t>(first[2 * word] + 8);
        }
      }
    } kOrder;
    const __m512i first = _mm512_load_si512(kOrder.first), second = _mm512_load_si512(kOrder.second);
    const __m512i shift = _mm512_set1_epi64(upper_first_ ? 0x0000000000040004 : 0x0004000400000000);
    const __m512i half = _mm512_set1_epi16(15), of_second_row = _mm512_set1_epi32(0x00100000);
    for (int64_t run = 0; run < runs;) {
      const __m512i table = scaled(scales[0][run], scales[1][run]);
      for (const int64_t end = smaller(run + together, runs); run < end; ++run, to += 2 * panel_bytes) {
        const __m256i rows = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes[0] + 16 * run))),
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes[1] + 16 * run)), 1);
        const auto pack_panel = [&](__m512i order, std::byte * panel) __attribute__((always_inline)) {
          const __m512i bytes = _mm512_permutexvar_epi8(order, _mm512_castsi256_si512(rows));
          // (x & half) | of_second_row
          const __m512i index = _mm512_ternarylogic_epi32(_mm512_srlv_epi16(bytes, shift), half, of_second_row, 0xea);
          _mm512_store_si512(panel, _mm512_permutexvar_epi16(index, table));
        };
        pack_panel(first, to);
        pack_panel(second, to + panel_bytes);
      }
    }
  }

  /// 16 codes of 8 bits as float32 times a scale.
  [[gnu::always_inline]] __m512 widened_bytes(const uint8_t* codes, float scale) const {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m512 factor = _mm512_set1_ps(scale);
    if (code_ == PackedCode::kInt8) {
      return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_maskz_cvtepi8_epi32(0xffff, bytes)), factor);
    }
    // e4m3, without subnormal float32 numbers, as in row_functions.h.
    const __m512i code = _mm512_maskz_cvtepu8_epi32(0xffff, bytes);
    const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7f));
    const __mmask16 subnormal = _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(8));
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
    const __m512i bias = _mm512_mask_mov_epi32(_mm512_set1_epi32(120 << 23), subnormal, _mm512_set1_epi32(121 << 23));
    const __m512 shifted = (__m512)_mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), bias);
    __m512 value = _mm512_mask_sub_ps(shifted, subnormal, shifted, _mm512_set1_ps(0x1p-6f));
    value =
        (__m512)_mm512_or_si512((__m512i)value, _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24));
    return _mm512_mul_ps(_mm512_mask_mov_ps(value, nan, _mm512_set1_ps(__builtin_nanf(""))), factor);
  }

  void pack_row_of_bytes(const uint8_t* codes, const float* scales, int64_t runs, std::byte* to) const {
    for (int64_t run = 0; run < runs; ++run, codes += kScaleRun, to += kTileBytes) {
      const __m512 low = widened_bytes(codes, scales[run]), high = widened_bytes(codes + 16, scales[run]);
      _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
  }

  void pack_pair_of_bytes(const uint8_t* const (&codes)[2], const float (&scales)[2][kMostRuns], int64_t runs,
                          int64_t panel_bytes, std::byte* to) const {
    for (int64_t panel = 0; panel < 2 * runs; ++panel, to += panel_bytes) {
      const __m512 low = widened_bytes(codes[0] + 16 * panel, scales[0][panel / 2]);
      const __m512 high = widened_bytes(codes[1] + 16 * panel, scales[1][panel / 2]);
      const __m512i low_words = _mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)_mm512_cvtneps_pbh(low));
      const __m512i high_words = _mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)_mm512_cvtneps_pbh(high));
      _mm512_store_si512(to, _mm512_or_si512(low_words, _mm512_slli_epi32(high_words, 16)));
    }
  }

  const PackedLayout& layout_;
  const std::byte* chunks_;
  PackedCode code_;
  int64_t half_bytes_;      ///< half bytes of a code
  int64_t runs_per_scale_;  ///< runs that have one scale, if they begin at a multiple of them
  bool upper_first_ = false;
  __m512 values_ = {};  ///< of codes of 4 bits
};

}  // namespace
}  // namespace hone::amx
