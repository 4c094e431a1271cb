#include "dist/exchange/peer_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "core/cpu/thread_pool.h"
#include "dist/control/descriptor_exchange.h"
#include "dist/transport/elsewhere_testing.h"
#include "dist/transport/thread_ranks.h"
#include "dist/transport/transport.h"

namespace hone {
namespace {

TEST(PeerMemory, ReadsWhatRanksHaveWritten) {
  const size_t page = mapping_granularity(Device{});
  run_ranks(3, [&](Communicator& ranks) {
    ThreadPool pool(1);
    Stream stream(Device{}, pool);
    const auto rank = static_cast<size_t>(ranks.rank());
    const MappableMemory own(Device{}, std::vector<size_t>(rank + 1, page));
    AddressRange addresses(Device{}, own.size());
    ASSERT_EQ(addresses.map(0, own, 0, own.size()), "");
    const std::vector<size_t> offsets = {0, own.size() - 8};
    stream.enqueue([&](ThreadPool&) {  // connect() waits for it
      addresses.data()[0] = std::byte(10 + rank);
      addresses.data()[own.size() - 8] = std::byte(20 + rank);
    });
    std::string why_not;
    const auto peers = PeerMemory::connect(ranks.control(), {0, 3}, stream, own, offsets, why_not);
    ASSERT_NE(peers, nullptr) << why_not;
    for (int other = 0; other < 3; ++other) {
      EXPECT_EQ(*peers->at(other, 0), std::byte(10 + other));
      EXPECT_EQ(*peers->at(other, 1), std::byte(20 + other));
    }
    ranks.control().barrier();
    addresses.data()[0] = std::byte(30 + rank);
    ranks.control().barrier();
    EXPECT_EQ(*peers->at((ranks.rank() + 1) % 3, 0), std::byte(30 + (rank + 1) % 3));
    ranks.control().barrier();
  });
}

TEST(DescriptorExchange, GivesEveryRankTheDescriptorsOfAll) {
  run_ranks(4, [](Communicator& ranks) {
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe(ends.data()), 0);
    const Descriptor in(ends[0]);
    std::vector<Descriptor> out;
    out.emplace_back(ends[1]);
    for (int i = 0; i < ranks.rank(); ++i) out.emplace_back(dup(ends[1]));  // ranks have one to four
    std::vector<std::vector<Descriptor>> all(4);
    const auto take = [&](int rank, const Descriptor& other) {
      all[static_cast<size_t>(rank)].emplace_back(dup(other.descriptor()));
    };
    ASSERT_EQ(exchange_descriptors(ranks.control(), {0, 4}, out, take), "");
    for (size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(all[rank].size(), rank + 1);
    const char mine = static_cast<char>('a' + ranks.rank());
    for (const auto& others : all) EXPECT_EQ(write(others.back().descriptor(), &mine, 1), 1);
    ranks.control().barrier();
    std::array<char, 4> read_back{};
    EXPECT_EQ(read(in.descriptor(), read_back.data(), read_back.size()), 4);
    std::sort(read_back.begin(), read_back.end());
    EXPECT_EQ(std::string(read_back.data(), 4), "abcd");
  });
}

TEST(PeerMemory, OfAGroupIsReadByItsRanks) {
  const size_t page = mapping_granularity(Device{});
  run_ranks(4, [&](Communicator& ranks) {
    ThreadPool pool(1);
    Stream stream(Device{}, pool);
    const int rank = ranks.rank(), first = rank / 2 * 2;
    const MappableMemory own(Device{}, std::vector<size_t>{page});
    AddressRange addresses(Device{}, own.size());
    ASSERT_EQ(addresses.map(0, own, 0, own.size()), "");
    addresses.data()[0] = std::byte(10 + rank);
    std::string why_not;
    const auto peers = PeerMemory::connect(ranks.control(), {first, 2}, stream, own, {0}, why_not);
    ASSERT_NE(peers, nullptr) << why_not;
    for (int place = 0; place < 2; ++place) EXPECT_EQ(*peers->at(place, 0), std::byte(10 + first + place));
    ranks.control().barrier();
  });
}

TEST(DescriptorExchange, SaysWhyItIsNotPossible) {
  run_ranks(2, [](Communicator& ranks) {
    const MappableMemory memory(Device{}, {mapping_granularity(Device{})});
    SecondElsewhere elsewhere(ranks.control());
    EXPECT_EQ(exchange_descriptors(elsewhere, {0, 2}, memory.share(), [](int, const Descriptor&) {}),
              "ranks are on several hosts");
  });
}

TEST(DescriptorExchange, EndsForAllIfOneGroupIsOnSeveralHosts) {
  run_ranks(4, [](Communicator& ranks) {
    const MappableMemory memory(Device{}, {mapping_granularity(Device{})});
    SecondElsewhere elsewhere(ranks.control());
    const RankRange group{ranks.rank() / 2 * 2, 2};
    EXPECT_EQ(exchange_descriptors(elsewhere, group, memory.share(), [](int, const Descriptor&) {}),
              "ranks are on several hosts");
  });
}

}  // namespace
}  // namespace hone
