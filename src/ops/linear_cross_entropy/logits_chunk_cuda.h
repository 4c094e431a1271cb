// The kernels of linear_cross_entropy on a GPU beside its products: launchers, which do nothing in a dry pass.
#pragma once

#include "core/stream/context.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace hone::cuda {

/// to[rows[i], :] = from[i, :] for rows i32 [R]; from and to have the same dtype.
void scatter_rows(const Context& context, const Tensor& from, const Tensor& rows, const Tensor& to);

/// The logits of the supervised tokens [begin, begin + count).
struct LogitsChunk {
  Tensor logits;  ///< [at least count, pitch], bfloat16 or float32; pitch a multiple of 16 bytes
  int64_t begin = 0, count = 0;
  Tensor
      results;  ///< float64 [S, 3], of all supervised tokens: loss, entropy, whether the largest logit is the target's
};

/// Writes the chunk's results and token losses; if gradients are wanted, overwrites its logits with their gradients.
void differentiate_chunk(const Context& context, const LinearCrossEntropyArgs& args, const LogitsChunk& chunk);

/// Adds the results of all supervised tokens to args.totals.
void add_loss_totals(const Context& context, const LinearCrossEntropyArgs& args, const Tensor& results);

}  // namespace hone::cuda
