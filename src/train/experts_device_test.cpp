#include "train/experts_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/planned_device.h"
#include "core/thread_pool.h"
#include "params/store_testing.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

/// Ten TFLOP in 100 GB of weights, which are used twice.
constexpr ExpertWork kWork{.flops = 1e13, .bytes = 2e11};

bool streams(const RunConfig& config) {
  const auto& names = config.machine.cpu_offload;
  return std::find(names.begin(), names.end(), "experts") != names.end();
}

bool on_cpu(const RunConfig& config) { return config.machine.experts_device == "cpu"; }

TEST(ExpertsDevice, TimesAreThoseOfTheSlowestPart) {
  const ExpertRates rates{.device = 1e14, .host = 5e12, .link = 5e10};
  EXPECT_DOUBLE_EQ(seconds_of(ExpertsPlace::kDevice, kWork, rates), 0.1);
  EXPECT_DOUBLE_EQ(seconds_of(ExpertsPlace::kStreamed, kWork, rates), 4);
  EXPECT_DOUBLE_EQ(seconds_of(ExpertsPlace::kHost, kWork, rates), 2);
}

TEST(ExpertsDevice, AutoIsTheFastestThatFits) {
  RunConfig config;
  const ExpertRates slow_link{.device = 1e14, .host = 5e12, .link = 5e10},
      slow_cpu{.device = 1e14, .host = 1e12, .link = 5e10};
  const auto choose = [&](const ExpertRates& rates, auto fits) {
    return choose_experts_place(config, kWork, rates, fits);
  };
  const auto all = [](const RunConfig&) { return true; };
  const auto elsewhere = [](const RunConfig& c) { return streams(c) || on_cpu(c); };
  EXPECT_EQ(choose(slow_cpu, all).place, ExpertsPlace::kDevice);
  EXPECT_EQ(choose(slow_link, elsewhere).place, ExpertsPlace::kHost);
  EXPECT_EQ(choose(slow_cpu, elsewhere).place, ExpertsPlace::kStreamed);
  EXPECT_THAT(choose(slow_cpu, elsewhere).reason, HasSubstr("10 s a micro-batch on the CPU, 4 s streamed"));
  EXPECT_EQ(choose(slow_cpu, on_cpu).place, ExpertsPlace::kHost);
  EXPECT_THAT(choose(slow_cpu, on_cpu).reason, HasSubstr("where the run does not fit"));
  EXPECT_EQ(choose(slow_link, [](const RunConfig&) { return false; }).place, ExpertsPlace::kHost);
  config.model.expert_weight_dtype = "int8";
  EXPECT_EQ(choose(slow_cpu, all).place, ExpertsPlace::kHost);
}

TEST(ExpertsDevice, ARunWithItsExpertsInAPlaceSaysSo) {
  RunConfig config;
  config.machine.experts_device = "auto";
  config.machine.cpu_offload = {"activations"};
  EXPECT_EQ(with_experts_in(config, ExpertsPlace::kDevice).machine.experts_device, "gpu");
  EXPECT_TRUE(on_cpu(with_experts_in(config, ExpertsPlace::kHost)));
  const RunConfig streamed = with_experts_in(config, ExpertsPlace::kStreamed);
  EXPECT_EQ(streamed.machine.experts_device, "gpu");
  EXPECT_THAT(streamed.machine.cpu_offload, ::testing::ElementsAre("activations", "experts"));
  for (const ExpertsPlace place : {ExpertsPlace::kDevice, ExpertsPlace::kStreamed, ExpertsPlace::kHost}) {
    EXPECT_EQ(experts_place_of(with_experts_in(config, place)), place);
  }
  EXPECT_EQ(experts_device_in(config, ExpertsPlace::kStreamed, "why").line,
            "experts_device auto: gpu with cpu_offload: experts; why");
}

TEST(ExpertsDevice, WorkCountsTheChosenExpertsAndAllBytes) {
  ParameterStore store;
  Parameter& gate_up = store.add({"layer.gate_up", {4, 6, 8}, ParameterKind::kExpertsGateUp, 0, {}}, DType::kBF16);
  store.add({"layer.norm", {8}, ParameterKind::kNorm, 0, {}}, DType::kBF16);
  EXPECT_EQ(expert_work(store, 10, 2, true).flops, 2.0 * 6 * 8 * 2 * 10 * 3);
  gate_up.set_trainable(false);
  EXPECT_EQ(expert_work(store, 10, 2, true).flops, 2.0 * 6 * 8 * 2 * 10 * 2);
  EXPECT_EQ(expert_work(store, 10, 2, true).bytes, 2 * 4 * 6 * 8 * 2);
  EXPECT_EQ(expert_work(store, 10, 2, false).flops, 2.0 * 6 * 8 * 2 * 10);
  EXPECT_EQ(expert_work(store, 10, 2, false).bytes, 4 * 6 * 8 * 2);
}

TEST(ExpertsDevice, IsChosenForAModelOnADevice) {
  ThreadPool pool(1);
  RunConfig config;
  config.machine.experts_device = "auto";
  const auto chosen = [&](const char* name, Device device, bool fits_on_device) {
    LoadedModel model(std::filesystem::path(HONE_SOURCE_DIR) / "tests/fixtures/goldens" / name / "model", DType::kF32);
    model.set_trainable({});
    return choose_experts_device(
        config, {.model = model, .device = device, .pool = pool, .tokens = 64, .fits = [&](const RunConfig& c) {
                   return fits_on_device || on_cpu(c);
                 }});
  };
  EXPECT_EQ(chosen("llama", kPlannedGpu, true).line, "experts_device auto: gpu; the model has no routed experts");
  EXPECT_EQ(chosen("qwen3_moe", Device{}, true).line, "experts_device auto: gpu; the device is the CPU");
  EXPECT_EQ(chosen("qwen3_moe", kPlannedGpu, true).line, "experts_device auto: gpu; they fit on the GPU");
  const ExpertsDevice host = chosen("qwen3_moe", kPlannedGpu, false);
  EXPECT_EQ(host.place, ExpertsPlace::kHost);
  EXPECT_TRUE(on_cpu(host.config));
  EXPECT_THAT(host.line, HasSubstr("experts_device auto: cpu; they do not fit on the GPU; "));
}

TEST(ExpertsDevice, RatesAreMeasured) {
  ThreadPool pool(1);
  const ExpertRates rates = expert_rates(Device{}, pool, false, DType::kF32);
  EXPECT_GT(rates.host, 1e8);
  EXPECT_GT(rates.device, rates.host);
  EXPECT_GT(rates.link, 1e9);
}

}  // namespace
}  // namespace hone
