// The weights of a base as a packed format rounds them: what a run with base_weight_dtype computed with, and what its
// adapter may be merged into.
#pragma once

#include <functional>
#include <vector>

#include "formats/packed_weights.h"
#include "params/parameter.h"
#include "weights/stored_tensor.h"

namespace hone {

/// The packed format of a frozen weight; null for none.
using PackedFormatOf = std::function<const PackedFormat*(const Parameter&)>;

/// How far rounding moves weights: sums of squares.
struct RoundingError {
  double change = 0, norm = 0;  ///< ‖rounded − W‖², ‖W‖²

  void add(const float* weights, const float* rounded, int64_t count);
  RoundingError& operator+=(const RoundingError& other);
  /// ‖rounded − W‖ / ‖W‖; 0 without weights.
  double relative() const;
};

/// A matrix in the element order of its file, rounded; each thread has one, which remembers its last matrix.
struct RoundedMatrix {
  const void* of = nullptr;
  int64_t matrix = -1;
  std::vector<float> file, memory;
  RoundingError error;  ///< this matrix's
};

/// Rounds a weight of `parameter` in memory order.
RoundingError round_weight(const PackedFormat& format, const Parameter& parameter, float* values);

/// Rounds matrix number `matrix` of a tensor of `parameter`, of order.out x order.in elements in `order`, to
/// rounded.file, if it is not the one that is there. `stored` reads elements in the file's order.
void round_matrix(const PackedFormat& format, const Parameter& parameter, const StoredTensor& stored,
                  const MatrixOrder& order, int64_t matrix, ReadScratch& scratch, RoundedMatrix& rounded);

}  // namespace hone
