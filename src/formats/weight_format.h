// How the bytes of a weight encode its values. A format is an object without state: parameters, views and loaders point
// to it and ask it, so that a new one is a class here and the products that read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/tensor.h"

namespace hone {

/// A tensor that a format needs memory for.
struct FormatTensor {
  Shape shape;
  DType dtype = DType::kF32;
};

/// The products that read weights.
enum class WeightProduct {
  kLinear,   ///< ops/linear
  kExperts,  ///< ops/moe_experts
};

/// A weight of `shape` as its format keeps it.
struct EncodedWeight {
  Shape shape;
  Tensor payload;
  Tensor scales = {};  ///< undefined where the format has none
};

class WeightFormat {
 public:
  virtual ~WeightFormat() = default;

  virtual std::string_view name() const = 0;
  /// Whether a weight of this shape can be held so.
  virtual bool fits(const Shape& shape) const = 0;
  /// What sizes it asks for, as an end of a sentence: "multiples of 64".
  virtual std::string_view sizes() const = 0;
  /// The elements themselves, which ops of any kind read; other formats are of frozen weights.
  virtual bool dense() const { return false; }
  /// The weight's bytes, where a dense weight would have `dtype`, and its scales beside them.
  virtual FormatTensor payload(const Shape& shape, DType dtype) const = 0;
  virtual std::optional<FormatTensor> scales(const Shape& /*shape*/) const { return std::nullopt; }
  /// Whether a product on this device reads it where it lies.
  virtual bool read_in_place(WeightProduct product, Device device) const = 0;

  // Rows are those of the last dimension, counted through all leading ones. In host memory; safe from several threads,
  // on different rows.

  /// Rows that are encoded together: fill() begins at a multiple of these, and takes a multiple.
  virtual int64_t rows_together() const { return 1; }
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
