// CodedMatrix: a matrix [N, K] that a file holds as codes and scales, in several tensors. Each format is a class:
// weights/bitsandbytes_matrix.h, weights/compressed_matrix.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "formats/packed_weights.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"

namespace hone {

/// Memory that reading needs; each thread has one.
struct ReadScratch {
  std::vector<std::byte> codes, scale_codes;
  std::vector<float> scales, values;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
/// Whether a tensor has unsigned bytes.
inline bool is_unsigned(const SafetensorsEntry& entry) { return entry.dtype == DType::kU8 && !entry.float8_e4m3; }

/// UserError that names the tensor and its file, unless all of these numbers of it are finite.
void expect_finite(const Checkpoint::Tensor& tensor, const float* values, int64_t count);

class CodedMatrix {
 public:
  virtual ~CodedMatrix() = default;

  /// Its name as one plain tensor.
  virtual const std::string& name() const = 0;
  /// The tensor with its codes.
  virtual const Checkpoint::Tensor& codes() const = 0;
  /// [N, K]; of a matrix with missing tensors perhaps empty.
  virtual const std::vector<int64_t>& shape() const = 0;
  /// All tensors that belong to it, the codes first.
  virtual std::vector<std::string> names() const = 0;
  /// Bytes that the codes of `count` elements take.
  virtual int64_t bytes_of(int64_t count) const = 0;

  /// Elements [first, first + count) of the flattened matrix as float32 or bfloat16 in host memory. Thread-safe.
  virtual void read(ReadScratch& scratch, int64_t first, int64_t count, DType dtype, std::byte* destination) const = 0;

  /// The packed format that has the same values, or that is nearest; null if none is near.
  virtual const PackedFormat* packed_format() const = 0;
  /// Whether packed_format() has the same codes and scales, which read_chunk() gives.
  virtual bool has_chunks() const = 0;
  /// Writes the chunk of a layout of packed_format(). Thread-safe.
  virtual void read_chunk(const PackedLayout& layout, std::byte* chunk) const = 0;
};

}  // namespace hone
