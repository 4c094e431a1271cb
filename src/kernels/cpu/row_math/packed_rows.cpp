#include "kernels/cpu/row_math/packed_rows.h"

#include <algorithm>

#include "kernels/cpu/row_math/row_blocks.h"

namespace hone {

namespace {

/// Elements [column, column + count) of a row of a matrix.
void unpack_part(const RowMath& math, const PackedLayout& layout, const HalfCodes& halves, const std::byte* chunk,
                 int64_t row, int64_t column, int64_t count, float* values) {
  const auto* codes = reinterpret_cast<const uint8_t*>(chunk);
  const bool flat = layout.scale_columns == 0;  // blocks are counted through all rows
  for (const int64_t end = column + count; column < end;) {
    const int64_t at = row * layout.columns + column;
    const int64_t run = std::min(layout.block - (flat ? at : column) % layout.block, end - column);
    float scale = 0.0f;
    read_scales(layout, chunk, row, column, 1, 1, &scale);
    if (halves.values != nullptr) {
      math.scale_halves(halves.values, scale, codes + at / 2, halves.upper_first, values, run);
    } else if (layout.code == PackedCode::kInt8) {
      math.scale_int8(scale, reinterpret_cast<const int8_t*>(codes) + at, values, run);
    } else {
      math.scale_e4m3(scale, codes + at, values, run);
    }
    column += run;
    values += run;
  }
}

}  // namespace

void unpack_elements(const PackedLayout& layout, const std::byte* chunks, int64_t first, int64_t count,
                     const Tensor& dst, int64_t at) {
  const RowMath& math = row_math();
  const HalfCodes halves = half_codes(layout.code);
  // Codes of odd elements begin within a byte.
  const bool simple = halves.values != nullptr && (layout.columns % 2 != 0 || first % 2 != 0);
  float buffer[kRowBlock];
  for (int64_t i = first; i < first + count;) {
    const int64_t matrix = i / layout.elements(), in_matrix = i % layout.elements();
    const int64_t row = in_matrix / layout.columns, column = in_matrix % layout.columns;
    const int64_t n = std::min({layout.columns - column, kRowBlock, first + count - i});
    const std::byte* chunk = chunks + matrix * layout.bytes;
    simple ? unpack(layout, chunk, in_matrix, n, buffer)
           : unpack_part(math, layout, halves, chunk, row, column, n, buffer);
    store_block(math, static_cast<const float*>(buffer), dst, at + (i - first), n);
    i += n;
  }
}

}  // namespace hone
