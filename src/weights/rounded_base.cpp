#include "weights/rounded_base.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace hone {

namespace {

/// Rounds matrices of the stack of `parameter`, one after another.
RoundingError round_matrices(const PackedFormat& format, const Parameter& parameter, float* values, int64_t count) {
  const Shape stack = parameter.spec().stack();
  const PackedLayout layout = format.layout(stack[-2], stack[-1]);
  HONE_ASSERT(count % layout.elements() == 0, parameter.name());
  std::vector<std::byte> chunk(static_cast<size_t>(layout.bytes));
  std::vector<float> rounded(static_cast<size_t>(layout.elements()));
  RoundingError error;
  for (int64_t at = 0; at < count; at += layout.elements()) {
    format.pack(layout, values + at, chunk.data());
    unpack(layout, chunk.data(), 0, layout.elements(), rounded.data());
    error.add(values + at, rounded.data(), layout.elements());
    std::copy(rounded.begin(), rounded.end(), values + at);
  }
  return error;
}

}  // namespace

void RoundingError::add(const float* weights, const float* rounded, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double w = weights[i], moved = double{rounded[i]} - w;
    change += moved * moved;
    norm += w * w;
  }
}

RoundingError& RoundingError::operator+=(const RoundingError& other) {
  change += other.change;
  norm += other.norm;
  return *this;
}

double RoundingError::relative() const { return norm > 0 ? std::sqrt(change / norm) : 0; }

RoundingError round_weight(const PackedFormat& format, const Parameter& parameter, float* values) {
  return round_matrices(format, parameter, values, parameter.shape().numel());
}

void round_matrix(const PackedFormat& format, const Parameter& parameter, const StoredTensor& stored,
                  const MatrixOrder& order, int64_t matrix, ReadScratch& scratch, RoundedMatrix& rounded) {
  if (rounded.of == &stored && rounded.matrix == matrix) return;
  const auto count = static_cast<size_t>(order.numel());
  rounded.file.resize(count);
  rounded.memory.resize(count);
  stored.read(scratch, matrix * order.numel(), order.numel(), DType::kF32,
              reinterpret_cast<std::byte*>(rounded.file.data()));
  order.rows_from_file(rounded.file.data(), 0, order.out, rounded.memory.data());
  // A tensor of a file has whole matrices of the stack: gate and up, or one of them.
  rounded.error = round_matrices(format, parameter, rounded.memory.data(), order.numel());
  order.to_file(rounded.memory.data(), rounded.file.data());
  rounded.of = &stored;
  rounded.matrix = matrix;
}

}  // namespace hone
