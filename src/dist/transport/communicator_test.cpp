#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "core/cpu/thread_pool.h"
#include "core/memory/buffer.h"
#include "dist/transport/channel_testing.h"
#include "dist/transport/communicator.h"
#include "dist/transport/cpu_communicator.h"
#include "dist/transport/thread_ranks.h"
#include "dist/transport/transport.h"

namespace hone {
namespace {

/// A rank's stream and its tensor in host memory.
template <class T>
struct RankTensor {
  explicit RankTensor(int64_t count) : values(static_cast<size_t>(count)) {}
  Tensor tensor() {
    return {reinterpret_cast<std::byte*>(values.data()), DTypeOf<T>::value, {static_cast<int64_t>(values.size())}, {}};
  }
  std::vector<T> values;
};

/// Reproducible values of rank `rank`, of magnitudes whose sums have rounding errors.
template <class T>
std::vector<T> values_of(int rank, int64_t count) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) * 7919 + 1);
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto draw = static_cast<int64_t>(random() % 2000001) - 1000000;
    if constexpr (std::is_same_v<T, int64_t>) {
      values.push_back(draw << 32);
    } else {
      values.push_back(static_cast<T>(static_cast<float>(draw) * 1.37e-3f));
    }
  }
  return values;
}

/// The sum in rank order.
template <class T>
std::vector<T> expected_sum(int ranks, int64_t count) {
  using Sum = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
  std::vector<Sum> sum(static_cast<size_t>(count));
  for (int r = 0; r < ranks; ++r) {
    const std::vector<T> values = values_of<T>(r, count);
    for (size_t i = 0; i < values.size(); ++i) {
      sum[i] = r == 0 ? static_cast<Sum>(values[i]) : sum[i] + static_cast<Sum>(values[i]);
    }
  }
  std::vector<T> result;
  for (const Sum& value : sum) result.push_back(static_cast<T>(value));
  return result;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class T>
class Collectives : public ::testing::Test {};
using Types = ::testing::Types<float, double, BFloat16, int64_t>;
TYPED_TEST_SUITE(Collectives, Types);

constexpr int64_t kAwkwardCounts[] = {0, 1, 2, 3, 7, 4099, 65537};

TYPED_TEST(Collectives, AllReduceIsTheSumInRankOrderOnAllRanks) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const int64_t count : kAwkwardCounts) {
      const std::vector<TypeParam> expected = expected_sum<TypeParam>(ranks, count);
      run_ranks(ranks, [&](Communicator& communicator) {
        ThreadPool pool(2);
        Stream stream(Device{}, pool);
        RankTensor<TypeParam> mine(count);
        mine.values = values_of<TypeParam>(communicator.rank(), count);
        communicator.fork(stream);
        communicator.all_reduce_sum(stream, mine.tensor());
        communicator.join(stream);
        communicator.finish(stream);
        EXPECT_TRUE(same_bits(mine.values, expected)) << ranks << " ranks, " << count << " elements";
      });
    }
  }
}

/// Parts of unequal sizes, some empty, out of order, with gaps.
std::vector<Part> awkward_parts(int64_t count, int ranks) {
  std::vector<Part> parts(static_cast<size_t>(ranks));
  int64_t at = 0;
  for (int r = ranks - 1; r >= 0; --r) {
    const int64_t length = r % 3 == 1 ? 0 : std::min(count - at, count / ranks + r);
    parts[static_cast<size_t>(r)] = {at, length};
    at += length;
    if (at < count) ++at;
  }
  return parts;
}

TYPED_TEST(Collectives, ReduceScatterThenAllGatherAreTheAllReduce) {
  for (const int ranks : {2, 4}) {
    for (const int64_t count : kAwkwardCounts) {
      const std::vector<TypeParam> sums = expected_sum<TypeParam>(ranks, count);
      for (const std::vector<Part>& parts : {even_parts(count, ranks), awkward_parts(count, ranks)}) {
        run_ranks(ranks, [&](Communicator& communicator) {
          ThreadPool pool(1);
          Stream stream(Device{}, pool);
          RankTensor<TypeParam> mine(count);
          mine.values = values_of<TypeParam>(communicator.rank(), count);
          communicator.reduce_scatter_sum(stream, mine.tensor(), parts);
          communicator.finish(stream);
          const auto check = [&](const Part& part, const char* when) {
            for (int64_t i = part.offset; i < part.offset + part.count; ++i) {
              ASSERT_EQ(mine.values[static_cast<size_t>(i)], sums[static_cast<size_t>(i)]) << when << ", element " << i;
            }
          };
          check(parts[static_cast<size_t>(communicator.rank())], "its own part after the reduce-scatter");
          communicator.all_gather(stream, mine.tensor(), parts);
          communicator.finish(stream);
          for (const Part& part : parts) check(part, "after the all-gather");
        });
      }
    }
  }
}

TYPED_TEST(Collectives, SumsAndPartsMayBeApart) {
  for (const int ranks : {1, 3}) {
    for (const int64_t count : kAwkwardCounts) {
      const std::vector<TypeParam> sums = expected_sum<TypeParam>(ranks, count);
      for (const std::vector<Part>& parts : {even_parts(count, ranks), awkward_parts(count, ranks)}) {
        run_ranks(ranks, [&](Communicator& communicator) {
          ThreadPool pool(2);
          Stream stream(Device{}, pool);
          const Part& part = parts[static_cast<size_t>(communicator.rank())];
          RankTensor<TypeParam> mine(count), own(part.count), gathered(count);
          mine.values = values_of<TypeParam>(communicator.rank(), count);
          communicator.reduce_scatter_sum(stream, mine.tensor(), parts, own.tensor());
          communicator.all_gather(stream, gathered.tensor(), parts, own.tensor());
          communicator.finish(stream);
          std::vector<TypeParam> expected(static_cast<size_t>(count));  // zero between the parts
          for (const Part& p : parts) std::copy_n(sums.begin() + p.offset, p.count, expected.begin() + p.offset);
          EXPECT_TRUE(same_bits(gathered.values, expected)) << ranks << " ranks, " << count << " elements";
        });
      }
    }
  }
}

TYPED_TEST(Collectives, BroadcastReachesEveryRank) {
  for (const int64_t count : kAwkwardCounts) {
    for (const int root : {0, 2}) {
      const std::vector<TypeParam> expected = values_of<TypeParam>(root, count);
      run_ranks(3, [&](Communicator& communicator) {
        ThreadPool pool(1);
        Stream stream(Device{}, pool);
        RankTensor<TypeParam> mine(count);
        mine.values = values_of<TypeParam>(communicator.rank(), count);
        communicator.broadcast(stream, mine.tensor(), root);
        communicator.finish(stream);
        EXPECT_TRUE(same_bits(mine.values, expected)) << count << " elements from rank " << root;
      });
    }
  }
}

TYPED_TEST(Collectives, SendReceiveMovesWhatOneRankHasForAnother) {
  // Each rank sends two tensors to each other rank, rank 1 none; the larger takes several messages.
  const auto sends = [](int rank) { return rank != 1; };
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{4099}, int64_t{3'000'000}}) {
    run_ranks(3, [&](Communicator& communicator) {
      ThreadPool pool(1);
      Stream stream(Device{}, pool);
      const int own = communicator.rank();
      RankTensor<TypeParam> large(count), small(5);
      large.values = values_of<TypeParam>(own, count);
      small.values = values_of<TypeParam>(own + 3, 5);
      std::vector<RankTensor<TypeParam>> received;
      for (int i = 0; i < 6; ++i) received.emplace_back(i % 2 == 0 ? count : 5);
      std::vector<Transfer> out, in;
      for (int other = 0; other < 3; ++other) {
        if (other == own) continue;
        if (sends(own)) out.insert(out.end(), {{other, large.tensor()}, {other, small.tensor()}});
        if (!sends(other)) continue;
        const auto place = static_cast<size_t>(2 * other);
        in.insert(in.end(), {{other, received[place].tensor()}, {other, received[place + 1].tensor()}});
      }
      communicator.fork(stream);
      communicator.send_receive(stream, out, in);
      communicator.send_receive(stream, {}, {});
      communicator.join(stream);
      communicator.finish(stream);
      for (int other = 0; other < 3; ++other) {
        if (other == own || !sends(other)) continue;
        const auto place = static_cast<size_t>(2 * other);
        EXPECT_TRUE(same_bits(received[place].values, values_of<TypeParam>(other, count))) << other << " to " << own;
        EXPECT_TRUE(same_bits(received[place + 1].values, values_of<TypeParam>(other + 3, 5))) << other;
      }
    });
  }
}

TEST(EvenParts, CoverTheTensorOnce) {
  EXPECT_THAT(even_parts(8, 2), ::testing::ElementsAre(Part{0, 4}, Part{4, 4}));
  EXPECT_THAT(even_parts(5, 3), ::testing::ElementsAre(Part{0, 2}, Part{2, 2}, Part{4, 1}));
  EXPECT_THAT(even_parts(9, 4, 4), ::testing::ElementsAre(Part{0, 4}, Part{4, 4}, Part{8, 1}, Part{9, 0}));
  EXPECT_THAT(even_parts(0, 2), ::testing::ElementsAre(Part{0, 0}, Part{0, 0}));
  EXPECT_THAT(even_parts(1, 3), ::testing::ElementsAre(Part{0, 1}, Part{1, 0}, Part{1, 0}));
}

/// Sums over groups of neighbours, over every second rank, and over all in another lane. Ranks are numbers from 1.
void expect_groups_sum(Communicator& all) {
  const auto neighbours = all.split(all.rank() / 2), others = all.split(all.rank() % 2), lane = all.split(7);
  EXPECT_EQ(neighbours->rank(), all.rank() % 2);
  EXPECT_EQ(others->rank(), all.rank() / 2);
  EXPECT_EQ(lane->rank(), all.rank());
  EXPECT_EQ(lane->size(), all.size());
  EXPECT_EQ(&others->control(), &all.control());
  EXPECT_EQ(others->control().size(), all.size());
  ThreadPool pool(1);
  Stream stream(Device{}, pool);
  const auto sum_of = [&](Communicator& group) {
    RankTensor<float> mine(10'000);  // several messages
    std::fill(mine.values.begin(), mine.values.end(), static_cast<float>(all.rank() + 1));
    group.all_reduce_sum(stream, mine.tensor());
    group.finish(stream);
    EXPECT_THAT(mine.values, ::testing::Each(mine.values.front()));
    return static_cast<int>(mine.values.front());
  };
  for (int round = 0; round < 3; ++round) {
    const int first = all.rank() / 2 * 2 + 1, last = std::min(first + 1, all.size());
    EXPECT_EQ(sum_of(*neighbours), first == last ? first : first + last);
    int expected = 0;
    for (int rank = all.rank() % 2; rank < all.size(); rank += 2) expected += rank + 1;
    EXPECT_EQ(sum_of(*others), expected);
    EXPECT_EQ(sum_of(all), all.size() * (all.size() + 1) / 2);
    EXPECT_EQ(sum_of(*lane), all.size() * (all.size() + 1) / 2);
  }
  EXPECT_EQ(neighbours->calls(), 3);
}

TEST(ThreadRanks, FormGroups) {
  for (const int ranks : {1, 2, 5}) run_ranks(ranks, expect_groups_sum);
}

TEST(ThreadRanks, MayBeCalledInAnotherOrderByLane) {
  // Each lane runs in a stream of its own, as on a GPU: neither waits for the other's ranks.
  run_ranks(2, [](Communicator& all) {
    const auto lane = all.split(0);
    ThreadPool pool(1);
    Stream streams[] = {Stream(Device{}, pool), Stream(Device{}, pool)};
    RankTensor<float> one(100'000), two(100'000);
    std::fill(one.values.begin(), one.values.end(), 1.0f);
    two.values = one.values;
    if (all.rank() == 0) {
      all.all_reduce_sum(streams[0], one.tensor());
      streams[0].synchronize();
      lane->all_reduce_sum(streams[1], two.tensor());
      streams[1].synchronize();
    } else {
      lane->all_reduce_sum(streams[1], two.tensor());
      all.all_reduce_sum(streams[0], one.tensor());
      streams[0].synchronize();
      streams[1].synchronize();
    }
    EXPECT_THAT(one.values, ::testing::Each(2.0f));
    EXPECT_THAT(two.values, ::testing::Each(2.0f));
  });
}

TEST(ThreadRanks, ALostRankEndsGroupsWithoutIt) {
  std::vector<std::string> messages(4);
  EXPECT_THROW(run_ranks(4,
                         [&](Communicator& all) {
                           const auto group = all.split(all.rank() / 2);
                           if (all.rank() == 3) throw std::runtime_error("the GPU fell off the bus");
                           ThreadPool pool(1);
                           Stream stream(Device{}, pool);
                           RankTensor<float> mine(100);
                           try {
                             while (true) {
                               group->all_reduce_sum(stream, mine.tensor());
                               group->finish(stream);
                             }
                           } catch (const Error& error) {
                             messages[static_cast<size_t>(all.rank())] = error.message();
                           }
                         }),
               std::runtime_error);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(messages[static_cast<size_t>(rank)], "rank 3 failed: the GPU fell off the bus");
  }
}

TEST(ThreadRanks, ExchangeHandsOutWhatEachRankSaid) {
  run_ranks(3, [](Communicator& communicator) {
    for (int round = 0; round < 50; ++round) {
      const auto text = [&](int rank) { return std::string(static_cast<size_t>(rank * round), 'x') + "!"; };
      EXPECT_THAT(communicator.control().exchange(text(communicator.rank())),
                  ::testing::ElementsAre(text(0), text(1), text(2)));
      EXPECT_EQ(communicator.control().broadcast(text(communicator.rank()), 1), text(1));
    }
  });
}

TEST(ThreadRanks, AFailedRankEndsTheOthersWithItsReason) {
  std::vector<std::string> messages(3);
  EXPECT_THROW(run_ranks(3,
                         [&](Communicator& communicator) {
                           ThreadPool pool(1);
                           Stream stream(Device{}, pool);
                           RankTensor<float> mine(100000);
                           communicator.all_reduce_sum(stream, mine.tensor());
                           communicator.finish(stream);
                           communicator.control().barrier();  // all ranks have finished the first sum
                           if (communicator.rank() == 1) throw std::runtime_error("no space left on device");
                           try {
                             communicator.all_reduce_sum(stream, mine.tensor());
                             stream.synchronize();
                           } catch (const Error& error) {
                             EXPECT_EQ(error.code(), ExitCode::kDeviceFailed);
                             messages[static_cast<size_t>(communicator.rank())] = error.message();
                           }
                           EXPECT_THROW(communicator.control().check(), Error);
                           EXPECT_THROW(communicator.control().exchange("late"), Error);
                         }),
               std::runtime_error);
  EXPECT_EQ(messages[0], "rank 1 failed: no space left on device");
  EXPECT_EQ(messages[2], messages[0]);
}

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
  // The last size exceeds the kernel's buffers, in both directions at once.
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

TEST_P(TransportOfOneHost, CarriesCollectivesOfGroups) {
  const auto errors = run_channels(environments(4), {}, [](ControlChannel& control) {
    const std::shared_ptr<Control> borrowed(&control, [](Control*) {});
    CpuCommunicator all(borrowed, connect(control), 1 << 20);
    expect_groups_sum(all);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(TransportOfOneHost, ARankThatFailsEndsGroupsWithoutIt) {
  const auto errors = run_channels(environments(4), {}, [](ControlChannel& control) {
    const std::shared_ptr<Control> borrowed(&control, [](Control*) {});
    CpuCommunicator all(borrowed, connect(control), 1 << 20);
    const auto group = all.split(all.rank() / 2);
    if (all.rank() == 3) return control.fail("the disk is full");
    ThreadPool pool(1);
    Stream stream(Device{}, pool);
    RankTensor<float> mine(100'000);
    while (true) {
      group->all_reduce_sum(stream, mine.tensor());
      group->finish(stream);
    }
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr("the disk is full"));
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
