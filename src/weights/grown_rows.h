// GrownRows: the rows that an embedding or a head gets for added tokens: the mean of its own rows, as transformers'
// resize_token_embeddings has it, without the noise (1e-9 times their covariance) that transformers adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/base/dtype.h"
#include "weights/safetensors.h"

namespace hone {

class GrownRows {
 public:
  /// Adds `rows` - own rows to `entry` [own rows, columns].
  GrownRows(const SafetensorsFile& file, const SafetensorsEntry& entry, int64_t rows)
      : file_(file), entry_(entry), rows_(rows) {}

  std::vector<int64_t> shape() const { return {rows_, entry_.shape[1]}; }
  /// Elements of the file; those that follow are of added rows.
  int64_t own_elements() const { return entry_.numel(); }
  /// Elements [first, first + count) of the added rows, counted from the first of these, as float32, bfloat16 or
  /// float16. The first call reads the matrix. Thread-safe.
  void write(int64_t first, int64_t count, DType dtype, std::byte* destination) const;

 private:
  const std::vector<float>& mean() const;

  const SafetensorsFile& file_;
  const SafetensorsEntry& entry_;
  int64_t rows_ = 0;
  mutable std::once_flag once_;
  mutable std::vector<float> mean_;  ///< [columns], summed in double
};

}  // namespace hone
