// The number formats of GGUF tensors: how the bytes of a block encode its values.
//
// A row of a tensor is a run of blocks, each of a fixed number of values. Scales d and m are float16, y are the values;
// all integers are little-endian. Source of the layouts: ggml (ggml-common.h, ggml-quants.c), as the Python package
// gguf (quants.py) states them; arithmetic is in float32, products rounded one by one.
//
//   Q4_0  32 values, 18 bytes: d, 16 bytes q          y[i] = d (q - 8), i < 16 from lower halves, the others from upper
//   Q4_1  32 values, 20 bytes: d, m, 16 bytes q       y[i] = d q + m, in the same order
//   Q5_0  32 values, 22 bytes: d, u32 h, 16 bytes q   as Q4_0 with bit i of h as fifth bit of value i, less 16
//   Q5_1  32 values, 24 bytes: d, m, u32 h, 16 bytes  as Q4_1 with that bit
//   Q8_0  32 values, 34 bytes: d, 32 x i8             y[i] = d q[i]
//   Q4_K  256 values, 144 bytes: d, m, 12 bytes of scales, 128 bytes q
//         eight runs of 32 with scales s and minima n of 6 bits: y = (d s) q - (m n); runs 2 j and 2 j + 1 are the
//         lower and the upper halves of bytes [32 j, 32 j + 32)
//   Q5_K  256 values, 176 bytes: d, m, 12 bytes of scales, 32 bytes h, 128 bytes q: as Q4_K, with bit r of h[i] as
//   fifth
//         bit of value i of run r
//   Q6_K  256 values, 210 bytes: 128 bytes l, 64 bytes h, 16 x i8 s, d
//         y = (d s) (q - 32), a scale for 16 values: in each half of 128 values, run r of 32 has its lower 4 bits in
//         l[64 half + 32 (r & 1) + i], lower half of the byte for r < 2, and bits [2 r, 2 r + 2) of h[32 half + i]
//   MXFP4 32 values, 17 bytes: u8 s, 16 bytes q       y[i] = e2m1(q) 2^(s - 127), in the order of Q4_0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace hone {

/// The numbers of types in files.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
  kMXFP4 = 39,
};

struct GgufFormat {
  GgufType type;
  std::string_view name;   ///< "Q4_K"
  int64_t values;          ///< in a block
  int64_t bytes;           ///< in a block
  int64_t file_type = -1;  ///< general.file_type of a file whose matrices have it; -1: files are not written in it
};

std::span<const GgufFormat> gguf_formats();
/// Null: it is not read.
const GgufFormat* find_gguf_format(uint32_t type);
const GgufFormat& gguf_format(GgufType type);
/// By its name in lower case, "q8_0", of those that are written; null: none.
const GgufFormat* written_gguf_format(std::string_view name);
/// The name that ggml gives to a type that is not read ("Q2_K"); "" if it is not known.
std::string_view other_gguf_type(uint32_t type);

/// Decodes `count` values, a multiple of the block's, to float32.
void decode_gguf(GgufType type, const std::byte* bytes, int64_t count, float* values);

/// Encodes `count` values, a multiple of the block's, in a format that files are written in. Float16 and bfloat16 round
/// to nearest, ties to even. Q8_0: d = max |y| / 127, q = y · (1 / d) rounded to nearest, halves away from zero. Q4_0:
/// d = y / -8 of the first value of largest magnitude, q = floor(y · (1 / d) + 8.5) in [0, 15], formed in float64;
/// values round by the float32 d, which the block holds in float16. The bits are those of the Python package gguf 0.19
/// and of ggml's reference. Returns false if a value is not finite in the format: it is too large for float16.
[[nodiscard]] bool encode_gguf(GgufType type, const float* values, int64_t count, std::byte* bytes);

}  // namespace hone
