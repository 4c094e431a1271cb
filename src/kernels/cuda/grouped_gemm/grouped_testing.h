// Helpers for tests of grouped products: matrices on the device and in float64, groups of rows, and error bounds.
#pragma once

#include <cmath>
#include <numeric>

#include "core/cpu/thread_pool.h"
#include "kernels/cuda/grouped_gemm/grouped_gemm.h"
#include "kernels/op_testing.h"

namespace hone::testing {

/// A matrix of values in device memory, and as float64.
class GroupedMatrix {
 public:
  GroupedMatrix(Shape shape, uint64_t key, DType dtype, double scale = 1.0)
      : GroupedMatrix(shape, rounded(random_argument(shape, key, scale).values, dtype), dtype) {}
  GroupedMatrix(Shape shape, Values values, DType dtype)
      : values_(std::move(values)),
        buffer_(test_device(), std::max<size_t>(values_.size() * size_of(dtype), 1)),
        tensor_(buffer_.tensor(shape, dtype)) {
    dispatch_float(dtype, [&](auto element) {
      using T = decltype(element);
      std::vector<T> converted;
      for (double value : values_) converted.push_back(T(static_cast<float>(value)));
      copy_from_host(tensor_, converted.data(), converted.size() * sizeof(T));
    });
  }
  /// Filled with NaN, so that elements that are not written fail the test.
  static GroupedMatrix unwritten(Shape shape, DType dtype) {
    return {shape, Values(static_cast<size_t>(shape.numel()), std::nan("")), dtype};
  }

  operator const Tensor&() const { return tensor_; }
  double operator[](int64_t i) const { return values_[static_cast<size_t>(i)]; }
  /// Reads the device memory back.
  void read() {
    size_t i = 0;
    dispatch_float(tensor_.dtype, [&](auto element) {
      for (auto value : host_values<decltype(element)>(tensor_)) {
        values_[i++] = static_cast<double>(static_cast<float>(value));
      }
    });
  }

 private:
  Values values_;
  Buffer buffer_;
  Tensor tensor_;
};

/// A sum, and the sum of magnitudes for its error bound.
struct GroupedSum {
  double value = 0, magnitude = 0;
  void add(double a, double b) {
    value += a * b;
    magnitude += std::abs(a * b);
  }
};

/// Error bound of a float32 sum of n products, where each addition may lose 2^-22 of the magnitudes so far: tensor
/// cores align addends to the largest and truncate.
inline double sum_error(const GroupedSum& sum, int64_t n) {
  return static_cast<double>(n + 1) * 0x1p-22 * sum.magnitude;
}
inline double rounding(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : 0x1p-23; }
/// Sorted rows, each with a token; every token has several rows.
struct GroupedRows {
  int64_t count, tokens;
  std::vector<int64_t> group;  // group of each row
  std::vector<int32_t> token;
  TestTensor<int64_t> offsets;
  TestTensor<int32_t> token_tensor;

  explicit GroupedRows(const std::vector<int64_t>& groups)
      : count(std::accumulate(groups.begin(), groups.end(), int64_t{0})),
        tokens(count / 2 + 1),
        offsets(starts(groups), {static_cast<int64_t>(groups.size()) + 1}),
        token_tensor(gathered(count, tokens), {count}) {
    for (size_t e = 0; e < groups.size(); ++e) {
      group.insert(group.end(), static_cast<size_t>(groups[e]), static_cast<int64_t>(e));
    }
    token = gathered(count, tokens);
  }
  cuda::RowGroups groups() const { return {offsets, count}; }

 private:
  static std::vector<int64_t> starts(const std::vector<int64_t>& groups) {
    std::vector<int64_t> offsets(groups.size() + 1);
    std::partial_sum(groups.begin(), groups.end(), offsets.begin() + 1);
    return offsets;
  }
  static std::vector<int32_t> gathered(int64_t rows, int64_t tokens) {
    std::vector<int32_t> token;
    for (int64_t r = 0; r < rows; ++r) token.push_back(static_cast<int32_t>(r * 7 % tokens));
    return token;
  }
};

/// A stream, and scratch memory sized by a dry call.
struct GroupedRun {
  ThreadPool pool{1};
  TestStream stream{pool};
  Arena arena{test_device(), "scratch"};
  Context context{stream, arena};

  template <class Args>
  void run(void (*op)(const Context&, const Args&), const Args& args) {
    arena.begin_dry();
    op(context, args);
    arena.reserve(arena.high_water());
    op(context, args);
    stream.synchronize();
  }
};

/// Groups with no rows, one row, one less than a tile, a tile, one more, and several tiles.
inline const std::vector<int64_t> kUneven = {0, 1, 63, 64, 0, 65, 130, 5, 127, 128, 257, 0};
inline const std::vector<int64_t> kTiny = {3, 0, 2, 1};

inline void expect_within(double got, double want, double bound, const char* what, int64_t at) {
  if (!(std::abs(got - want) <= bound)) {
    ADD_FAILURE() << what << " " << at << ": got " << got << ", want " << want << " within " << bound;
  }
}

}  // namespace hone::testing
