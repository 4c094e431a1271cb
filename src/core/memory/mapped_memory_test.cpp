#include "core/memory/mapped_memory.h"

#include <gtest/gtest.h>

#include <cstring>

namespace hone {
namespace {

TEST(MappedMemory, RangesConsistOfPiecesThatTheyMayShare) {
  const size_t page = mapping_granularity(Device{});
  const MappableMemory own(Device{}, {page, page}), slot(Device{}, {page, page, page});
  AddressRange first(Device{}, 4 * page), second(Device{}, 3 * page);
  EXPECT_EQ(first.map(0, slot, 0, page), "");
  EXPECT_EQ(first.map(page, own, 0, page), "");
  EXPECT_EQ(first.map(2 * page, slot, page, 2 * page), "");
  EXPECT_EQ(second.map(0, own, page, page), "");
  EXPECT_EQ(second.map(page, slot, page, 2 * page), "");
  EXPECT_EQ(first.data()[page], std::byte{0});
  std::memset(first.data(), 1, 4 * page);
  EXPECT_EQ(second.data()[0], std::byte{0}) << "its own part";
  EXPECT_EQ(second.data()[page], std::byte{1}) << "the memory that both use";
  std::memset(second.data(), 2, 3 * page);
  EXPECT_EQ(first.data()[0], std::byte{1});
  EXPECT_EQ(first.data()[page], std::byte{1});
  EXPECT_EQ(first.data()[2 * page], std::byte{2});
}

TEST(MappedMemory, OutlivesItsOwnerInRangesAndImports) {
  const size_t page = mapping_granularity(Device{});
  AddressRange range(Device{}, page), other(Device{}, page);
  MappableMemory imported{Device{}};
  {
    const MappableMemory memory(Device{}, {page, 2 * page});
    EXPECT_EQ(memory.size(), 3 * page);
    EXPECT_EQ(range.map(0, memory, 0, page), "");
    EXPECT_EQ(imported.import(memory.share()[0], page), "");
  }
  range.data()[7] = std::byte{42};
  EXPECT_EQ(other.map(0, imported, 0, page), "");
  EXPECT_EQ(other.data()[7], std::byte{42});
  AddressRange moved = std::move(other);
  imported = MappableMemory();
  EXPECT_EQ(moved.data()[7], std::byte{42});
}

}  // namespace
}  // namespace hone
