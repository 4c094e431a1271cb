#include "weights/rounded_base.h"

#include <tuple>

#include "core/error.h"

namespace hone {

namespace {

/// Rounds matrices of the stack of `parameter`, one after another; returns the norms of round_weight.
std::pair<double, double> round_matrices(const PackedFormat& format, const Parameter& parameter, float* values,
                                         int64_t count) {
  const Shape stack = parameter.stack();
  const PackedLayout layout = format.layout(stack[-2], stack[-1]);
  HONE_ASSERT(count % layout.elements() == 0, parameter.name());
  std::vector<std::byte> chunk(static_cast<size_t>(layout.bytes));
  std::vector<float> rounded(static_cast<size_t>(layout.elements()));
  double error = 0, norm = 0;
  for (int64_t at = 0; at < count; at += layout.elements()) {
    float* weights = values + at;
    format.pack(layout, weights, chunk.data());
    unpack(layout, chunk.data(), 0, layout.elements(), rounded.data());
    for (size_t i = 0; i < rounded.size(); ++i) {
      const double w = weights[i], change = double{rounded[i]} - w;
      error += change * change;
      norm += w * w;
      weights[i] = rounded[i];
    }
  }
  return {error, norm};
}

}  // namespace

std::pair<double, double> round_weight(const PackedFormat& format, const Parameter& parameter, float* values) {
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
  std::tie(rounded.error, rounded.norm) = round_matrices(format, parameter, rounded.memory.data(), order.numel());
  order.to_file(rounded.memory.data(), rounded.file.data());
  rounded.of = &stored;
  rounded.matrix = matrix;
}

}  // namespace hone
