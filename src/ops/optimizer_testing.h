// Parameters with optimizer state on the device under test, for tests of optimizers.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"
#include "tape/step_scalars.h"

namespace hone::testing {

inline std::vector<float> random_values(int64_t n, uint64_t key) {
  PhiloxSequence random(mix_key(31, key));
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = random.normal();
  return values;
}

/// The values of a float32 or bfloat16 tensor.
inline std::vector<float> values_of(const Tensor& tensor) {
  if (tensor.dtype == DType::kF32) return host_values<float>(tensor);
  const std::vector<BFloat16> values = host_values<BFloat16>(tensor);
  return {values.begin(), values.end()};
}

inline void write_values(const Tensor& to, const std::vector<float>& values) {
  if (to.dtype == DType::kF32) return copy_from_host(to, values.data(), values.size() * sizeof(float));
  std::vector<BFloat16> rounded;
  for (float value : values) rounded.emplace_back(value);
  copy_from_host(to, rounded.data(), rounded.size() * sizeof(BFloat16));
}

struct StateFormats {
  DType parameter = DType::kF32, gradient = DType::kF32, m = DType::kF32;
};

/// A parameter, its bfloat16 copy, gradient and zero state, starting `offset` elements into their memory.
struct TestParameter {
  TestParameter(const Shape& shape, StateFormats formats, int64_t offset)
      : start(random_values(shape.numel(), static_cast<uint64_t>(shape.numel()))),
        memory(test_device(), static_cast<size_t>(shape.numel() + 16) * 7 * sizeof(float)) {
    const int64_t n = shape.numel();
    const auto at = [&](int64_t slot, const Shape& of, DType dtype) {
      return memory.tensor(of, dtype,
                           static_cast<size_t>(slot * ((n + 16) / 4 * 4)) * sizeof(float) +
                               static_cast<size_t>(offset) * size_of(dtype));
    };
    parameter = at(0, shape, formats.parameter);
    if (formats.parameter == DType::kF32) working_copy = at(1, shape, DType::kBF16);
    gradient = at(2, shape, formats.gradient);
    m = at(3, shape, formats.m);
    if (shape.rank() < 2) {
      v = at(4, shape, DType::kF32);
    } else {
      Shape row_shape, column_shape;
      for (int i = 0; i < shape.rank(); ++i) {
        if (i != shape.rank() - 1) row_shape.push_back(shape[i]);
        if (i != shape.rank() - 2) column_shape.push_back(shape[i]);
      }
      rows = at(4, row_shape, DType::kF32);
      columns = at(5, column_shape, DType::kF32);
    }
    write_values(parameter, start);
    start = values_of(parameter);
  }

  std::vector<float> start;
  Buffer memory;
  Tensor parameter, working_copy, gradient, m, v, rows, columns;
};

struct OptimizerFixture {
  static constexpr float kClip = 0.25f, kLearningRate = 0x1p-7f;

  explicit OptimizerFixture(int threads = 2) : pool(threads), stream(pool), scratch(test_device(), "scratch") {
    scratch.reserve(size_t{8} << 20);
  }

  const TestParameter& add_parameter(const Shape& shape, StateFormats formats, int64_t offset) {
    return *parameters.emplace_back(std::make_unique<TestParameter>(shape, formats, offset));
  }

  /// Writes the scalars of step t and a gradient for each parameter.
  void prepare(int t, const std::vector<std::vector<float>>& gradients, double bias_correction2, int32_t nonfinite) {
    stream.synchronize();
    StepScalars values;
    values.learning_rate = learning_rate;
    values.clip_coefficient = kClip;
    values.bias_correction2 = static_cast<float>(bias_correction2);
    values.nonfinite = nonfinite;
    values.seed = mix_key(7, static_cast<uint64_t>(t));
    scalars.write(values);
    for (size_t i = 0; i < gradients.size(); ++i) write_values(parameters[i]->gradient, gradients[i]);
  }

  float learning_rate = kLearningRate;
  ThreadPool pool;
  TestStream stream;
  Arena scratch;
  TestStruct<StepScalars> scalars;
  std::vector<std::unique_ptr<TestParameter>> parameters;
};

}  // namespace hone::testing
