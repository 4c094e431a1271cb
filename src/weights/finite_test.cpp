#include "weights/finite.h"

#include <gtest/gtest.h>

#include <limits>
#include <span>
#include <vector>

#include "core/error.h"

namespace hone {
namespace {

template <class T>
void expect_found() {
  const DType dtype = DTypeOf<T>::value;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float largest = dtype == DType::kF16 ? 65504.0f : 3.38953139e38f;
  for (size_t count = 0; count < 20; ++count) {
    std::vector<T> values(count, T(-largest));
    for (size_t i = 0; i < count; i += 3) values[i] = T(largest);
    const auto finite = [&] {
      return all_finite(dtype, std::as_bytes(std::span(values)).data(), static_cast<int64_t>(count));
    };
    EXPECT_TRUE(finite()) << count;
    for (size_t i = 0; i < count; ++i) {
      for (const float lost : {infinity, -infinity, nan, -nan}) {
        const T before = values[i];
        values[i] = T(lost);
        EXPECT_FALSE(finite()) << i << " of " << count;
        values[i] = before;
      }
    }
  }
}

TEST(Finite, ANumberThatIsNotIsFoundAtAnyPlace) {
  expect_found<float>();
  expect_found<BFloat16>();
  expect_found<Float16>();
}

TEST(Finite, WhatIsNotIsNamed) {
  const float values[] = {1, std::numeric_limits<float>::infinity()};
  EXPECT_NO_THROW(require_finite("x", DType::kF32, std::as_bytes(std::span(values)).data(), 1));
  EXPECT_THROW(require_finite("x", DType::kF32, std::as_bytes(std::span(values)).data(), 2), Error);
}

}  // namespace
}  // namespace hone
