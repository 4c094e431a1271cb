#include "train/plan/offload_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/contains.h"

namespace hone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Bytes of the parts of a run, none of them offloaded.
struct Sizes {
  int64_t weights = 0, moments = 0, activations = 0;
};

/// Plans in which a part that is offloaded leaves a tenth of itself on the device.
PlanOfConfig plans_of(Sizes sizes) {
  return [=](const RunConfig& config, const RecomputePolicy&) {
    MemoryPlan plan;
    const auto place = [&](OffloadPart part, int64_t bytes, int64_t& on_device, int64_t& on_host) {
      const bool offloaded = contains(config.machine.cpu_offload, part);
      on_device = offloaded ? bytes / 10 : bytes;
      on_host += offloaded ? bytes : 0;
    };
    place(OffloadPart::kParams, sizes.weights, plan.parameters.weights, plan.parameters.host);
    place(OffloadPart::kOptimizer, sizes.moments, plan.parameters.moments, plan.parameters.host);
    place(OffloadPart::kActivations, sizes.activations, plan.activations, plan.host_activations);
    return plan;
  };
}

MemoryLimit limit_of(int64_t device, std::optional<int64_t> host) {
  MemoryLimit limit;
  limit.comfortable = limit.most = device;
  limit.host = host;
  return limit;
}

RunConfig automatic() {
  RunConfig config;
  config.machine.cpu_offload = {OffloadPart::kAuto};
  return config;
}

OffloadChoice choose(Sizes sizes, int64_t device, std::optional<int64_t> host, RunUse use = RunUse::kTraining) {
  return choose_offload(automatic(), limit_of(device, host), use, plans_of(sizes));
}

TEST(OffloadChoice, IsThePartThatIsLargeInThisRun) {
  EXPECT_THAT(choose({.weights = 900, .moments = 10, .activations = 90}, 2000, 2000).parts,
              ElementsAre(OffloadPart::kParams));
  EXPECT_THAT(choose({.weights = 100, .moments = 10, .activations = 900}, 2000, 2000).parts,
              ElementsAre(OffloadPart::kActivations));
  EXPECT_THAT(choose({.weights = 100, .moments = 800, .activations = 90}, 2000, 2000).parts,
              ElementsAre(OffloadPart::kOptimizer));
  EXPECT_THAT(choose({.weights = 900, .moments = 10, .activations = 90}, 2000, 2000).line,
              HasSubstr("params (810 B) of 1.0 kB on the device"));
}

TEST(OffloadChoice, TakesFurtherPartsUntilTheRunFits) {
  const Sizes sizes{.weights = 500, .moments = 300, .activations = 200};
  EXPECT_THAT(choose(sizes, 600, 2000).parts, ElementsAre(OffloadPart::kParams));
  EXPECT_THAT(choose(sizes, 300, 2000).parts, ElementsAre(OffloadPart::kOptimizer, OffloadPart::kParams));
  EXPECT_THAT(choose(sizes, 100, 2000).parts,
              ElementsAre(OffloadPart::kOptimizer, OffloadPart::kParams, OffloadPart::kActivations));
}

TEST(OffloadChoice, PassesOverWhatTheHostCannotHold) {
  EXPECT_THAT(choose({.weights = 500, .moments = 300, .activations = 0}, 2000, 400).parts,
              ElementsAre(OffloadPart::kOptimizer));
  EXPECT_THAT(choose({.weights = 500, .moments = 0, .activations = 0}, 2000, 400).line,
              HasSubstr("the host's memory does not suffice"));
}

TEST(OffloadChoice, IsNothingWhereItWouldSaveNothing) {
  const OffloadChoice on_cpu = choose({.weights = 500, .moments = 0, .activations = 0}, 2000, std::nullopt);
  EXPECT_THAT(on_cpu.parts, IsEmpty());
  EXPECT_THAT(on_cpu.line, HasSubstr("the device is the CPU"));
  EXPECT_THAT(choose({.weights = 500, .moments = 0, .activations = 0}, 2000, 2000, RunUse::kEvaluation).parts,
              IsEmpty());
  EXPECT_THAT(choose({.weights = 500, .moments = 0, .activations = 0}, 200, 2000, RunUse::kEvaluation).parts,
              ElementsAre(OffloadPart::kParams));
}

TEST(OffloadChoice, LeavesExpertsWhereTheyWerePlaced) {
  RunConfig config = automatic();
  config.machine.cpu_offload.push_back(OffloadPart::kExperts);
  const OffloadChoice choice = choose_offload(config, limit_of(2000, 2000), RunUse::kTraining,
                                              plans_of({.weights = 900, .moments = 300, .activations = 0}));
  EXPECT_THAT(choice.parts, ElementsAre(OffloadPart::kOptimizer));
  EXPECT_THAT(with_offload(config, choice.parts).machine.cpu_offload,
              ElementsAre(OffloadPart::kOptimizer, OffloadPart::kExperts));
}

}  // namespace
}  // namespace hone
