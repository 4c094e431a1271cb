#include "dist/shared_memory_transport.h"
#include "dist/tcp_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "core/thread_pool.h"
#include "dist/channel_testing.h"
#include "dist/pairwise.h"

namespace hone {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::vector<std::byte> bytes_of(int from, int to, size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + static_cast<size_t>(from * 7 + to));
  return bytes;
}

struct Way {
  const char* name;
  std::unique_ptr<Transport> (*connect)(ControlChannel& control);
};

class TransportOfOneHost : public ::testing::TestWithParam<Way> {
 protected:
  static std::unique_ptr<Transport> connect(ControlChannel& control) {
    std::unique_ptr<Transport> transport = GetParam().connect(control);
    EXPECT_TRUE(transport);
    return transport;
  }
};
INSTANTIATE_TEST_SUITE_P(By, TransportOfOneHost,
                         ::testing::Values(Way{"Tcp", [](ControlChannel& control) { return connect_tcp(control); }},
                                           Way{"SharedMemory",
                                               [](ControlChannel& control) { return connect_shared_memory(control); }}),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(TransportOfOneHost, MessagesOfAllSizesArriveInOrder) {
  // The last ones are larger than the kernel keeps, in both directions at once.
  const std::vector<size_t> sizes = {1, 0, 7, 4096, 65537, 12 << 20};
  const auto errors = run_channels(environments(4), {}, [&](ControlChannel& control) {
    const std::unique_ptr<Transport> transport = connect(control);
    const int own = transport->rank();
    ASSERT_EQ(transport->size(), 4);
    std::vector<std::vector<std::byte>> sent, expected, received;
    for (int round = 0; round < 3; ++round) {
      for (int peer = 0; peer < 4; ++peer) {
        if (peer == own) continue;
        for (const size_t size : sizes) {
          sent.push_back(bytes_of(own, peer, size));
          expected.push_back(bytes_of(peer, own, size));
          received.emplace_back(size);
          transport->send(peer, sent.back().data(), size);
          transport->receive(peer, received.back().data(), size);
        }
      }
      transport->wait();
    }
    EXPECT_TRUE(received == expected) << "rank " << own;
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(TransportOfOneHost, CarriesCollectives) {
  const auto errors = run_channels(environments(3), {}, [](ControlChannel& control) {
    const std::unique_ptr<Transport> transport = connect(control);
    PairwiseCollectives collectives(*transport, 1 << 20);
    ThreadPool pool(1);
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{4099}, int64_t{1000003}}) {
      std::vector<float> values(static_cast<size_t>(count), static_cast<float>(transport->rank() + 1));
      collectives.all_reduce_sum({reinterpret_cast<std::byte*>(values.data()), DType::kF32, {count}, {}}, pool);
      EXPECT_THAT(values, Each(6.0f));
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(TransportOfOneHost, ARankThatFailsIsNamedToWhoWaitsForIt) {
  const auto errors = run_channels(environments(3), {}, [](ControlChannel& control) {
    const std::unique_ptr<Transport> transport = connect(control);
    if (transport->rank() == 1) return control.fail("the disk is full");
    std::vector<std::byte> bytes(1 << 20);
    transport->receive(1, bytes.data(), bytes.size());
    transport->wait();
  });
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr("rank 1 ("));
    EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr("failed: the disk is full"));
  }
}

TEST_P(TransportOfOneHost, NoRankLeavesBeforeTheOthersDo) {
  std::atomic<bool> rank_1_leaves{false};
  const auto errors = run_channels(environments(2), {}, [&](ControlChannel& control) {
    std::unique_ptr<Transport> transport = connect(control);
    if (control.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      rank_1_leaves = true;
    }
    transport.reset();
    EXPECT_TRUE(rank_1_leaves);
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace hone
