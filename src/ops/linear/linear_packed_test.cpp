#include <string>
#include <vector>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"
#include "ops/linear/linear.h"
#include "ops/unpack_weights/unpack_weights.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;
using testing::TestTensor;

struct PackedSizes {
  int64_t rows, in, out;
};

template <class T>
TestTensor<T> normal_numbers(const Shape& shape, uint64_t seed) {
  PhiloxSequence random(seed);
  std::vector<T> values(static_cast<size_t>(shape.numel()));
  for (T& value : values) value = T(0.5f * random.normal());
  return TestTensor<T>(values, shape);
}

class LinearPacked : public ::testing::TestWithParam<const PackedFormat*> {
 protected:
  /// Compares y with a weight that is unpacked in panels to that with its unpacked values, bit by bit.
  template <class T>
  void expect_bits_of_dense(const PackedSizes& sizes, int threads, bool adapted) const {
    constexpr int64_t kRank = 4;
    ThreadPool pool(threads);
    TestStream stream(pool);
    Arena scratch(test_device(), "scratch");
    const Context context(stream, scratch);
    const PackedLayout layout = GetParam()->layout(sizes.out, sizes.in);
    std::vector<float> values(static_cast<size_t>(layout.elements()));
    PhiloxSequence random(3);
    for (float& value : values) value = 0.02f * random.normal();
    std::vector<uint8_t> codes(static_cast<size_t>(layout.bytes));
    GetParam()->pack(layout, values.data(), reinterpret_cast<std::byte*>(codes.data()));
    const TestTensor<uint8_t> chunks(codes, {1, layout.bytes});
    const TestTensor<T> dense(std::vector<T>(values.size()), {sizes.out, sizes.in});
    const auto x = normal_numbers<T>({sizes.rows, sizes.in}, 5), bias = normal_numbers<T>({sizes.out}, 6);
    const auto xa = normal_numbers<float>({sizes.rows, kRank}, 7), b = normal_numbers<float>({sizes.out, kRank}, 8);
    const auto product = [&](const WeightView& w) {
      const TestTensor<T> y(std::vector<T>(static_cast<size_t>(sizes.rows * sizes.out), T(7.0f)),
                            {sizes.rows, sizes.out});
      LinearArgs args{.x = x, .w = w, .bias = bias, .scaling = 0.5f, .y = y};
      if (adapted) {
        args.xa = xa;
        args.lora_b = b;
      }
      linear(context, args);
      return stream.download<T>(y);
    };
    scratch.reserve(size_t{4} << 20);  // panels of the largest weight
    unpack_weights(context, {layout, chunks, dense});
    const Tensor shape{nullptr, DTypeOf<T>::value, {sizes.out, sizes.in}, test_device()};
    const auto packed = product(
        {.payload = shape, .format = GetParam(), .packed = PackedWeight{layout, chunks, shape.dtype, GetParam()}});
    const auto expected = product({.payload = dense});
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(static_cast<float>(packed[i]), static_cast<float>(expected[i]))
          << i << ": " << sizes.rows << " rows, " << sizes.in << " to " << sizes.out << ", threads " << threads;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, LinearPacked, ::testing::ValuesIn(packed_formats()),
                         [](const auto& format) { return std::string(format.param->name()); });

TEST_P(LinearPacked, UnpackedInPanelsHasTheBitsOfTheDenseWeight) {
  if (test_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "the way of a CPU";
  for (const PackedSizes& sizes :
       {PackedSizes{1, 128, 5}, {8, 384, 500}, {9, 4096, 70}, {kMostRowsOfPanels, 640, 96}}) {
    for (const int threads : {1, 3}) {
      for (const bool adapted : {false, true}) {
        expect_bits_of_dense<float>(sizes, threads, adapted);
        expect_bits_of_dense<BFloat16>(sizes, threads, adapted);
      }
    }
  }
}

}  // namespace
}  // namespace hone
