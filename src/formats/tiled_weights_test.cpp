#include "formats/tiled_weights.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/cpu/cpu_features.h"
#include "core/cpu/thread_pool.h"
#include "formats/tile_order_testing.h"

namespace hone {
namespace {

TEST(TiledWeights, TilesHold16RowsInPairsOfColumns) {
  constexpr int64_t kRows = 64, kColumns = 96;
  EXPECT_EQ(tile_offset(0, 1, kColumns), 1);
  EXPECT_EQ(tile_offset(1, 0, kColumns), 2);
  EXPECT_EQ(tile_offset(0, 2, kColumns), 32);
  EXPECT_EQ(tile_offset(15, 31, kColumns), 511);
  EXPECT_EQ(tile_offset(0, 32, kColumns), 512);
  EXPECT_EQ(tile_offset(16, 0, kColumns), 3 * 512);
  testing::expect_every_place_is_taken_once(kRows, kColumns,
                                            [](int64_t n, int64_t k) { return tile_offset(n, k, kColumns); });
}

TEST(TiledWeights, FitWhereStripsOfBothSidesDo) {
  EXPECT_TRUE(fits_tiles({3, 64, 32}));
  EXPECT_FALSE(fits_tiles({3, 96, 32})) << "gate and up of 48 rows";
  EXPECT_FALSE(fits_tiles({3, 64, 48}));
  EXPECT_TRUE(fits_tiles({64, 64}));
  EXPECT_FALSE(fits_tiles({64}));
  EXPECT_FALSE(gains_from_tiles(Device{}, DType::kF32, {3, 64, 32}));
  EXPECT_FALSE(gains_from_tiles(Device{DeviceKind::kCuda, 0}, DType::kBF16, {3, 64, 32}));
  EXPECT_EQ(gains_from_tiles(Device{}, DType::kBF16, {3, 64, 32}), active_isa() == Isa::kAmx);
}

TEST(TiledWeights, AreOrderedWhereTheyLie) {
  constexpr int64_t kExperts = 3, kRows = 64, kColumns = 160;
  std::vector<BFloat16> rows(kExperts * kRows * kColumns);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].bits = static_cast<uint16_t>(i * 40503 >> 3);
  for (int threads : {1, 3}) {
    std::vector<BFloat16> tiles = rows;
    ThreadPool pool(threads);
    order_as_tiles(pool, {reinterpret_cast<std::byte*>(tiles.data()), DType::kBF16, {kExperts, kRows, kColumns}, {}});
    for (int64_t e = 0; e < kExperts; ++e) {
      for (int64_t n = 0; n < kRows; ++n) {
        for (int64_t k = 0; k < kColumns; ++k) {
          const int64_t expert = e * kRows * kColumns;
          ASSERT_EQ(tiles[static_cast<size_t>(expert + tile_offset(n, k, kColumns))].bits,
                    rows[static_cast<size_t>(expert + n * kColumns + k)].bits)
              << e << ' ' << n << ' ' << k;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hone
