#include "train/plan/expert_rate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>

#include "core/cpu/cpu_peaks.h"
#include "formats/packed_weights.h"
#include "params/frozen_weights.h"
#include "params/parameter_store.h"

namespace hone {
namespace {

TEST(ExpertRate, IsMeasuredInEveryFormat) {
  ThreadPool pool(2);
  const auto rate = [&](const WeightFormat& format, DType dtype, int64_t rows) {
    ParameterStore store;
    Parameter& gate_up = store.add({.name = "gate_up",
                                    .shape = {8, 256, 128},
                                    .kind = ParameterKind::kExpertsGateUp,
                                    .layer = 3,
                                    .layouts = {},
                                    .of_experts = true},
                                   dtype);
    hold_frozen_in(gate_up, format);
    return measured_expert_rate(gate_up, rows, dtype, pool);
  };
  const std::initializer_list<const WeightFormat*> formats = {&dense_format(), &int8_format(), &int4_format(32),
                                                              &nf4_format()};
  for (const WeightFormat* format : formats) {
    SCOPED_TRACE(format->name());
    const double peak = measured_peak_flops(format == &int8_format() ? DType::kI8 : DType::kBF16, pool);
    const double few = rate(*format, DType::kBF16, 1), many = rate(*format, DType::kBF16, 64);
    EXPECT_GT(few, 1e-6 * peak);
    EXPECT_GT(many, 1e-4 * peak);
    EXPECT_LT(std::max(few, many), 1.2 * peak);
  }
  EXPECT_GT(rate(dense_format(), DType::kF32, 0), 1e-6 * measured_peak_flops(DType::kF32, pool));
}

}  // namespace
}  // namespace hone
