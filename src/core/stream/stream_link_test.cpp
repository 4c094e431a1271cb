#include "core/stream/stream_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "core/cuda/cuda_device.h"
#include "core/memory/host_buffer.h"
#include "core/stream/transfer.h"

namespace hone {
namespace {

/// The devices beside which a CPU can be on this machine.
std::vector<Device> devices() {
  std::vector<Device> result = {Device{}};
  if (cuda::device_count() > 0) result.push_back({DeviceKind::kCuda, 0});
  return result;
}

struct Pair {
  explicit Pair(Device on) : device(on, device_pool), host(Device{}, host_pool), link(device, host) {}

  ThreadPool device_pool{1}, host_pool{2};
  Stream device, host;
  StreamLink link;
};

void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

TEST(StreamLink, EachSideRunsAfterTheMarksOfTheOther) {
  constexpr int64_t kCount = 1 << 14, kRounds = 20;
  for (const Device on : devices()) {
    const Buffer on_device(on, kCount * sizeof(int32_t));
    const HostBuffer between(on, kCount * sizeof(int32_t));
    const Tensor there = on_device.tensor({kCount}, DType::kI32), here = between.tensor({kCount}, DType::kI32);
    int64_t wrong = 0;
    Pair pair(on);
    // The host counts up, and the device takes the count and gives it back.
    for (int32_t round = 0; round < kRounds; ++round) {
      pair.host.enqueue([=, &wrong](ThreadPool&) {
        if (round == 1) pause();
        for (int64_t i = 0; i < kCount; ++i) wrong += here.as<int32_t>()[i] != round ? 1 : 0;
        for (int64_t i = 0; i < kCount; ++i) here.as<int32_t>()[i] = round + 1;
      });
      pair.link.await(Side::kHost, pair.link.mark(Side::kHost));
      pair.link.copy(there, here);
      const int64_t taken = pair.link.mark(Side::kDevice);
      pair.link.await(Side::kDevice, taken);
      pair.host.enqueue([=](ThreadPool&) { std::memset(here.data, 0, here.bytes()); });
      pair.link.await(Side::kHost, pair.link.mark(Side::kHost));
      pair.link.copy(here, there);
      pair.link.await(Side::kDevice, pair.link.mark(Side::kDevice));
      pair.link.await(Side::kDevice, taken);  // has been waited for
    }
    pair.host.synchronize();
    pair.device.synchronize();
    EXPECT_EQ(wrong, 0);
    std::vector<int32_t> last(kCount);
    copy_to_host(last.data(), there);
    EXPECT_THAT(last, ::testing::Each(kRounds));
  }
}

TEST(StreamLink, OldMarksAreReached) {
  for (const Device on : devices()) {
    Pair pair(on);
    for (int i = 0; i < 100; ++i) pair.link.mark(Side::kDevice);
    pair.link.await(Side::kDevice, 1);
    pair.link.await(Side::kDevice, 0);
    pair.host.synchronize();
  }
}

template <class Work>
std::string failure(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(StreamLink, AFailureOfTheHostReleasesTheDevice) {
  for (const Device on : devices()) {
    Pair pair(on);
    pair.host.enqueue([](ThreadPool&) {
      pause();
      throw std::runtime_error("experts failed");
    });
    // The mark itself is skipped, and so is a later one.
    for (int i = 0; i < 2; ++i) pair.link.await(Side::kHost, pair.link.mark(Side::kHost));
    const std::string seen = failure([&] { pair.device.synchronize(); });  // returns
    if (on.kind == DeviceKind::kCpu) {
      EXPECT_THAT(seen, ::testing::HasSubstr("the work beside this has failed"));
    } else {
      EXPECT_EQ(seen, "");
    }
    EXPECT_EQ(failure([&] { pair.host.synchronize(); }), "experts failed");
  }
}

TEST(StreamLink, AFailureOfTheDeviceReleasesTheHost) {
  Pair pair({});
  std::atomic<bool> ran = false;
  pair.device.enqueue([](ThreadPool&) { throw std::runtime_error("the device failed"); });
  pair.link.await(Side::kDevice, pair.link.mark(Side::kDevice));
  pair.host.enqueue([&](ThreadPool&) { ran = true; });
  EXPECT_THROW(pair.host.synchronize(), OtherStreamFailed);
  EXPECT_FALSE(ran);
  EXPECT_EQ(failure([&] { pair.device.synchronize(); }), "the device failed");
  // Both go on.
  pair.link.await(Side::kDevice, pair.link.mark(Side::kDevice));
  pair.host.enqueue([&](ThreadPool&) { ran = true; });
  pair.host.synchronize();
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace hone
