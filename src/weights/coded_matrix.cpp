#include "weights/coded_matrix.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "weights/shard_writer.h"

namespace hone {

void expect_finite(const Checkpoint::Tensor& tensor, const float* values, int64_t count) {
  if (all_finite(DType::kF32, reinterpret_cast<const std::byte*>(values), count)) return;
  throw UserError(fmt::format("'{}' has a number that is not finite", tensor.entry->name), tensor.file->path().string(),
                  "download this file again");
}

}  // namespace hone
