#include "ops/unpack_weights/unpack_weights.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;

class UnpackWeights : public ::testing::TestWithParam<const PackedFormat*> {
 protected:
  UnpackWeights() : pool_(2), stream_(pool_), scratch_(test_device(), "scratch"), context_(stream_, scratch_) {
    scratch_.reserve(0);
  }

  /// Chunks of random matrices, and their values.
  struct Stack {
    std::vector<std::byte> chunks;
    std::vector<float> values;
    PackedLayout layout;
  };
  Stack random_stack(int64_t matrices, int64_t rows, int64_t columns) const {
    Stack stack;
    stack.layout = GetParam()->layout(rows, columns);
    const auto elements = static_cast<size_t>(stack.layout.elements()), bytes = static_cast<size_t>(stack.layout.bytes);
    stack.chunks.resize(static_cast<size_t>(matrices) * bytes);
    stack.values.resize(static_cast<size_t>(matrices) * elements);
    PhiloxSequence random(17);
    for (size_t m = 0; m < static_cast<size_t>(matrices); ++m) {
      float* values = stack.values.data() + m * elements;
      for (size_t i = 0; i < elements; ++i) values[i] = (m % 2 == 0 ? 0.02f : 3.0f) * random.normal();
      GetParam()->pack(stack.layout, values, stack.chunks.data() + m * bytes);
      unpack(stack.layout, stack.chunks.data() + m * bytes, 0, stack.layout.elements(), values);
    }
    return stack;
  }

  template <class T>
  void expect_values_of(int64_t matrices, int64_t rows, int64_t columns) {
    const Stack stack = random_stack(matrices, rows, columns);
    const Buffer codes(test_device(), stack.chunks.size()), dense(test_device(), stack.values.size() * sizeof(T));
    const Tensor from = codes.tensor({matrices, stack.layout.bytes}, DType::kU8);
    const Tensor to = dense.tensor({matrices, rows, columns}, DTypeOf<T>::value);
    copy_from_host(from, stack.chunks.data(), stack.chunks.size());
    unpack_weights(context_, {stack.layout, from, to});
    const std::vector<T> values = stream_.download<T>(to);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(static_cast<float>(values[i]), static_cast<float>(T(stack.values[i]))) << i << " of " << columns;
    }
  }

  ThreadPool pool_;
  TestStream stream_;
  Arena scratch_;
  Context context_;
};

INSTANTIATE_TEST_SUITE_P(Formats, UnpackWeights, ::testing::ValuesIn(packed_formats()),
                         [](const auto& format) { return std::string(format.param->name()); });

TEST_P(UnpackWeights, GivesTheValuesOfTheFormatInBothDtypes) {
  for (const auto& [matrices, rows, columns] : {std::array<int64_t, 3>{1, 1, 128}, {3, 40, 384}, {5, 130, 256}}) {
    expect_values_of<float>(matrices, rows, columns);
    expect_values_of<BFloat16>(matrices, rows, columns);
  }
}

TEST_P(UnpackWeights, TakesRowsOfAnyLength) {
  for (const int64_t columns : {1, 37, 72, 200}) {
    if (!GetParam()->fits({3, columns})) continue;
    expect_values_of<float>(4, 3, columns);
    expect_values_of<BFloat16>(4, 3, columns);
  }
}

TEST_P(UnpackWeights, TakesMoreMatricesThanAGridHasRows) { expect_values_of<BFloat16>(65541, 1, 128); }

}  // namespace
}  // namespace hone
