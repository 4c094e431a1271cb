// Packed documents for benchmarks of ops.
#pragma once

#include <vector>

#include "kernels/op_bench.h"
#include "ops/packed_sequences.h"

namespace hone {

/// The step's documents; the last one may be shorter.
inline PackedSequences packed_documents(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  std::vector<int32_t> starts;
  for (int64_t row = 0; row < sizes.tokens; row += sizes.seq) starts.push_back(static_cast<int32_t>(row));
  starts.push_back(static_cast<int32_t>(sizes.tokens));
  const auto documents = static_cast<int64_t>(starts.size()) - 1;
  return {.cu_seqlens = data.upload({documents + 1}, std::move(starts)),
          .num_documents = documents,
          .max_seqlen = sizes.seq};
}

}  // namespace hone
