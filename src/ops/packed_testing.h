// Packed documents for tests of ops that separate them.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/op_testing.h"
#include "ops/packed_sequences.h"

namespace hone::testing {

/// Documents of these lengths, as arguments of an op.
struct PackedDocuments {
  std::vector<int32_t> offsets;
  std::shared_ptr<TestTensor<int32_t>> memory;
  PackedSequences sequences;

  explicit PackedDocuments(const std::vector<int>& lengths) : offsets{0} {
    for (const int length : lengths) offsets.push_back(offsets.back() + length);
    memory = std::make_shared<TestTensor<int32_t>>(offsets, Shape{static_cast<int64_t>(offsets.size())});
    sequences = {.cu_seqlens = *memory,
                 .num_documents = static_cast<int64_t>(lengths.size()),
                 .max_seqlen = *std::max_element(lengths.begin(), lengths.end())};
  }
  int64_t tokens() const { return offsets.back(); }
};

}  // namespace hone::testing
