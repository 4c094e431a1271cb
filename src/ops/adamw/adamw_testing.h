// Parameters with optimizer state on the device under test, for tests of adamw.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "ops/adamw/adamw.h"
#include "ops/adamw/dynamic_code.h"
#include "ops/optimizer_testing.h"

namespace hone::testing {

struct AdamwFormats {
  DType parameter = DType::kF32, gradient = DType::kF32, m = DType::kF32, v = DType::kF32;
};

/// The values of a moment in any format.
inline std::vector<float> values_of(const Moment& moment) {
  if (size_of(moment.values.dtype) > 1) return values_of(moment.values);
  Tensor bytes = moment.values;
  const auto table = bytes.dtype == DType::kI8 ? dynamic_values<true>() : dynamic_values<false>();
  bytes.dtype = DType::kU8;
  const std::vector<uint8_t> codes = host_values<uint8_t>(bytes);
  const std::vector<float> scales = host_values<float>(moment.scales);
  std::vector<float> values;
  for (size_t i = 0; i < codes.size(); ++i) values.push_back(table[codes[i]] * scales[i / kMomentBlock]);
  return values;
}

/// A parameter of n elements with its optimizer state, starting `offset` elements into its memory.
struct AdamwParameter {
  AdamwParameter(int64_t n, double weight_decay, int64_t offset, AdamwFormats formats)
      : start(random_values(n, static_cast<uint64_t>(n))),
        memory(test_device(), static_cast<size_t>(n + 16) * 7 * sizeof(float)) {
    const auto at = [&](int64_t slot, int64_t count, DType dtype) {
      return memory.tensor(
          {count}, dtype,
          static_cast<size_t>(slot * (n + 16) / 4 * 4) * sizeof(float) + static_cast<size_t>(offset) * size_of(dtype));
    };
    const auto moment = [&](int64_t slot, DType dtype) {
      const int64_t blocks = (n + kMomentBlock - 1) / kMomentBlock;
      return Moment{at(slot, n, dtype), size_of(dtype) == 1 ? at(slot + 1, blocks, DType::kF32) : Tensor{}};
    };
    tensor = {.parameter = at(0, n, formats.parameter),
              .working_copy = formats.parameter == DType::kF32 ? at(1, n, DType::kBF16) : Tensor{},
              .m = moment(2, formats.m),
              .v = moment(4, formats.v),
              .gradient = at(6, n, formats.gradient),
              .weight_decay = weight_decay};
    write_values(tensor.parameter, start);
    start = values_of(tensor.parameter);
  }

  std::vector<float> start;
  Buffer memory;
  AdamwTensor tensor;
};

struct AdamwFixture {
  explicit AdamwFixture(int threads = 2) : pool(threads), stream(pool), scratch(test_device(), "scratch") {
    scratch.reserve(0);
    args.scalars = scalars.get();
  }

  void add(int64_t n, double weight_decay = 0.1, int64_t offset = 0, AdamwFormats formats = {}) {
    parameters.push_back(std::make_unique<AdamwParameter>(n, weight_decay, offset, formats));
    args.tensors.push_back(parameters.back()->tensor);
    args.tensors.back().stream_id = static_cast<uint32_t>(args.tensors.size());
  }

  /// Runs step t with a gradient for each tensor.
  void step(int t, const std::vector<std::vector<float>>& gradients, int32_t nonfinite = 0) {
    stream.synchronize();
    StepScalars values;
    values.learning_rate = learning_rate;
    values.clip_coefficient = 0.25f;
    values.bias_correction1 = static_cast<float>(1 - std::pow(args.beta1, t));
    values.bias_correction2 = static_cast<float>(1 - std::pow(args.beta2, t));
    values.nonfinite = nonfinite;
    values.seed = mix_key(7, static_cast<uint64_t>(t));
    scalars.write(values);
    for (size_t i = 0; i < gradients.size(); ++i) write_values(args.tensors[i].gradient, gradients[i]);
    adamw(Context(stream, scratch), args);
    stream.synchronize();
  }

  float learning_rate = 1e-2f;
  ThreadPool pool;
  TestStream stream;
  Arena scratch;
  TestStruct<StepScalars> scalars;
  std::vector<std::unique_ptr<AdamwParameter>> parameters;
  AdamwArgs args;
};

/// One element in float64, with the fixture's clip coefficient.
struct ExactAdamw {
  double p = 0, m = 0, v = 0;

  void step(int t, double gradient, double learning_rate, double weight_decay) {
    const double g = gradient * 0.25;
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    const double corrected_m = m / (1 - std::pow(0.9, t)), corrected_v = v / (1 - std::pow(0.999, t));
    p = p * (1 - learning_rate * weight_decay) - learning_rate * corrected_m / (std::sqrt(corrected_v) + 1e-8);
  }
};

}  // namespace hone::testing
