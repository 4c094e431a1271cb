// For tests of how often results are rounded: matrices on the device under test whose values are known exactly, and a
// check that terms far below half a unit of a bfloat16 result are not rounded away.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/op_testing.h"

namespace hone::testing {

/// A matrix of float64 values that its tensor on the device holds exactly.
struct ExactMatrix {
  int64_t rows, columns;
  Values values;
  Buffer memory;
  Tensor tensor;

  ExactMatrix(int64_t r, int64_t c, DType dtype, uint64_t key, double scale = 1.0)
      : rows(r),
        columns(c),
        values(testing::rounded(random_argument({r, c}, key, scale).values, dtype)),
        memory(test_device(), static_cast<size_t>(r * c) * size_of(dtype)),
        tensor(memory.tensor({r, c}, dtype)) {
    dispatch_float(dtype, [&](auto element) {
      using T = decltype(element);
      std::vector<T> elements;
      for (double value : values) elements.push_back(T(static_cast<float>(value)));
      copy_from_host(tensor, elements.data(), tensor.bytes());
    });
  }

  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * columns + c)]; }
  Values read() const {
    Values result;
    dispatch_float(tensor.dtype, [&](auto element) {
      for (auto value : host_values<decltype(element)>(tensor)) {
        result.push_back(static_cast<double>(static_cast<float>(value)));
      }
    });
    return result;
  }
};

/// Half the distance of neighbouring bfloat16 values at a number of this size.
inline double half_unit(double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(1.0, exponent - 9);
}

/// Σ_k a(i, k) b(k, j), and Σ |a b|.
struct ExactProduct {
  Values sum, size;

  template <class A, class B>
  ExactProduct(int64_t m, int64_t n, int64_t k, A a, B b) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double total = 0, absolute = 0;
        for (int64_t l = 0; l < k; ++l) {
          const double term = a(i, l) * b(l, j);
          total += term;
          absolute += std::abs(term);
        }
        sum.push_back(total);
        size.push_back(absolute);
      }
    }
  }
};

/// `rest` is the exact sum of all terms but the adapter's, without rounding; `terms` the sum of the sizes of its terms.
/// If `before` is not empty, the sum of the others is rounded before it is added to these of the terms.
inline void expect_rounded_once(const Values& got, const Values& rest, const Values& terms, const ExactProduct& adapter,
                                const std::string& what, const Values& before = {}) {
  double arrived = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double want = rest[i] + adapter.sum[i];
    // The factors of the adapter may be rounded to bfloat16, and so is its product; a float32 sum has few terms.
    const double exact = 3 * 0x1p-8 * adapter.size[i] + 0x1p-18 * (terms[i] + adapter.size[i]);
    double bound = (1 + 1e-3) * half_unit(std::abs(want) + exact) + exact;
    if (!before.empty()) bound += half_unit(std::abs(want - before[i]) + exact);
    ASSERT_LE(std::abs(got[i] - want), bound) << what << " element " << i << " is " << got[i] << ", not " << want;
    arrived += (adapter.sum[i] > 0 ? 1 : -1) * (got[i] - rest[i]);
    size += std::abs(adapter.sum[i]);
  }
  const double count = static_cast<double>(got.size());
  EXPECT_LT(size / count, 0.35 * half_unit(1.0)) << what << ": the adapter's part must be small to prove anything";
  // Roundings are off by less than 2.5e-3 (root mean square) each, of results of order 1; five standard deviations.
  const double roundings = before.empty() ? count : 2 * count;
  EXPECT_NEAR(arrived / size, 1.0, 5 * 2.5e-3 * std::sqrt(roundings) / size) << what;
}

}  // namespace hone::testing
