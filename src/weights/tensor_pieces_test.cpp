#include "weights/tensor_pieces.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "core/thread_pool.h"
#include "params/store_testing.h"
#include "weights/adapter.h"
#include "weights/checkpoint.h"

namespace hone {
namespace {

/// The devices of this machine.
std::vector<Device> devices() {
  std::vector<Device> result = {Device{}};
  if (cuda::device_count() > 0) result.push_back({DeviceKind::kCuda, 0});
  return result;
}

TEST(TensorPieces, WhatIsWrittenInPiecesIsReadBack) {
  // More than two chunks of the reader, and no whole number of pieces.
  constexpr int64_t kCount = 9'000'001, kPiece = 1'000'000, kSkipped = 17;
  for (const Device device : devices()) {
    const Buffer buffer(device, kCount * sizeof(float));
    const Tensor tensor = buffer.tensor({kCount}, DType::kF32);
    PieceWriter writer(device, kPiece * sizeof(float));
    for (int64_t begin = 0; begin < kCount; begin += kPiece) {
      const int64_t count = std::min(kPiece, kCount - begin);
      auto* values = reinterpret_cast<float*>(writer.open(tensor, begin, count));
      for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(begin + i);
    }
    writer.finish();
    PieceReader reader;
    int64_t next = kSkipped, wrong = 0;
    reader.read(tensor, kSkipped, kCount - kSkipped, [&](const std::byte* elements, int64_t count) {
      std::vector<float> values(static_cast<size_t>(count));
      std::memcpy(values.data(), elements, values.size() * sizeof(float));
      for (float value : values) wrong += value != static_cast<float>(next++);
    });
    EXPECT_EQ(next, kCount);
    EXPECT_EQ(wrong, 0);
  }
}

class OnDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / ("hone_pieces_" + std::to_string(getpid()));
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path directory_;
};

constexpr testing::StoreSizes kSizes{.dtype = DType::kBF16};

TEST_F(OnDevices, AModelSavedFromOneDeviceIsLoadedOnTheOther) {
  for (const Device device : devices()) {
    ParameterStore store;
    testing::add_model(store, kSizes);
    store.allocate(device);
    testing::fill(store, 5);
    save_parameters(directory_, store, nullptr, nullptr, {.dtype = DType::kF32});
    for (const Device other : devices()) {
      ParameterStore loaded;
      testing::add_model(loaded, kSizes);
      loaded.allocate(other);
      const Checkpoint checkpoint = Checkpoint::open(directory_);
      ThreadPool pool(3);
      load_parameters(checkpoint, map_checkpoint(checkpoint, loaded), loaded, pool);
      for (const Parameter& parameter : loaded.all()) {
        const Parameter& original = *store.find(parameter.name());
        EXPECT_EQ(host_values<float>(parameter.master()), host_values<float>(original.master()));
        const auto ours = host_values<BFloat16>(parameter.value()), theirs = host_values<BFloat16>(original.value());
        EXPECT_EQ(std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(BFloat16)), 0) << parameter.name();
      }
    }
  }
}

TEST_F(OnDevices, AnAdapterSavedFromOneDeviceIsLoadedOnTheOther) {
  const LoraOptions lora{.r = 2, .target_modules = {"attention", "all-experts"}, .target_parameters = {}};
  const auto make = [&](ParameterStore& store, Device device, uint64_t seed) {
    testing::add_model(store, kSizes);
    attach_lora(store, lora);
    store.allocate(device);
    testing::fill(store, seed);
  };
  for (const Device device : devices()) {
    ParameterStore store;
    make(store, device, 6);
    save_adapter(directory_, store, {.lora = lora, .base_model = ""});
    for (const Device other : devices()) {
      ParameterStore loaded;
      make(loaded, other, 7);
      load_adapter(directory_, loaded);
      for (const Parameter* parameter : loaded.trainable()) {
        EXPECT_EQ(host_values<float>(parameter->value()), host_values<float>(store.find(parameter->name())->value()))
            << parameter->name();
      }
    }
  }
}

}  // namespace
}  // namespace hone
