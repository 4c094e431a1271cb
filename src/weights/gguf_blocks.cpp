#include "weights/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>

#include "core/base/dtype.h"
#include "core/base/error.h"

namespace hone {

namespace {

constexpr std::array<GgufFormat, 12> kGgufFormats = {{
    {GgufType::kF32, "F32", 1, 4, 0},
    {GgufType::kF16, "F16", 1, 2, 1},
    {GgufType::kBF16, "BF16", 1, 2, 32},
    {GgufType::kQ8_0, "Q8_0", 32, 34, 7},
    {GgufType::kQ4_0, "Q4_0", 32, 18, 2},
    {GgufType::kQ4_1, "Q4_1", 32, 20},
    {GgufType::kQ5_0, "Q5_0", 32, 22},
    {GgufType::kQ5_1, "Q5_1", 32, 24},
    {GgufType::kQ4_K, "Q4_K", 256, 144},
    {GgufType::kQ5_K, "Q5_K", 256, 176},
    {GgufType::kQ6_K, "Q6_K", 256, 210},
    {GgufType::kMXFP4, "MXFP4", 32, 17},
}};

/// Types that are not read, by ggml's numbers.
constexpr std::array<std::pair<uint32_t, std::string_view>, 23> kOtherTypes = {
    {{9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
     {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
     {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
     {34, "TQ1_0"},   {35, "TQ2_0"}, {40, "NVFP4"},  {41, "Q1_0"},  {42, "Q2_0"}}};

float half_at(const std::byte* bytes) {
  Float16 half;
  std::memcpy(&half.bits, bytes, sizeof(half.bits));
  return half;
}

void put_half(float value, std::byte* bytes) {
  const Float16 half(value);
  std::memcpy(bytes, &half.bits, sizeof(half.bits));
}

int byte_at(const std::byte* bytes, int64_t i) { return std::to_integer<int>(bytes[i]); }
int signed_at(const std::byte* bytes, int64_t i) { return static_cast<int8_t>(byte_at(bytes, i)); }

constexpr int64_t kSmallBlock = 32, kLargeBlock = 256;

/// Q4_0, Q4_1, Q5_0 and Q5_1: `fifth`: there is a fifth bit; `minimum`: there is an m, else values are centred.
void decode_small(const std::byte* block, bool fifth, bool minimum, float* y) {
  const float d = half_at(block);
  const float m = minimum ? half_at(block + 2) : 0.0f;
  const std::byte* rest = block + (minimum ? 4 : 2);
  uint32_t high = 0;
  if (fifth) {
    std::memcpy(&high, rest, sizeof(high));
    rest += sizeof(high);
  }
  const int centre = minimum ? 0 : fifth ? 16 : 8;
  for (int64_t i = 0; i < kSmallBlock; ++i) {
    const int byte = byte_at(rest, i % 16);
    int q = i < 16 ? byte & 15 : byte >> 4;
    if (fifth) q |= static_cast<int>(high >> i & 1) << 4;
    const float product = d * static_cast<float>(q - centre);
    y[i] = minimum ? product + m : product;
  }
}

void decode_mxfp4(const std::byte* block, float* y) {
  constexpr std::array<float, 8> kE2m1 = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  constexpr int kBias = 127;
  for (int64_t i = 0; i < kSmallBlock; ++i) {
    const int byte = byte_at(block, 1 + i % 16), q = i < 16 ? byte & 15 : byte >> 4;
    const float value = std::ldexp(kE2m1[static_cast<size_t>(q & 7)], byte_at(block, 0) - kBias);
    y[i] = q < 8 ? value : -value;
  }
}

struct ScaleAndMinimum {
  int scale, minimum;
};

/// Run `run` of the 12 bytes of 6-bit numbers of Q4_K and Q5_K: the first four runs have theirs in the lower six bits
/// of bytes 0 to 7; the others have four bits in bytes 8 to 11 and two in the upper bits of those.
ScaleAndMinimum packed_scales(const std::byte* s, int run) {
  if (run < 4) return {byte_at(s, run) & 63, byte_at(s, run + 4) & 63};
  return {(byte_at(s, run + 4) & 15) | (byte_at(s, run - 4) >> 6) << 4,
          (byte_at(s, run + 4) >> 4) | (byte_at(s, run) >> 6) << 4};
}

void decode_q45_k(const std::byte* block, bool fifth, float* y) {
  const float d = half_at(block), m = half_at(block + 2);
  const std::byte* scales = block + 4;
  const std::byte* high = block + 16;
  const std::byte* low = fifth ? high + 32 : high;
  for (int run = 0; run < 8; ++run) {
    const auto [scale, minimum] = packed_scales(scales, run);
    const float ds = d * static_cast<float>(scale), mn = m * static_cast<float>(minimum);
    for (int64_t i = 0; i < 32; ++i) {
      const int byte = byte_at(low, 32 * (run / 2) + i);
      int q = run % 2 == 0 ? byte & 15 : byte >> 4;
      if (fifth) q |= (byte_at(high, i) >> run & 1) << 4;
      const float product = ds * static_cast<float>(q);
      y[32 * run + i] = product - mn;
    }
  }
}

void decode_q6_k(const std::byte* block, float* y) {
  const std::byte *low = block, *high = block + 128, *scales = block + 192;
  const float d = half_at(block + 208);
  for (int64_t i = 0; i < kLargeBlock; ++i) {
    const int64_t half = i / 128, run = i % 128 / 32, at = i % 32;
    const int byte = byte_at(low, 64 * half + 32 * (run & 1) + at);
    const int q = (run < 2 ? byte & 15 : byte >> 4) | (byte_at(high, 32 * half + at) >> (2 * run) & 3) << 4;
    const float ds = d * static_cast<float>(signed_at(scales, i / 16));
    y[i] = ds * static_cast<float>(q - 32);
  }
}

/// 1 / d; 0 where that is not finite: such a d is 0 in float16, and so are all values.
float inverse_of(float d) {
  const float inverse = 1.0f / d;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

void encode_q8_0(const float* y, std::byte* block) {
  float largest = 0;
  for (int64_t i = 0; i < kSmallBlock; ++i) largest = std::max(largest, std::abs(y[i]));
  const float d = largest / 127.0f, inverse = inverse_of(d);
  put_half(d, block);
  for (int64_t i = 0; i < kSmallBlock; ++i) {
    block[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(y[i] * inverse)));
  }
}

void encode_q4_0(const float* y, std::byte* block) {
  const float* largest =
      std::max_element(y, y + kSmallBlock, [](float a, float b) { return std::abs(a) < std::abs(b); });
  const float d = *largest / -8.0f, inverse = inverse_of(d);
  put_half(d, block);
  const auto code = [&](float value) {
    const double scaled = static_cast<double>(value) * static_cast<double>(inverse) + 8.5;
    return static_cast<unsigned>(std::clamp(static_cast<int>(static_cast<float>(scaled)), 0, 15));
  };
  for (int64_t i = 0; i < 16; ++i) block[2 + i] = static_cast<std::byte>(code(y[i]) | code(y[i + 16]) << 4);
}

template <class T>
bool encode_plain(const float* values, int64_t count, std::byte* bytes) {
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    const T narrow(values[i]);
    finite = finite && std::isfinite(static_cast<float>(narrow));
    std::memcpy(bytes + i * static_cast<int64_t>(sizeof(T)), &narrow, sizeof(T));
  }
  return finite;
}

template <class T>
void decode_plain(const std::byte* bytes, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) {
    T narrow;
    std::memcpy(&narrow, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    values[i] = narrow;
  }
}

bool all_are_finite(const float* values, int64_t count) {
  return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
}

}  // namespace

std::span<const GgufFormat> gguf_formats() { return kGgufFormats; }

const GgufFormat* find_gguf_format(uint32_t type) {
  const auto found = std::find_if(kGgufFormats.begin(), kGgufFormats.end(),
                                  [&](const GgufFormat& f) { return static_cast<uint32_t>(f.type) == type; });
  return found == kGgufFormats.end() ? nullptr : &*found;
}

const GgufFormat& gguf_format(GgufType type) {
  const GgufFormat* format = find_gguf_format(static_cast<uint32_t>(type));
  HONE_ASSERT(format != nullptr);
  return *format;
}

const GgufFormat* written_gguf_format(std::string_view name) {
  const auto same = [&](std::string_view other) {
    return std::equal(name.begin(), name.end(), other.begin(), other.end(), [](char a, char b) {
      return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
    });
  };
  const auto found = std::find_if(kGgufFormats.begin(), kGgufFormats.end(),
                                  [&](const GgufFormat& f) { return f.file_type >= 0 && same(f.name); });
  return found == kGgufFormats.end() ? nullptr : &*found;
}

std::string_view other_gguf_type(uint32_t type) {
  for (const auto& [number, name] : kOtherTypes) {
    if (number == type) return name;
  }
  return {};
}

void decode_gguf(GgufType type, const std::byte* bytes, int64_t count, float* values) {
  const GgufFormat& format = gguf_format(type);
  HONE_ASSERT(count % format.values == 0);
  switch (type) {
    case GgufType::kF32:
      return decode_plain<float>(bytes, count, values);
    case GgufType::kF16:
      return decode_plain<Float16>(bytes, count, values);
    case GgufType::kBF16:
      return decode_plain<BFloat16>(bytes, count, values);
    default:
      break;
  }
  for (; count > 0; count -= format.values, bytes += format.bytes, values += format.values) {
    switch (type) {
      case GgufType::kQ4_0:
        decode_small(bytes, false, false, values);
        break;
      case GgufType::kQ4_1:
        decode_small(bytes, false, true, values);
        break;
      case GgufType::kQ5_0:
        decode_small(bytes, true, false, values);
        break;
      case GgufType::kQ5_1:
        decode_small(bytes, true, true, values);
        break;
      case GgufType::kQ8_0: {
        const float d = half_at(bytes);
        for (int64_t i = 0; i < kSmallBlock; ++i) values[i] = d * static_cast<float>(signed_at(bytes + 2, i));
        break;
      }
      case GgufType::kMXFP4:
        decode_mxfp4(bytes, values);
        break;
      case GgufType::kQ4_K:
        decode_q45_k(bytes, false, values);
        break;
      case GgufType::kQ5_K:
        decode_q45_k(bytes, true, values);
        break;
      default:
        decode_q6_k(bytes, values);
    }
  }
}

bool encode_gguf(GgufType type, const float* values, int64_t count, std::byte* bytes) {
  const GgufFormat& format = gguf_format(type);
  HONE_ASSERT(format.file_type >= 0 && count % format.values == 0);
  switch (type) {
    case GgufType::kF32:
      return encode_plain<float>(values, count, bytes);
    case GgufType::kF16:
      return encode_plain<Float16>(values, count, bytes);
    case GgufType::kBF16:
      return encode_plain<BFloat16>(values, count, bytes);
    default:
      break;
  }
  if (!all_are_finite(values, count)) return false;
  for (; count > 0; count -= kSmallBlock, values += kSmallBlock, bytes += format.bytes) {
    type == GgufType::kQ8_0 ? encode_q8_0(values, bytes) : encode_q4_0(values, bytes);
    if (!std::isfinite(half_at(bytes))) return false;
  }
  return true;
}

}  // namespace hone
