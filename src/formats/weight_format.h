// How the bytes of a weight encode its values. A format is an object without state: parameters, views and loaders hold
// a pointer to it, so a new format is a class here and the products that read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/base/tensor.h"

namespace hone {

/// Shape and dtype of a tensor that a format allocates.
struct FormatTensor {
  Shape shape;
  DType dtype = DType::kF32;
};

/// The products that read weights.
enum class WeightProduct {
  kLinear,      ///< ops/linear
  kExperts,     ///< ops/moe_experts
  kFp8Rows,     ///< ops/linear in 8-bit floats, by its recipe (formats/fp8.h): rowwise
  kFp8Blocks,   ///< blockwise
  kFp8Experts,  ///< ops/moe_experts in 8-bit floats
};

/// A weight of `shape` as its format keeps it.
struct EncodedWeight {
  Shape shape;
  Tensor payload;
  Tensor scales = {};  ///< undefined if the format has none
};

class WeightFormat {
 public:
  virtual ~WeightFormat() = default;

  virtual std::string_view name() const = 0;
  /// Whether a weight of this shape can have this format.
  virtual bool fits(const Shape& shape) const = 0;
  /// The required sizes, as the end of a sentence: "multiples of 64".
  virtual std::string_view sizes() const = 0;
  /// True if the payload is the elements themselves, which all ops read; other formats are for frozen weights.
  virtual bool dense() const { return false; }
  /// True if the weight is unpacked to dense memory for each use (formats/packed_weights.h).
  virtual bool packed() const { return false; }
  /// Whether a value may be anywhere: its bytes are elements or whole chunks, so ranks keep parts of them and copies
  /// bring them to any device. Other formats have the order in which products of a CPU read, and stay whole there.
  bool movable() const { return dense() || packed(); }
  /// Payload (and scales, below) of a weight that would have `dtype` if it were dense.
  virtual FormatTensor payload(const Shape& shape, DType dtype) const = 0;
  virtual std::optional<FormatTensor> scales(const Shape& /*shape*/) const { return std::nullopt; }
  /// Whether a product on this device reads it in place.
  virtual bool read_in_place(WeightProduct product, Device device) const = 0;

  // Rows are those of the last dimension, counted through all leading ones. In host memory; safe from several threads,
  // on different rows.

  /// Rows that are encoded together: fill() begins at a multiple of these, and takes a multiple.
  virtual int64_t rows_together(const Shape& /*shape*/) const { return 1; }
  /// Encodes `count` rows from `row` on.
  virtual void fill(const EncodedWeight& to, int64_t row, int64_t count, const float* values) const = 0;
  /// Reads them back, any rows.
  virtual void read(const EncodedWeight& from, int64_t row, int64_t count, float* values) const = 0;
};

/// Elements of float32 or bfloat16, row by row.
const WeightFormat& dense_format();
/// bfloat16 in the order of tiles: formats/tiled_weights.h.
const WeightFormat& tile_format();
/// int8 tiles with a scale for each row: formats/int8_weights.h.
const WeightFormat& int8_format();

}  // namespace hone
