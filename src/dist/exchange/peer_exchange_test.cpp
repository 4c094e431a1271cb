#include "dist/exchange/peer_exchange.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/cpu/thread_pool.h"
#include "core/memory/arena.h"
#include "core/memory/buffer.h"
#include "core/stream/transfer.h"
#include "dist/transport/thread_ranks.h"

namespace hone {
namespace {

constexpr int64_t kWidth = 3;

/// A rank with memory for rows of float32.
struct Exchanging {
  explicit Exchanging(Communicator& group) : ranks(group) {
    std::string why_not;
    scratch.reserve(0);
    exchange = PeerExchange::connect(ranks, stream, {1024, 512}, why_not);
    EXPECT_NE(exchange, nullptr) << why_not;
  }
  Tensor rows(int64_t count) {
    buffers.emplace_back(Device{}, static_cast<size_t>(std::max<int64_t>(count, 1) * kWidth) * sizeof(float));
    return buffers.back().tensor({count, kWidth}, DType::kF32);
  }

  Communicator& ranks;
  ThreadPool pool{1};
  Stream stream{Device{}, pool};
  Arena scratch{Device{}, "test"};
  Context context{stream, scratch};
  std::vector<Buffer> buffers;
  std::unique_ptr<PeerExchange> exchange;
};

void fill(const Tensor& tensor, float value) { std::fill_n(tensor.as<float>(), tensor.numel(), value); }

TEST(PeerExchange, BringsRowsTogetherAndSumsThem) {
  const std::vector<int64_t> rows = {2, 0, 5};
  run_ranks(3, [&](Communicator& ranks) {
    Exchanging e(ranks);
    const auto rank = static_cast<size_t>(ranks.rank());
    for (int call = 1; call <= 11; ++call) {  // more than there are places
      const Tensor own = e.rows(rows[rank]), all = e.rows(7), sum = e.rows(rows[rank]);
      fill(own, static_cast<float>(10 * call + ranks.rank()));
      const TokenExchange::Gathered gathered{own, all};
      e.exchange->await(e.context, e.exchange->gather(e.context, {&gathered, 1}, rows));
      e.stream.synchronize();
      for (int64_t i = 0; i < 7; ++i) {
        EXPECT_EQ(all.as<float>()[i * kWidth], static_cast<float>(10 * call + (i < 2 ? 0 : 2))) << i;
      }
      // Sums are under way until later calls need their places, or until they are awaited.
      fill(all, static_cast<float>(call * (ranks.rank() + 1)));
      const int64_t sums = e.exchange->scatter_sum(e.context, all, sum, rows);
      if (call % 5 > 0) continue;
      e.exchange->await(e.context, sums);
      e.stream.synchronize();
      for (int64_t i = 0; i < rows[rank] * kWidth; ++i) EXPECT_EQ(sum.as<float>()[i], static_cast<float>(6 * call));
    }
    e.exchange->await(e.context, 1000);
    e.stream.synchronize();
    ranks.control().barrier();
  });
}

TEST(PeerExchange, LetsGoOfThoseThatWaitForALostRank) {
  EXPECT_THROW(run_ranks(3,
                         [&](Communicator& ranks) {
                           Exchanging e(ranks);
                           ranks.control().barrier();
                           if (ranks.rank() == 1) throw Error(ExitCode::kDeviceFailed, "it is lost", "", "");
                           const std::vector<int64_t> rows = {2, 2, 2};
                           const Tensor own = e.rows(2), all = e.rows(6);
                           const TokenExchange::Gathered gathered{own, all};
                           while (true) {  // until a call throws
                             e.exchange->await(e.context, e.exchange->gather(e.context, {&gathered, 1}, rows));
                             e.exchange->await(e.context, e.exchange->scatter_sum(e.context, all, own, rows));
                             e.stream.synchronize();
                           }
                         }),
               Error);
}

}  // namespace
}  // namespace hone
