// Shared by the tests of tile orders. Included only by tests.
#pragma once

#include <gtest/gtest.h>

#include <set>

#include "core/base/testing_names.h"

namespace hone::testing {

/// Every element of a matrix has a place of its own, and no place is left: offset(n, k) for rows n and columns k.
template <class Offset>
void expect_every_place_is_taken_once(int64_t rows, int64_t columns, Offset offset) {
  std::set<int64_t> offsets;
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t k = 0; k < columns; ++k) offsets.insert(offset(n, k));
  }
  EXPECT_EQ(offsets.size(), static_cast<size_t>(rows * columns));
  EXPECT_EQ(*offsets.begin(), 0);
  EXPECT_EQ(*offsets.rbegin(), rows * columns - 1);
}

}  // namespace hone::testing
