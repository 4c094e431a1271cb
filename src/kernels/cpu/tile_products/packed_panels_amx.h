// Panels of bfloat16 tiles from packed matrices (formats/packed_weights.h). Included only by expert_tiles_amx.cpp.
//
// Codes of 4 bits are indices into a register of bfloat16 values, which holds the 16 values of the code times the scale
// of a block: values are multiplied and rounded once for a block, and an element costs a permutation. A vector of
// output then has one scale (rows of W as rows of a tile: blocks lie along rows) or two (pairs of rows as pairs of k),
// each in its half of the register. Tiles are the ones that unpacked weights would be packed to, bit for bit.
//
// Speed of each of sixteen threads on eight cores with AMX, 2026-11-26, blocks of 128 x 512 that stay in level 2, in
// 1e9 elements a second, rows and columns: int4 11 and 9 (8 and 7 with masks and offsets computed for each row),
// int4_128 9 and 9, mxfp4 4 and 4, nf4 5 and 4. The ceiling is two permutations for 32 elements, a cycle each. An
// expert's products of 64 rows at 5 TFLOP/s need 2.4 a thread. Products of DeepSeek-V3's layer, forward and dX, 2,048
// tokens, int4: 3.6 and 4.0 TFLOP/s in two turns (3.4 and 3.9 before; 4.4 before on another host, where the layer with
// LoRA took 764 ms, 477 of them without unpacking). Memory is not the limit: with codes from caches and no prefetches
// the layer takes 0.85 to 0.94 of its time. Raw: bench/results/one-gpu-2026-11-26.txt. Lost: float32 products of each
// element, packed in pairs and permuted, by count of its operations (12 a vector on two ports, where these are 3 to 7);
// offsets of scales by division, 2 to 4 times slower; a strip of columns at a time, 1.4 times slower in all; two
// strips, or blocks of 256 of k, no faster; unpacking 64 to 512 of k of one to four strips to buffers of level 1,
// before their products or between tile products of the ones before, 1.0 to 1.7 times the time.
#pragma once

#include <immintrin.h>

#include <type_traits>

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
    const Row first = row(at.n);
    const char* ahead = scales_at(next);
    const uint8_t* codes = codes_at(first.chunk, first.row, at.k);
    const int64_t runs = depth / kScaleRun, row_stride = row_bytes();
    const ScaleReader read_scales(*this, first, at.k, runs);
    const HalfCodeVectors vectors(*this);
    with_scales_together(
        at.k, [&](auto together) __attribute__((always_inline)) {
          float scales[kMostRuns];
          for (int64_t lane = 0; lane < kLanes; ++lane, codes += row_stride, ahead += scale_row_bytes()) {
            _mm_prefetch(ahead, _MM_HINT_T1);
            read_scales(lane, scales);
            std::byte* to = panel + 64 * lane;
            half_bytes_ == 1 ? pack_row_of_halves<together()>(vectors, codes, scales, runs, to)
                             : pack_row_of_bytes(codes, scales, runs, to);
          }
        });
  }

  /// Packs rows [n, n + depth), columns [k, k + 32 · runs), as 2 · runs panels whose lanes are columns of W: the right
  /// operand. All are multiples of 32.
  /// Prefetches the scales of as many rows at `next`.
  void pack_columns(const PackedPlace& at, int64_t depth, int64_t runs, const PackedPlace& next, int64_t panel_bytes,
                    std::byte* panels) const {
    const char* ahead = scales_at(next);
    const int64_t row_stride = row_bytes();
    const HalfCodeVectors vectors(*this);
    with_scales_together(
        at.k, [&](auto together) __attribute__((always_inline)) {
          float scales[2][kMostRuns];
          for (int64_t i = 0; i < depth; i += kDepth) {
            const Row first = row(at.n + i);
            const ScaleReader read_scales(*this, first, at.k, runs);
            const uint8_t* codes = codes_at(first.chunk, first.row, at.k);
            std::byte* to = panels + i / kDepth * kTileBytes;
            for (int64_t pair = 0; pair < kDepth; pair += 2, codes += 2 * row_stride, to += 64) {
              _mm_prefetch(ahead, _MM_HINT_T1);
              _mm_prefetch(ahead + scale_row_bytes(), _MM_HINT_T1);
              ahead += 2 * scale_row_bytes();
              read_scales(pair, scales[0]);
              read_scales(pair + 1, scales[1]);
              half_bytes_ == 1
                  ? pack_pair_of_halves<together()>(vectors, codes, codes + row_stride, scales, runs, panel_bytes, to)
                  : pack_pair_of_bytes(codes, codes + row_stride, scales, runs, panel_bytes, to);
            }
          }
        });
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

  /// Reads the scales of `runs` runs of a row from column k on, of rows from `first` on. What does not depend on the
  /// row is computed once.
  class ScaleReader {
   public:
    ScaleReader(const PackedPanels& panels, const Row& first, int64_t k, int64_t runs)
        : layout_(panels.layout_), first_(first), k_(k), runs_(runs), plain_(panels.code_ != PackedCode::kInt4) {
      if (plain_) return;
      constexpr int64_t kLargeBlock = 128, kLargeRuns = kLargeBlock / kScaleRun;
      static_assert(kLargeRuns == 4);
      const int64_t block = k / layout_.block, end = (k + runs * kScaleRun - 1) / layout_.block + 1;
      bits_ =
          reinterpret_cast<const uint16_t*>(first.chunk + layout_.scales) + first.row * layout_.scale_columns + block;
      mask_ = first_lanes(end - block);
      const __m512i run = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      const __m512i skipped = _mm512_set1_epi32(static_cast<int>(k % kLargeBlock / kScaleRun));
      blocks_ = layout_.block == kScaleRun ? run : _mm512_srli_epi32(_mm512_add_epi32(run, skipped), 2);
    }
    [[gnu::always_inline]] void operator()(int64_t row, float* scales) const {
      if (plain_) return read_scales(layout_, first_.chunk, first_.row + row, k_, kScaleRun, runs_, scales);
      const __m256i bits = _mm256_maskz_loadu_epi16(mask_, bits_ + row * layout_.scale_columns);
      _mm512_storeu_ps(scales, _mm512_maskz_permutexvar_ps(0xffff, blocks_, Avx512Vector::widened(bits)));
    }

   private:
    const PackedLayout& layout_;
    const Row first_;
    const int64_t k_, runs_;
    const bool plain_;  ///< by read_scales(), for formats other than int4
    const uint16_t* bits_ = nullptr;
    __mmask16 mask_ = 0;
    __m512i blocks_ = {};  ///< the blocks of runs, from the first one's on
  };

  /// Calls f with a constant: how many consecutive runs have one scale, of runs from column k on.
  template <class F>
  void with_scales_together(int64_t k, const F& f) const {
    const bool aligned = k / kScaleRun % runs_per_scale_ == 0;
    if (aligned && runs_per_scale_ % 4 == 0) return f(std::integral_constant<int, 4>());
    if (aligned && runs_per_scale_ == 2) return f(std::integral_constant<int, 2>());
    f(std::integral_constant<int, 1>());
  }

  /// Vectors that turn codes of 4 bits into values, in registers.
  struct HalfCodeVectors {
    explicit HalfCodeVectors(const PackedPanels& panels)
        : values(panels.values_),
          row_shift(_mm512_set1_epi32(panels.upper_first_ ? 0x00000004 : 0x00040000)),
          pair_shift(_mm512_set1_epi64(panels.upper_first_ ? 0x0000000000040004 : 0x0004000400000000)) {}

    /// 32 bfloat16: the values of all codes times one scale, then times another.
    [[gnu::always_inline]] __m512i scaled(float low, float high) const {
      return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(values, _mm512_set1_ps(high)),
                                          _mm512_mul_ps(values, _mm512_set1_ps(low)));
    }

    const __m512 values;
    const __m512i row_shift, pair_shift;  ///< bits of each word, of a row and of a pair of rows
  };

  /// Calls pack(table, run) for each run, with the values of all codes times its scales. Together runs have one table.
  template <int Together, class Pack>
  [[gnu::always_inline]] static void for_runs(const HalfCodeVectors& vectors, const float* low, const float* high,
                                              int64_t runs, const Pack& pack) {
    int64_t run = 0;
    for (; run + 4 <= runs; run += 4) {
      __m512i table = {};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        if (i % Together == 0) table = vectors.scaled(low[run + i], high[run + i]);
        pack(table, run + i);
      }
    }
    for (; run < runs; ++run) pack(vectors.scaled(low[run], high[run]), run);
  }

  /// Runs of a row, 16 bytes of codes each, of which Together have one scale, as rows of consecutive tiles.
  template <int Together>
  [[gnu::always_inline]] static void pack_row_of_halves(const HalfCodeVectors& vectors, const uint8_t* codes,
                                                        const float* scales, int64_t runs, std::byte* to) {
    // Each byte to two words, which are shifted to have their code in the lowest bits; a permutation reads five bits,
    // of which the fifth chooses among equal halves.
    const __m512i twice = _mm512_set_epi8(-1, 15, -1, 15, -1, 14, -1, 14, -1, 13, -1, 13, -1, 12, -1, 12,  //
                                          -1, 11, -1, 11, -1, 10, -1, 10, -1, 9, -1, 9, -1, 8, -1, 8,      //
                                          -1, 7, -1, 7, -1, 6, -1, 6, -1, 5, -1, 5, -1, 4, -1, 4,          //
                                          -1, 3, -1, 3, -1, 2, -1, 2, -1, 1, -1, 1, -1, 0, -1, 0);
    const auto pack = [&](__m512i table, int64_t run) __attribute__((always_inline)) {
      const auto* from = reinterpret_cast<const __m128i*>(codes) + run;
      const __m512i bytes = _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(from));
      const __m512i index = _mm512_srlv_epi16(_mm512_shuffle_epi8(bytes, twice), vectors.row_shift);
      _mm512_store_si512(to + run * kTileBytes, _mm512_permutexvar_epi16(index, table));
    };
    for_runs<Together>(vectors, scales, scales, runs, pack);
  }

  /// Runs of two rows, of which Together have one scale, as a row of the tiles of two panels each: pairs of the rows'
  /// elements.
  template <int Together>
  [[gnu::always_inline]] static void pack_pair_of_halves(const HalfCodeVectors& vectors, const uint8_t* codes,
                                                         const uint8_t* second_codes,
                                                         const float (&scales)[2][kMostRuns], int64_t runs,
                                                         int64_t panel_bytes, std::byte* to) {
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
    const __m512i half = _mm512_set1_epi16(15), of_second_row = _mm512_set1_epi32(0x00100000);
    const auto pack = [&](__m512i table, int64_t run) __attribute__((always_inline)) {
      const __m256i rows = _mm256_inserti128_si256(
          _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes) + run)),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(second_codes) + run), 1);
      const auto pack_panel = [&](__m512i bytes_of, std::byte * panel) __attribute__((always_inline)) {
        const __m512i bytes = _mm512_permutexvar_epi8(bytes_of, _mm512_castsi256_si512(rows));
        // (x & half) | of_second_row
        const __m512i index =
            _mm512_ternarylogic_epi32(_mm512_srlv_epi16(bytes, vectors.pair_shift), half, of_second_row, 0xea);
        _mm512_store_si512(panel, _mm512_permutexvar_epi16(index, table));
      };
      pack_panel(first, to + 2 * run * panel_bytes);
      pack_panel(second, to + (2 * run + 1) * panel_bytes);
    };
    for_runs<Together>(vectors, scales[0], scales[1], runs, pack);
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

  void pack_pair_of_bytes(const uint8_t* codes, const uint8_t* second_codes, const float (&scales)[2][kMostRuns],
                          int64_t runs, int64_t panel_bytes, std::byte* to) const {
    for (int64_t panel = 0; panel < 2 * runs; ++panel, to += panel_bytes) {
      const __m512 low = widened_bytes(codes + 16 * panel, scales[0][panel / 2]);
      const __m512 high = widened_bytes(second_codes + 16 * panel, scales[1][panel / 2]);
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
  __m512 values_ = {};  ///< the values of codes of 4 bits
};

}  // namespace
}  // namespace hone::amx
