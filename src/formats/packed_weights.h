// Packed formats: frozen matrices in 4 or 8 bits. A matrix is unpacked to dense memory for the time of its use
// (ops/unpack_weights), except that experts on a CPU read the codes (kernels/cpu/tile_products).
//
// A weight is a stack of matrices [rows, columns], each packed to a chunk of bytes of its own: its codes, then the
// scales of its blocks. So a rank's share, a copy from host memory and a gather are runs of whole chunks, whatever the
// format.
//
// | name     | codes                                  | block                       | scale                       |
// |----------|----------------------------------------|-----------------------------|-----------------------------|
// | nf4      | 4 bits, the upper half of a byte first | 64 of the flattened matrix  | 8 bits, nested (below)      |
// | nf4_float_scales | the same                       | the same                    | float32, max|w|             |
// | int8     | 8 bits, two's complement               | a row                       | float32, max|w| / 127       |
// | int4     | 4 bits, q + 8, the lower half first    | 32 of a row                 | bfloat16, max|w| / 7        |
// | int4_128 | the same                               | 128 of a row                | the same                    |
// | fp8      | e4m3                                   | 128 rows x 128 columns      | float32, max|w| / 448       |
// | fp8_rows | the same                               | a row                       | the same                    |
// | fp8_matrix | the same                             | the matrix                  | the same                    |
// | mxfp4    | e2m1, the lower half first             | 32 of a row                 | e8m0                        |
//
// The code of int8 is w · (127 / max|w|), and of int4 w · (1 / scale), in float32 and rounded to the nearest whole
// number, ties to even.
//
// w = code value · scale, rounded to float32 and then to the dtype of the weight. A block that has NaN or an infinity
// gives NaN, except that fp8 and mxfp4 files may hold what their formats can.
//
// nf4: Dettmers et al., "QLoRA" (arXiv:2305.14314), as bitsandbytes computes it. Scales are s = d[c] · a + m: the codes
// c of a signed dynamic map d (arXiv:1511.04561), a float32 magnitude a of 256 scales, and the mean m of all scales of
// the matrix. mxfp4: OCP Microscaling Formats 1.0. fp8: the checkpoints of DeepSeek-V3.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/host_device.h"
#include "formats/fp8.h"
#include "formats/weight_format.h"

namespace hone {

enum class PackedCode { kNf4, kNf4FloatScales, kInt8, kInt4, kFp8, kFp8Rows, kFp8Matrix, kMxfp4 };

inline constexpr int64_t kNf4Block = 64, kNf4NestedBlock = 256, kMxfp4Block = 32;

/// A chunk: codes from byte 0, scales and, of nf4, their magnitudes and their mean. All begin at multiples of 16.
struct PackedLayout {
  PackedCode code = PackedCode::kNf4;
  int64_t rows = 0, columns = 0;
  int64_t block = 0;          ///< elements that share a scale; of fp8 in each direction
  int64_t scale_columns = 0;  ///< blocks side by side, of formats whose blocks are parts of rows
  int64_t scales = 0, nested = 0, mean = 0, bytes = 0;

  HONE_HOST_DEVICE int64_t elements() const { return rows * columns; }
  /// The block of element i of the flattened matrix.
  HONE_HOST_DEVICE int64_t block_of(int64_t i) const {
    switch (code) {
      case PackedCode::kNf4:
      case PackedCode::kNf4FloatScales:
      case PackedCode::kMxfp4:
        return i / block;
      case PackedCode::kInt8:
      case PackedCode::kFp8Rows:
        return i / columns;
      case PackedCode::kInt4:
        return i / columns * scale_columns + i % columns / block;
      case PackedCode::kFp8:
        return i / columns / block * scale_columns + i % columns / block;
      case PackedCode::kFp8Matrix:
        return 0;
    }
    return 0;
  }
};

class PackedFormat : public WeightFormat {
 public:
  bool packed() const final { return true; }
  virtual PackedLayout layout(int64_t rows, int64_t columns) const = 0;
  /// Packs a matrix of float32 to its chunk, which is aligned to 16 bytes. Pure; safe from any thread.
  virtual void pack(const PackedLayout& layout, const float* values, std::byte* chunk) const = 0;

  FormatTensor payload(const Shape& shape, DType) const final;
  bool read_in_place(WeightProduct product, Device device) const override {
    return product == WeightProduct::kExperts && device.kind == DeviceKind::kCpu;
  }
  int64_t rows_together(const Shape& shape) const final { return shape[-2]; }
  void fill(const EncodedWeight& to, int64_t row, int64_t count, const float* values) const final;
  void read(const EncodedWeight& from, int64_t row, int64_t count, float* values) const final;
};

/// Elements [first, first + count) of a packed matrix as float32.
void unpack(const PackedLayout& layout, const std::byte* chunk, int64_t first, int64_t count, float* values);

/// Scales of the blocks of elements (row, column), (row, column + step), ...
void read_scales(const PackedLayout& layout, const std::byte* chunk, int64_t row, int64_t column, int64_t step,
                 int64_t count, float* scales);

/// Codes of half a byte.
struct HalfCodes {
  const float* values = nullptr;  ///< the values of codes 0 to 15; null if codes have 8 bits
  bool upper_first = false;       ///< the upper half of a byte is the first of its two codes
};
HalfCodes half_codes(PackedCode code);

const PackedFormat& nf4_format();
/// nf4 as bitsandbytes has it without double quantisation.
const PackedFormat& nf4_float_scales_format();
const PackedFormat& packed_int8_format();
/// Blocks of 32 or 128.
const PackedFormat& int4_format(int64_t block);
const PackedFormat& fp8_format();
const PackedFormat& fp8_rows_format();
const PackedFormat& fp8_matrix_format();
const PackedFormat& mxfp4_format();
/// All of them, whose names are values of base_weight_dtype.
const std::vector<const PackedFormat*>& packed_formats();

// What the codes mean, for the host and for kernels.

/// Quantiles of the normal distribution, scaled to [-1, 1]; 7 is 0. Source: QLoRA, appendix E.
inline constexpr std::array<float, 16> kNf4Values = {-1.0f,
                                                     -0.6961928009986877f,
                                                     -0.5250730514526367f,
                                                     -0.39491748809814453f,
                                                     -0.28444138169288635f,
                                                     -0.18477343022823334f,
                                                     -0.09105003625154495f,
                                                     0.0f,
                                                     0.07958029955625534f,
                                                     0.16093020141124725f,
                                                     0.24611230194568634f,
                                                     0.33791524171829224f,
                                                     0.44070982933044434f,
                                                     0.5626170039176941f,
                                                     0.7229568362236023f,
                                                     1.0f};
/// e2m1: sign, two bits of exponent, one of mantissa.
inline constexpr std::array<float, 16> kE2m1Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/// 2^(code - 127); 255 is NaN.
HONE_HOST_DEVICE inline float e8m0_value(uint32_t code) {
  if (code == 255u) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(code == 0u ? 0x00400000u : code << 23);
}

/// The signed dynamic map of nf4's scales: 256 values in rising order; code 127 is 0. The middles of 2^i equal parts of
/// [0.1, 1] for seven decades, in the float32 arithmetic of bitsandbytes' create_dynamic_map.
inline constexpr std::array<float, 256> kNf4ScaleValues = [] {
  constexpr std::array<float, 7> kDecades = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  std::array<float, 256> values{};
  size_t count = 0;
  for (size_t i = 0; i < kDecades.size(); ++i) {
    const int parts = 1 << i;
    const float step = (1.0f - 0.1f) / static_cast<float>(parts);
    const auto bound = [&](int j) {  // rounded once, from the nearer end
      const bool lower = j < (parts + 1) / 2;
      return static_cast<float>(lower ? double{0.1f} + double{step} * j : 1.0 - double{step} * (parts - j));
    };
    for (int j = 0; j < parts; ++j) {
      const float value = kDecades[i] * ((bound(j) + bound(j + 1)) / 2.0f);
      values[count++] = value;
      values[count++] = -value;
    }
  }
  values[count++] = 0.0f;
  values[count++] = 1.0f;
  std::sort(values.begin(), values.end());
  return values;
}();

}  // namespace hone
