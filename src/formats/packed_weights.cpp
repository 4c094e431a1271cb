#include "formats/packed_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "formats/magnitude.h"

namespace hone {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t aligned(int64_t bytes) { return ceil_div(bytes, 16) * 16; }

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// The largest magnitude of n numbers; NaN if one is NaN.
float largest_magnitude(const float* values, int64_t n) { return std::bit_cast<float>(magnitude_bits(values, n)); }

// nf4

/// The midpoints between the values of nf4.
constexpr std::array<float, 15> kNf4Bounds = [] {
  std::array<float, 15> bounds{};
  for (size_t i = 0; i < bounds.size(); ++i) bounds[i] = (kNf4Values[i] + kNf4Values[i + 1]) / 2.0f;
  return bounds;
}();

/// [-1, 1] in bins of 1/128, each with at most one midpoint: a comparison in place of fifteen. One core of a Xeon at
/// 2 GHz packs 400 million values a second so, 230 with fifteen comparisons of vectors of four, 130 with scalar ones.
struct Nf4Bins {
  static constexpr int kCount = 258;
  /// Rises with the value; the same arithmetic for values and for midpoints.
  static constexpr size_t bin_of(float value) { return static_cast<size_t>(value * 128.0f + 129.0f); }

  std::array<uint8_t, kCount> below{};  ///< midpoints in lower bins
  std::array<float, kCount> bound{};    ///< the bin's own midpoint, or infinity
};
constexpr Nf4Bins kNf4Bins = [] {
  Nf4Bins bins;
  bins.bound.fill(std::numeric_limits<float>::infinity());
  for (const float bound : kNf4Bounds) {
    const size_t bin = Nf4Bins::bin_of(bound);
    bins.bound[bin] = bound;
    for (size_t above = bin + 1; above < bins.below.size(); ++above) ++bins.below[above];
  }
  return bins;
}();

/// The number of midpoints below the value, which is its code. NaN: 0, and the scale of the block is NaN.
uint8_t nf4_code(float value) {
  const float inside = value > -1.0f ? std::min(value, 1.0f) : -1.0f;
  const size_t bin = Nf4Bins::bin_of(inside);
  return static_cast<uint8_t>(kNf4Bins.below[bin] + (kNf4Bins.bound[bin] < inside ? 1 : 0));
}

void pack_nf4_block(const float* values, int64_t n, float& scale, uint8_t* codes) {
  scale = largest_magnitude(values, n);
  constexpr float kLeast = 1e-38f;
  if (n == kNf4Block) {
    const float inverse = 1.0f / std::max(scale, kLeast);
    for (int64_t i = 0; i < kNf4Block; i += 2) {
      codes[i / 2] = static_cast<uint8_t>(nf4_code(values[i] * inverse) << 4 | nf4_code(values[i + 1] * inverse));
    }
    return;
  }
  // A short last block is divided, as bitsandbytes does.
  scale = std::isnan(scale) ? scale : std::max(scale, kLeast);
  for (int64_t i = 0; i < n; i += 2) {
    const uint8_t second = i + 1 < n ? nf4_code(values[i + 1] / scale) : nf4_code(0.0f);
    codes[i / 2] = static_cast<uint8_t>(nf4_code(values[i] / scale) << 4 | second);
  }
}

/// Scales of all blocks to 8 bits, their magnitudes and their mean.
void pack_nf4_scales(const PackedLayout& layout, std::vector<float>& scales, std::byte* chunk) {
  constexpr const std::array<float, 256>& map = kNf4ScaleValues;
  const auto count = static_cast<int64_t>(scales.size());
  double sum = 0.0;
  for (const float scale : scales) sum += double{scale};
  const float mean = static_cast<float>(sum / static_cast<double>(count));
  std::memcpy(chunk + layout.mean, &mean, sizeof(mean));
  for (int64_t begin = 0; begin < count; begin += kNf4NestedBlock) {
    const int64_t n = std::min(kNf4NestedBlock, count - begin);
    float* block = scales.data() + begin;
    for (int64_t i = 0; i < n; ++i) block[i] -= mean;
    const float largest = largest_magnitude(block, n);
    std::memcpy(chunk + layout.nested + begin / kNf4NestedBlock * int64_t{sizeof(float)}, &largest, sizeof(largest));
    for (int64_t i = 0; i < n; ++i) {
      const float value = largest > 0.0f && std::isfinite(largest) ? block[i] / largest : 0.0f;
      auto above = std::lower_bound(map.begin(), map.end(), value);
      if (above == map.end()) --above;
      if (above != map.begin() && value - above[-1] <= *above - value) --above;
      chunk[layout.scales + begin + i] = static_cast<std::byte>(above - map.begin());
    }
  }
}

void pack_nf4(const PackedLayout& layout, const float* values, std::byte* chunk) {
  thread_local std::vector<float> scales;
  const int64_t elements = layout.elements();
  scales.resize(static_cast<size_t>(ceil_div(elements, kNf4Block)));
  auto* codes = reinterpret_cast<uint8_t*>(chunk);
  for (int64_t i = 0; i < elements; i += kNf4Block) {
    pack_nf4_block(values + i, std::min(kNf4Block, elements - i), scales[static_cast<size_t>(i / kNf4Block)],
                   codes + i / 2);
  }
  if (layout.code == PackedCode::kNf4) return pack_nf4_scales(layout, scales, chunk);
  for (float& scale : scales) {
    if (!std::isfinite(scale)) scale = kNaN;
  }
  std::memcpy(chunk + layout.scales, scales.data(), scales.size() * sizeof(float));
}

// int8, int4

/// Nearest whole number of a value in [-2^22, 2^22], ties to even.
int32_t nearest(float value) {
  constexpr float kOnes = 0x1.8p23f;  // a sum with it is rounded to a whole number, which its lowest bits are
  return std::bit_cast<int32_t>(value + kOnes) - std::bit_cast<int32_t>(kOnes);
}

/// Blocks without a larger magnitude are rounded to zeros: the inverse of their scale would overflow.
constexpr float kLeastMagnitude = 1e-30f;

void pack_int8(const PackedLayout& layout, const float* values, std::byte* chunk) {
  auto* scales = reinterpret_cast<float*>(chunk + layout.scales);
  for (int64_t row = 0; row < layout.rows; ++row, values += layout.columns, chunk += layout.columns) {
    const float largest = largest_magnitude(values, layout.columns);
    const bool finite = std::isfinite(largest), zeros = largest < kLeastMagnitude;
    scales[row] = zeros ? 0.0f : finite ? largest / 127.0f : kNaN;
    const float inverse = zeros || !finite ? 0.0f : 127.0f / largest;
    for (int64_t k = 0; k < layout.columns; ++k) chunk[k] = static_cast<std::byte>(nearest(values[k] * inverse));
  }
}

void pack_int4(const PackedLayout& layout, const float* values, std::byte* chunk) {
  auto* scales = reinterpret_cast<BFloat16*>(chunk + layout.scales);
  for (int64_t i = 0; i < layout.elements(); i += layout.block) {
    const float largest = largest_magnitude(values + i, layout.block);
    const bool finite = std::isfinite(largest), zeros = largest < kLeastMagnitude;
    const BFloat16 scale(zeros ? 0.0f : finite ? largest / 7.0f : kNaN);
    scales[i / layout.block] = scale;
    const float inverse = zeros || !finite ? 0.0f : 1.0f / static_cast<float>(scale);
    for (int64_t j = i; j < i + layout.block; j += 2) {
      const auto code = [&](int64_t at) { return std::clamp(nearest(values[at] * inverse), -7, 7) + 8; };
      chunk[j / 2] = static_cast<std::byte>(code(j) | code(j + 1) << 4);
    }
  }
}

// fp8

void pack_fp8(const PackedLayout& layout, const float* values, std::byte* chunk) {
  auto* scales = reinterpret_cast<float*>(chunk + layout.scales);
  for (int64_t row = 0; row < layout.rows; row += kFp8Block) {
    const int64_t rows = std::min(kFp8Block, layout.rows - row);
    for (int64_t column = 0; column < layout.columns; column += kFp8Block) {
      const int64_t columns = std::min(kFp8Block, layout.columns - column);
      float largest = 0.0f;
      for (int64_t r = row; r < row + rows && !std::isnan(largest); ++r) {
        const float of_row = largest_magnitude(values + r * layout.columns + column, columns);
        largest = of_row > largest || std::isnan(of_row) ? of_row : largest;
      }
      const float scale = largest < kLeastMagnitude ? 1.0f : std::isfinite(largest) ? largest / 448.0f : kNaN;
      scales[row / kFp8Block * layout.scale_columns + column / kFp8Block] = scale;
      for (int64_t r = row; r < row + rows; ++r) {
        for (int64_t i = r * layout.columns + column; i < r * layout.columns + column + columns; ++i) {
          chunk[i] = static_cast<std::byte>(e4m3_code(values[i] / scale));
        }
      }
    }
  }
}

/// Numbers that share a scale, which is returned.
float pack_fp8_group(const float* values, int64_t n, std::byte* codes) {
  const Fp8Scale scale = fp8_scale(magnitude_bits(values, n), Fp8Code::kE4m3);
  for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::byte>(e4m3_code(values[i] * scale.inverse));
  return scale.scale;
}

void pack_fp8_rows(const PackedLayout& layout, const float* values, std::byte* chunk) {
  auto* scales = reinterpret_cast<float*>(chunk + layout.scales);
  for (int64_t row = 0; row < layout.rows; ++row) {
    const int64_t first = row * layout.columns;
    scales[row] = pack_fp8_group(values + first, layout.columns, chunk + first);
  }
}

void pack_fp8_matrix(const PackedLayout& layout, const float* values, std::byte* chunk) {
  *reinterpret_cast<float*>(chunk + layout.scales) = pack_fp8_group(values, layout.elements(), chunk);
}

// mxfp4

/// Nearest e2m1 code, ties to the even mantissa; magnitudes above 6 become 6.
int e2m1_code(float value) {
  const float m = std::fabs(value);
  const int code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
  return code | (std::signbit(value) ? 8 : 0);
}

/// The exponent of a block is that of its largest magnitude, less 2, the largest exponent of e2m1: section 6.3 of the
/// specification.
void pack_mxfp4(const PackedLayout& layout, const float* values, std::byte* chunk) {
  for (int64_t i = 0; i < layout.elements(); i += kMxfp4Block) {
    const float largest = largest_magnitude(values + i, kMxfp4Block);
    const int exponent = static_cast<int>(std::bit_cast<uint32_t>(largest) >> 23) - 2;
    const auto scale = static_cast<uint32_t>(std::isfinite(largest) ? std::clamp(exponent, 1, 254) : 255);
    chunk[layout.scales + i / kMxfp4Block] = static_cast<std::byte>(scale);
    const float inverse = scale == 255u ? 0.0f : 1.0f / e8m0_value(scale);
    for (int64_t j = i; j < i + kMxfp4Block; j += 2) {
      chunk[j / 2] = static_cast<std::byte>(e2m1_code(values[j] * inverse) | e2m1_code(values[j + 1] * inverse) << 4);
    }
  }
}

// Unpacking: a run of elements of one block.

float scale_at(const PackedLayout& layout, const std::byte* chunk, int64_t block) {
  const std::byte* scales = chunk + layout.scales;
  switch (layout.code) {
    case PackedCode::kNf4: {
      float nested = 0.0f, mean = 0.0f;
      std::memcpy(&nested, chunk + layout.nested + block / kNf4NestedBlock * int64_t{sizeof(float)}, sizeof(nested));
      std::memcpy(&mean, chunk + layout.mean, sizeof(mean));
      const float centred = kNf4ScaleValues[static_cast<size_t>(scales[block])] * nested;
      return centred + mean;
    }
    case PackedCode::kNf4FloatScales:
    case PackedCode::kInt8:
    case PackedCode::kFp8:
    case PackedCode::kFp8Rows:
    case PackedCode::kFp8Matrix:
      return reinterpret_cast<const float*>(scales)[block];
    case PackedCode::kInt4:
      return static_cast<float>(reinterpret_cast<const BFloat16*>(scales)[block]);
    case PackedCode::kMxfp4:
      return e8m0_value(static_cast<uint32_t>(scales[block]));
  }
  return kNaN;
}

/// Halves of bytes from element `first` on, each the index of a value; kUpperFirst: the upper half comes first.
template <bool kUpperFirst>
void unpack_halves(const uint8_t* codes, int64_t first, int64_t count, const std::array<float, 16>& table, float scale,
                   float* values) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i;
    const bool upper = (at % 2 == 0) == kUpperFirst;
    values[i] = table[static_cast<size_t>(upper ? codes[at / 2] >> 4 : codes[at / 2] & 15)] * scale;
  }
}

constexpr std::array<float, 16> kInt4Values = [] {
  std::array<float, 16> values{};
  for (int i = 0; i < 16; ++i) values[static_cast<size_t>(i)] = static_cast<float>(i - 8);
  return values;
}();

void unpack_run(const PackedLayout& layout, const std::byte* chunk, int64_t first, int64_t count, float* values) {
  const auto* codes = reinterpret_cast<const uint8_t*>(chunk);
  const float scale = scale_at(layout, chunk, layout.block_of(first));
  switch (layout.code) {
    case PackedCode::kNf4:
    case PackedCode::kNf4FloatScales:
      return unpack_halves<true>(codes, first, count, kNf4Values, scale, values);
    case PackedCode::kInt4:
      return unpack_halves<false>(codes, first, count, kInt4Values, scale, values);
    case PackedCode::kMxfp4:
      return unpack_halves<false>(codes, first, count, kE2m1Values, scale, values);
    case PackedCode::kInt8:
      for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(static_cast<int8_t>(codes[first + i])) * scale;
      return;
    case PackedCode::kFp8:
    case PackedCode::kFp8Rows:
    case PackedCode::kFp8Matrix:
      for (int64_t i = 0; i < count; ++i) values[i] = e4m3_value(codes[first + i]) * scale;
      return;
  }
}

}  // namespace

HalfCodes half_codes(PackedCode code) {
  switch (code) {
    case PackedCode::kNf4:
    case PackedCode::kNf4FloatScales:
      return {kNf4Values.data(), true};
    case PackedCode::kInt4:
      return {kInt4Values.data(), false};
    case PackedCode::kMxfp4:
      return {kE2m1Values.data(), false};
    case PackedCode::kInt8:
    case PackedCode::kFp8:
    case PackedCode::kFp8Rows:
    case PackedCode::kFp8Matrix:
      return {};
  }
  return {};
}

void read_scales(const PackedLayout& layout, const std::byte* chunk, int64_t row, int64_t column, int64_t step,
                 int64_t count, float* scales) {
  // Without divisions, which would take most of the time of unpacking.
  const bool by_rows = layout.code == PackedCode::kInt8 || layout.code == PackedCode::kFp8Rows;
  if (by_rows) return (void)std::fill_n(scales, count, scale_at(layout, chunk, row));
  if (layout.code == PackedCode::kFp8Matrix) return (void)std::fill_n(scales, count, scale_at(layout, chunk, 0));
  const int shift = std::countr_zero(static_cast<uint64_t>(layout.block));
  int64_t before = 0;
  if (layout.scale_columns == 0) {
    column += row * layout.columns;  // blocks are counted through all rows
  } else {
    before = (layout.code == PackedCode::kFp8 ? row >> shift : row) * layout.scale_columns;
  }
  for (int64_t i = 0; i < count; ++i) scales[i] = scale_at(layout, chunk, before + ((column + i * step) >> shift));
}

void unpack(const PackedLayout& layout, const std::byte* chunk, int64_t first, int64_t count, float* values) {
  const bool flat = layout.code == PackedCode::kNf4 || layout.code == PackedCode::kNf4FloatScales ||
                    layout.code == PackedCode::kMxfp4;
  const int64_t width = flat ? layout.elements() : layout.columns;
  for (int64_t i = first; i < first + count;) {
    const int64_t place = i % width;  // runs end with their block, their row and the request
    const int64_t run = std::min({layout.block - place % layout.block, width - place, first + count - i});
    unpack_run(layout, chunk, i, run, values + (i - first));
    i += run;
  }
}

FormatTensor PackedFormat::payload(const Shape& shape, DType) const {
  const int64_t rows = shape[-2], columns = shape[-1];
  return {{shape.numel() / (rows * columns), layout(rows, columns).bytes}, DType::kU8};
}

void PackedFormat::fill(const EncodedWeight& to, int64_t row, int64_t count, const float* values) const {
  const PackedLayout layout = this->layout(to.shape[-2], to.shape[-1]);
  HONE_ASSERT(row % layout.rows == 0 && count % layout.rows == 0);
  for (int64_t matrix = row / layout.rows; matrix < (row + count) / layout.rows; ++matrix) {
    pack(layout, values, to.payload.data + matrix * layout.bytes);
    values += layout.elements();
  }
}

void PackedFormat::read(const EncodedWeight& from, int64_t row, int64_t count, float* values) const {
  const PackedLayout layout = this->layout(from.shape[-2], from.shape[-1]);
  while (count > 0) {
    const int64_t begin = row % layout.rows, rows = std::min(layout.rows - begin, count);
    unpack(layout, from.payload.data + row / layout.rows * layout.bytes, begin * layout.columns, rows * layout.columns,
           values);
    row += rows;
    count -= rows;
    values += rows * layout.columns;
  }
}

namespace {

/// For matrices of any size.
class AnySizeFormat : public PackedFormat {
 public:
  bool fits(const Shape& shape) const final { return shape.rank() >= 2; }
  std::string_view sizes() const final { return "any"; }
};

class Nf4Format final : public AnySizeFormat {
 public:
  std::string_view name() const override { return "nf4"; }
  PackedLayout layout(int64_t rows, int64_t columns) const override {
    PackedLayout layout{.code = PackedCode::kNf4, .rows = rows, .columns = columns, .block = kNf4Block};
    const int64_t blocks = ceil_div(rows * columns, kNf4Block);
    layout.scales = aligned(ceil_div(rows * columns, 2));
    layout.nested = layout.scales + aligned(blocks);
    layout.mean = layout.nested + aligned(ceil_div(blocks, kNf4NestedBlock) * int64_t{sizeof(float)});
    layout.bytes = layout.mean + 16;
    return layout;
  }
  void pack(const PackedLayout& layout, const float* values, std::byte* chunk) const override {
    pack_nf4(layout, values, chunk);
  }
};

class Nf4FloatScalesFormat final : public AnySizeFormat {
 public:
  std::string_view name() const override { return "nf4_float_scales"; }
  PackedLayout layout(int64_t rows, int64_t columns) const override {
    PackedLayout layout{.code = PackedCode::kNf4FloatScales, .rows = rows, .columns = columns, .block = kNf4Block};
    layout.scales = aligned(ceil_div(rows * columns, 2));
    layout.bytes = layout.scales + aligned(ceil_div(rows * columns, kNf4Block) * int64_t{sizeof(float)});
    return layout;
  }
  void pack(const PackedLayout& layout, const float* values, std::byte* chunk) const override {
    pack_nf4(layout, values, chunk);
  }
};

class PackedInt8Format final : public AnySizeFormat {
 public:
  std::string_view name() const override { return "int8"; }
  PackedLayout layout(int64_t rows, int64_t columns) const override {
    PackedLayout layout{.code = PackedCode::kInt8, .rows = rows, .columns = columns, .block = columns};
    layout.scale_columns = 1;
    layout.scales = aligned(rows * columns);
    layout.bytes = layout.scales + aligned(rows * int64_t{sizeof(float)});
    return layout;
  }
  void pack(const PackedLayout& layout, const float* values, std::byte* chunk) const override {
    pack_int8(layout, values, chunk);
  }
};

class Fp8RowsFormat final : public AnySizeFormat {
 public:
  std::string_view name() const override { return "fp8_rows"; }
  PackedLayout layout(int64_t rows, int64_t columns) const override {
    PackedLayout layout = packed_int8_format().layout(rows, columns);
    layout.code = PackedCode::kFp8Rows;
    return layout;
  }
  bool read_in_place(WeightProduct product, Device device) const override {
    return product == WeightProduct::kFp8Rows || PackedFormat::read_in_place(product, device);
  }
  void pack(const PackedLayout& layout, const float* values, std::byte* chunk) const override {
    pack_fp8_rows(layout, values, chunk);
  }
};

class Fp8MatrixFormat final : public AnySizeFormat {
 public:
  std::string_view name() const override { return "fp8_matrix"; }
  PackedLayout layout(int64_t rows, int64_t columns) const override {
    PackedLayout layout{.code = PackedCode::kFp8Matrix, .rows = rows, .columns = columns, .block = columns};
    layout.scale_columns = 1;
    layout.scales = aligned(rows * columns);
    layout.bytes = layout.scales + 16;
    return layout;
  }
  bool read_in_place(WeightProduct product, Device device) const override {
    if (product == WeightProduct::kFp8Experts) return device.kind == DeviceKind::kCuda;
    return PackedFormat::read_in_place(product, device);
  }
  void pack(const PackedLayout& layout, const float* values, std::byte* chunk) const override {
    pack_fp8_matrix(layout, values, chunk);
  }
};

class Int4Format final : public PackedFormat {
 public:
  explicit Int4Format(int64_t block) : block_(block) {}
  std::string_view name() const override { return block_ == 32 ? "int4" : "int4_128"; }
  bool fits(const Shape& shape) const override { return shape.rank() >= 2 && shape[-1] % block_ == 0; }
  std::string_view sizes() const override { return block_ == 32 ? "multiples of 32" : "multiples of 128"; }
  PackedLayout layout(int64_t rows, int64_t columns) const override {
    PackedLayout layout{.code = PackedCode::kInt4, .rows = rows, .columns = columns, .block = block_};
    layout.scale_columns = columns / block_;
    layout.scales = aligned(rows * columns / 2);
    layout.bytes = layout.scales + aligned(rows * layout.scale_columns * int64_t{sizeof(BFloat16)});
    return layout;
  }
  void pack(const PackedLayout& layout, const float* values, std::byte* chunk) const override {
    pack_int4(layout, values, chunk);
  }

 private:
  int64_t block_;
};

class Fp8Format final : public AnySizeFormat {
 public:
  std::string_view name() const override { return "fp8"; }
  PackedLayout layout(int64_t rows, int64_t columns) const override {
    PackedLayout layout{.code = PackedCode::kFp8, .rows = rows, .columns = columns, .block = kFp8Block};
    layout.scale_columns = ceil_div(columns, kFp8Block);
    layout.scales = aligned(rows * columns);
    layout.bytes = layout.scales + aligned(ceil_div(rows, kFp8Block) * layout.scale_columns * int64_t{sizeof(float)});
    return layout;
  }
  bool read_in_place(WeightProduct product, Device device) const override {
    return product == WeightProduct::kFp8Blocks || PackedFormat::read_in_place(product, device);
  }
  void pack(const PackedLayout& layout, const float* values, std::byte* chunk) const override {
    pack_fp8(layout, values, chunk);
  }
};

class Mxfp4Format final : public PackedFormat {
 public:
  std::string_view name() const override { return "mxfp4"; }
  bool fits(const Shape& shape) const override { return shape.rank() >= 2 && shape[-1] % kMxfp4Block == 0; }
  std::string_view sizes() const override { return "multiples of 32"; }
  PackedLayout layout(int64_t rows, int64_t columns) const override {
    PackedLayout layout{.code = PackedCode::kMxfp4, .rows = rows, .columns = columns, .block = kMxfp4Block};
    layout.scales = aligned(rows * columns / 2);
    layout.bytes = layout.scales + aligned(rows * columns / kMxfp4Block);
    return layout;
  }
  void pack(const PackedLayout& layout, const float* values, std::byte* chunk) const override {
    pack_mxfp4(layout, values, chunk);
  }
};

}  // namespace

const PackedFormat& nf4_format() {
  static const Nf4Format format;
  return format;
}
const PackedFormat& nf4_float_scales_format() {
  static const Nf4FloatScalesFormat format;
  return format;
}
const PackedFormat& packed_int8_format() {
  static const PackedInt8Format format;
  return format;
}
const PackedFormat& int4_format(int64_t block) {
  static const Int4Format fine(32), coarse(128);
  HONE_ASSERT(block == 32 || block == 128);
  return block == 32 ? fine : coarse;
}
const PackedFormat& fp8_format() {
  static const Fp8Format format;
  return format;
}
const PackedFormat& fp8_rows_format() {
  static const Fp8RowsFormat format;
  return format;
}
const PackedFormat& fp8_matrix_format() {
  static const Fp8MatrixFormat format;
  return format;
}
const PackedFormat& mxfp4_format() {
  static const Mxfp4Format format;
  return format;
}

const std::vector<const PackedFormat*>& packed_formats() {
  static const std::vector<const PackedFormat*> formats = {
      &nf4_format(), &nf4_float_scales_format(), &packed_int8_format(), &int4_format(32), &int4_format(128),
      &fp8_format(), &fp8_rows_format(),         &fp8_matrix_format(),  &mxfp4_format()};
  return formats;
}

}  // namespace hone
