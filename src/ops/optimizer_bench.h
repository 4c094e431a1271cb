// Optimizer steps for benchmarks.
#pragma once

#include <fmt/format.h>

#include "core/stream/profiler.h"
#include "kernels/op_bench.h"
#include "tape/step_scalars.h"

namespace hone {

/// Scalars of a step that does not change weights: all rates are 0.
inline const StepScalars* idle_step(BenchData& data) {
  return data.place(StepScalars{.bias_correction1 = 0, .bias_correction2 = 0, .clip_coefficient = 0, .token_share = 0});
}

/// A float32 matrix large enough to measure its update, with a copy in the dtype of activations.
struct BenchMatrix {
  explicit BenchMatrix(BenchData& data) {
    rows = int64_t{1} << (data.sizes.device == DeviceKind::kCuda ? 16 : 12);
    parameter = data.random({rows, columns}, DType::kF32, 0.02f);
    if (data.sizes.dtype != DType::kF32) working_copy = data.take({rows, columns}, data.sizes.dtype);
    gradient = data.random({rows, columns}, DType::kF32, 1e-3f);
    scalars = idle_step(data);
  }

  /// `bytes`: read and written per element, except its copy.
  template <class Args>
  OpCase of(const char* name, const Args& args, void (*op)(const Context&, const Args&), double bytes) const {
    OpCase result;
    const double count = static_cast<double>(rows) * static_cast<double>(columns);
    result.parts = {
        {name, fmt::format("[{}, {}]", rows, columns), name, "", count * (bytes + (working_copy.defined() ? 2 : 0))}};
    result.backward = false;
    result.record = [=](Tape& tape) {
      const ProfileScope scope(tape.context(), OpGroup::kOptimizer, name);
      op(tape.context(), args);
      return Var{};
    };
    return result;
  }

  int64_t rows, columns = 4096;
  Tensor parameter, working_copy, gradient;
  const StepScalars* scalars;
};

}  // namespace hone
