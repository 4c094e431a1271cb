#include "train/plan/experts_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "core/cuda/planned_device.h"
#include "params/store_testing.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

constexpr ExpertsPlace kDevice{}, kStreamed{.streamed = kAllLayers}, kHost{.cpu = kAllLayers};

/// Ten TFLOP in 100 GB of weights of ten layers, which are used twice.
constexpr ExpertWork kWork{.layers = 10, .flops = 1e13, .streamed = 2e11, .read = 2e11};

bool on_cpu_alone(const RunConfig& config) { return experts_place_of(config) == kHost; }

TEST(ExpertsDevice, TimesAreThoseOfTheSlowestPart) {
  const ExpertRates rates{.device = 1e14, .host = 5e12, .link = 5e10, .memory = 5e11};
  EXPECT_DOUBLE_EQ(seconds_of(kDevice, kWork, rates), 0.1);
  EXPECT_DOUBLE_EQ(seconds_of(kStreamed, kWork, rates), 4);
  EXPECT_DOUBLE_EQ(seconds_of(kHost, kWork, rates), 2);
  const ExpertRates slow_memory{.device = 1e14, .host = 5e12, .link = 5e10, .memory = 4e10};
  EXPECT_DOUBLE_EQ(seconds_of(kHost, kWork, slow_memory), 5);
  EXPECT_DOUBLE_EQ(seconds_of({.cpu = 5}, kWork, rates), 1.05);
  EXPECT_DOUBLE_EQ(seconds_of({.streamed = 3}, kWork, rates), 1.2);
  EXPECT_DOUBLE_EQ(seconds_of({.cpu = 5, .streamed = kAllLayers}, kWork, rates), 2);
  EXPECT_DOUBLE_EQ(seconds_of({.cpu = 5, .streamed = 2}, kWork, rates), 1.05);
}

/// Whether a run of the configuration fits that has room for the experts of `layers` layers on the device.
auto room_for(int64_t layers) {
  return [=](const RunConfig& c) {
    const ExpertsPlace place = experts_place_of(c);
    const int64_t on_cpu = std::min(place.cpu, kWork.layers),
                  streamed = std::min(place.streamed, kWork.layers - on_cpu);
    return kWork.layers - on_cpu - streamed <= layers;
  };
}

TEST(ExpertsDevice, AutoIsTheFastestThatFits) {
  RunConfig config;
  const ExpertRates slow_link{.device = 1e14, .host = 5e12, .link = 1e10, .memory = 5e11},
      slow_cpu{.device = 1e14, .host = 1e12, .link = 5e11, .memory = 5e11},
      balanced{.device = 1e14, .host = 5e12, .link = 1e11, .memory = 5e11};
  const auto choose = [&](const ExpertRates& rates, auto fits) {
    return choose_experts_place(
        config, kWork, [&] { return rates; }, fits);
  };
  EXPECT_EQ(choose(slow_cpu, room_for(10)).place, kDevice);
  EXPECT_EQ(choose(slow_link, room_for(0)).place, kHost);
  EXPECT_EQ(choose(slow_link, room_for(9)).place, ExpertsPlace{.cpu = 1});
  EXPECT_EQ(choose(slow_cpu, room_for(0)).place, kStreamed);
  EXPECT_EQ(choose(slow_cpu, room_for(3)).place, ExpertsPlace{.streamed = 7});
  EXPECT_EQ(choose(balanced, room_for(0)).place, (ExpertsPlace{.cpu = 5, .streamed = 5}));
  EXPECT_EQ(choose(balanced, room_for(4)).place, (ExpertsPlace{.cpu = 3, .streamed = 3}));
  const ExpertsChoice nothing_streams = choose(
      balanced, [](const RunConfig& c) { return experts_place_of(c).cpu >= 8 && !experts_place_of(c).streamed; });
  EXPECT_EQ(nothing_streams.place, ExpertsPlace{.cpu = 8});
  EXPECT_EQ(
      nothing_streams.reason,
      "they do not fit on the GPU; a pass of them takes 1.05 s with 5 layers on the CPU, 5 streamed to the "
      "GPU, where the run does not fit; 1.62 s with 8 layers on the CPU, 2 on the GPU; 2.00 s with 10 layers on the "
      "CPU; 2.00 s with 10 layers streamed to the GPU");
  EXPECT_EQ(choose(slow_link, [](const RunConfig&) { return false; }).place, kHost);
  RunConfig shares = config;
  shares.machine.ranks = 2;
  shares.machine.zero_stage = ZeroStage::kGradients;
  EXPECT_EQ(choose_experts_place(
                shares, kWork, [&] { return slow_cpu; }, room_for(3))
                .place,
            ExpertsPlace{.cpu = 7});
  config.model.expert_weight_dtype = ExpertFormat(int8_format());
  EXPECT_EQ(choose(slow_cpu, room_for(10)).place, kHost);
}

TEST(ExpertsDevice, ARunWithItsExpertsInAPlaceSaysSo) {
  RunConfig config;
  config.machine.experts_device = ExpertsOn::kAuto;
  config.machine.cpu_offload = {OffloadPart::kActivations};
  const auto line = [&](ExpertsPlace place) { return experts_device_in(config, {place, "why"}).line; };
  EXPECT_EQ(name_of(with_experts_in(config, kDevice).machine.experts_device), "gpu");
  EXPECT_EQ(name_of(with_experts_in(config, kHost).machine.experts_device), "cpu");
  const RunConfig streamed = with_experts_in(config, kStreamed);
  EXPECT_EQ(name_of(streamed.machine.experts_device), "gpu");
  EXPECT_THAT(names_of(streamed.machine.cpu_offload), ::testing::ElementsAre("activations", "experts"));
  for (const ExpertsPlace place : {kDevice, kStreamed, kHost, ExpertsPlace{.cpu = 3}, ExpertsPlace{.streamed = 3},
                                   ExpertsPlace{.cpu = 3, .streamed = kAllLayers}}) {
    EXPECT_EQ(experts_place_of(with_experts_in(config, place)), place);
  }
  EXPECT_EQ(line(kHost), "experts_device auto: cpu; why");
  EXPECT_EQ(line(kStreamed), "experts_device auto: gpu, cpu_offload: experts; why");
  EXPECT_EQ(line({.cpu = 3, .streamed = 2}),
            "experts_device auto: cpu, cpu_expert_layers: 3, cpu_offload: experts, offload_expert_layers: 2; why");
}

TEST(ExpertsDevice, LayersOfTheCpuAreEvenlySpread) {
  const auto chosen = [](int64_t layers, int64_t count) {
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < layers; ++i) {
      if (is_chosen_layer(i, layers, count)) indices.push_back(i);
    }
    return indices;
  };
  EXPECT_THAT(chosen(6, 3), ::testing::ElementsAre(1, 3, 5));
  EXPECT_THAT(chosen(6, 1), ::testing::ElementsAre(5));
  EXPECT_THAT(chosen(3, 2), ::testing::ElementsAre(1, 2));
  EXPECT_THAT(chosen(3, 0), ::testing::IsEmpty());
  EXPECT_EQ(chosen(5, kAllLayers).size(), 5u);
  for (int64_t count = 0; count <= 61; ++count) EXPECT_EQ(chosen(61, count).size(), static_cast<size_t>(count));
}

TEST(ExpertsDevice, WorkCountsTheChosenExpertsAndAllBytes) {
  ParameterStore store;
  Parameter& gate_up = store.add({"layer.gate_up", {4, 6, 8}, ParameterKind::kExpertsGateUp, 0, {}}, DType::kBF16);
  store.add({"layer.norm", {8}, ParameterKind::kNorm, 0, {}}, DType::kBF16);
  EXPECT_EQ(expert_work(store, 10, 2, true).flops, 2.0 * 6 * 8 * 2 * 10 * 3);
  gate_up.set_trainable(false);
  EXPECT_EQ(expert_work(store, 10, 2, true).flops, 2.0 * 6 * 8 * 2 * 10 * 2);
  EXPECT_EQ(expert_work(store, 10, 2, true).streamed, 2 * 4 * 6 * 8 * 2);
  EXPECT_EQ(expert_work(store, 10, 2, false).flops, 2.0 * 6 * 8 * 2 * 10);
  EXPECT_EQ(expert_work(store, 10, 2, false).streamed, 4 * 6 * 8 * 2);
  EXPECT_EQ(expert_work(store, 1, 2, false).read, 4 * 6 * 8 * 2 / 2);
  EXPECT_NEAR(expert_work(store, 2, 2, false).read, 4 * 6 * 8 * 2 * 0.75, 1e-9);
}

TEST(ExpertsDevice, ARankStreamsItsPartOfSharedWeights) {
  LoadedModel model(std::filesystem::path(HONE_SOURCE_DIR) / "tests/fixtures/goldens/qwen3_moe/model", DType::kF32);
  const auto work = [&](int ranks, bool offloaded) {
    TrainableOptions options;
    options.ranks.ranks = ranks;
    options.ranks.stage = ZeroStage::kValues;
    options.ranks.offload.experts = offloaded;
    options.ranks.least_sharded_elements = 0;
    model.set_trainable(options);
    return expert_work(model.store(), 4096, 2, true);
  };
  const ExpertWork one = work(1, false), two = work(2, false), four = work(4, true);
  EXPECT_NEAR(one.streamed, one.read, 1e-6 * one.read);
  EXPECT_EQ(two.read, one.read);
  EXPECT_NEAR(two.streamed, one.read / 2, 0.01 * one.read);
  EXPECT_EQ(four.read, one.read);
  EXPECT_NEAR(four.streamed, one.read / 4, 0.01 * one.read);
}

TEST(ExpertsDevice, IsChosenForAModelOnADevice) {
  ThreadPool pool(1);
  RunConfig config;
  config.machine.experts_device = ExpertsOn::kAuto;
  const auto chosen = [&](const char* name, Device device, bool fits_on_device) {
    LoadedModel model(std::filesystem::path(HONE_SOURCE_DIR) / "tests/fixtures/goldens" / name / "model", DType::kF32);
    model.set_trainable({});
    return experts_device_in(
        config,
        choose_experts_place(
            config, {.model = model, .device = device, .pool = pool, .tokens = 64, .fits = [&](const RunConfig& c) {
                       return fits_on_device || on_cpu_alone(c);
                     }}));
  };
  EXPECT_EQ(chosen("llama", kPlannedGpu, true).line, "experts_device auto: gpu; the model has no routed experts");
  EXPECT_EQ(chosen("qwen3_moe", Device{}, true).line, "experts_device auto: gpu; the device is the CPU");
  EXPECT_EQ(chosen("qwen3_moe", kPlannedGpu, true).line, "experts_device auto: gpu; they fit on the GPU");
  const ExpertsDevice host = chosen("qwen3_moe", kPlannedGpu, false);
  EXPECT_EQ(experts_place_of(host.config), kHost);
  EXPECT_THAT(host.line, HasSubstr("experts_device auto: cpu; they do not fit on the GPU; "));
}

TEST(ExpertsDevice, RatesAreMeasured) {
  ThreadPool pool(1);
  LoadedModel model(std::filesystem::path(HONE_SOURCE_DIR) / "tests/fixtures/goldens/qwen3_moe/model", DType::kF32);
  const ExpertRates rates = expert_rates(Device{}, pool, model.store(), 64, DType::kF32);
  EXPECT_GT(rates.host, 1e8);
  EXPECT_GT(rates.device, rates.host);
  EXPECT_GT(rates.link, 1e9);
  EXPECT_GT(rates.memory, 1e8);
}

}  // namespace
}  // namespace hone
