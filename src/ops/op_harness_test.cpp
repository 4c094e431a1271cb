#include <cmath>
#include <cstdio>
#include <cstring>

#include "ops/op_harness.h"

namespace hone::testing {

namespace {

Device device_under_test;
bool use_general = false;

template <class T>
std::vector<T> converted(const Values& values) {
  std::vector<T> result(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i] = T(static_cast<float>(values[i]));
  return result;
}

Tensor to_device(Buffer& buffer, const Values& values, Shape shape, DType dtype) {
  buffer = Buffer(test_device(), std::max<size_t>(values.size() * size_of(dtype), 1));
  const Tensor tensor = buffer.tensor(shape, dtype);
  dispatch_float(dtype, [&](auto element) {
    copy_from_host(tensor, converted<decltype(element)>(values).data(), tensor.bytes());
  });
  return tensor;
}

Values to_host(Tensor tensor) {
  Values values;
  dispatch_float(tensor.dtype, [&](auto element) {
    for (auto value : host_values<decltype(element)>(tensor))
      values.push_back(static_cast<double>(static_cast<float>(value)));
  });
  return values;
}

/// Hands fixed gradients to the outputs of the op under test.
struct SeedGradients : Node {
  std::vector<Values> seeds;
  std::string_view kind() const override { return "seed_gradients"; }
  bool starts_gradient() const override { return true; }
  void forward(Tape&) override {}
  void backward(Tape& tape) override {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const GradDest dest = tape.grad_dest(inputs[i]);
      if (!dest.wanted()) continue;
      if (tape.context().dry()) continue;
      dispatch_float(dest.dst.dtype, [&](auto element) {
        using T = decltype(element);
        tape.context().stream().upload<T>(dest.dst, converted<T>(seeds[i]));
      });
    }
  }
};

std::vector<Values> rounded_arguments(const OpCase& op_case, DType dtype) {
  std::vector<Values> arguments;
  for (const auto* list : {&op_case.inputs, &op_case.weights}) {
    for (const Argument& argument : *list) arguments.push_back(rounded(argument.values, dtype));
  }
  return arguments;
}

void expect_near(const Values& got, const Values& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double scale = 1e-3, worst = 0;
  size_t worst_at = 0;
  for (double value : want) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - want[i]);
    if (!(error <= worst)) {
      worst = error;
      worst_at = i;
    }
  }
  EXPECT_LE(worst, tolerance * scale) << what << " element " << worst_at << (got.empty() ? "" : ": got ")
                                      << (got.empty() ? 0.0 : got[worst_at]) << ", reference "
                                      << (got.empty() ? 0.0 : want[worst_at]);
}

}  // namespace

Device test_device() { return device_under_test; }

TestStream::TestStream(ThreadPool& pool) : Stream(test_device(), pool) { use_general_kernels(use_general); }

Argument random_argument(Shape shape, uint64_t key, double scale, bool differentiable) {
  PhiloxSequence random(mix_key(1234, key));
  Values values(static_cast<size_t>(shape.numel()));
  for (double& value : values) value = scale * static_cast<double>(random.normal());
  return {shape, std::move(values), differentiable};
}

Values rounded(const Values& values, DType dtype) {
  Values result = values;
  for (double& value : result) {
    const auto single = static_cast<float>(value);
    value = static_cast<double>(dtype == DType::kBF16 ? static_cast<float>(BFloat16(single)) : single);
  }
  return result;
}

TestWeight::TestWeight(const Argument& argument, DType dtype)
    : shape_(argument.shape), differentiable_(argument.differentiable) {
  payload_ = to_device(bytes_, argument.values, shape_, dtype);
  // NaN shows a destination that is read although its beta is 0, or not written at all.
  grad_ = to_device(grad_bytes_, Values(argument.values.size(), std::nan("")), shape_, DType::kF32);
}

GradDest TestWeight::grad() {
  if (!differentiable_) return {};
  const float beta = written_ ? 1.0f : 0.0f;
  written_ = true;
  return {grad_, beta};
}

Values TestWeight::gradient() const { return differentiable_ ? to_host(grad_) : Values{}; }

std::vector<Values> output_seeds(const std::vector<Values>& outputs, DType dtype) {
  std::vector<Values> seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto n = static_cast<int64_t>(outputs[i].size());
    seeds.push_back(rounded(random_argument({n}, 99 + i).values, dtype));
  }
  return seeds;
}

OpResult run_op(const OpCase& op_case, const RunOptions& options) {
  ThreadPool pool(options.threads);
  TestStream stream(pool);
  TapeMemory memory{test_device()};
  const Context context(stream, memory.scratch);
  std::vector<Buffer> buffers(op_case.inputs.size()), grad_buffers(op_case.inputs.size());
  std::vector<Tensor> tensors, grads;
  for (size_t i = 0; i < op_case.inputs.size(); ++i) {
    const Argument& input = op_case.inputs[i];
    tensors.push_back(to_device(buffers[i], input.values, input.shape, options.dtype));
    const Values unwritten(input.values.size(), std::nan(""));
    grads.push_back(input.differentiable ? to_device(grad_buffers[i], unwritten, input.shape, options.dtype)
                                         : Tensor{});
  }
  std::vector<std::unique_ptr<TestWeight>> weights;
  TapePlan plan;
  OpResult result;
  // Dry to record the plan, dry to size the arenas, then for real.
  for (int pass = 0; pass < 3; ++pass) {
    if (pass < 2) memory.begin_dry();
    if (pass == 2) memory.reserve();
    weights.clear();
    std::vector<Weight*> weight_pointers;
    for (const Argument& weight : op_case.weights) {
      weights.push_back(std::make_unique<TestWeight>(weight, options.dtype));
      weight_pointers.push_back(weights.back().get());
    }
    Tape tape(context, memory, plan, {.training = true, .recompute = {.everything = options.recompute, .kinds = {}}});
    std::vector<Var> inputs, outputs;
    for (size_t i = 0; i < tensors.size(); ++i) inputs.push_back(tape.input(tensors[i], grads[i]));
    tape.block([&] {
      outputs = op_case.op(tape, inputs, weight_pointers);
      auto seed = std::make_unique<SeedGradients>();
      seed->inputs = outputs;
      if (pass == 2) {
        stream.synchronize();
        for (Var output : outputs) result.outputs.push_back(to_host(tape.data(output)));
        seed->seeds = output_seeds(result.outputs, options.dtype);
      }
      tape.add_output(*seed, {1}, DType::kF32);
      tape.record(std::move(seed));
    });
    tape.backward();
    stream.synchronize();
  }
  for (size_t i = 0; i < grads.size(); ++i)
    result.gradients.push_back(grads[i].defined() ? to_host(grads[i]) : Values{});
  for (const auto& weight : weights) result.gradients.push_back(weight->gradient());
  return result;
}

OpResult run_reference(const OpCase& op_case, DType dtype) {
  std::vector<Values> arguments = rounded_arguments(op_case, dtype);
  OpResult result;
  result.outputs = op_case.reference(arguments);
  const std::vector<Values> seeds = output_seeds(result.outputs, dtype);
  const auto objective = [&] {
    const std::vector<Values> outputs = op_case.reference(arguments);
    double sum = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
      for (size_t j = 0; j < outputs[i].size(); ++j) sum += seeds[i][j] * outputs[i][j];
    }
    return sum;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_input = i < op_case.inputs.size();
    const Argument& argument = is_input ? op_case.inputs[i] : op_case.weights[i - op_case.inputs.size()];
    Values gradient;
    for (size_t j = 0; argument.differentiable && j < arguments[i].size(); ++j) {
      constexpr double kStep = 1e-5;
      const double value = arguments[i][j];
      arguments[i][j] = value + kStep;
      const double above = objective();
      arguments[i][j] = value - kStep;
      const double below = objective();
      arguments[i][j] = value;
      gradient.push_back((above - below) / (2 * kStep));
    }
    result.gradients.push_back(std::move(gradient));
  }
  return result;
}

void expect_matches_reference(const OpCase& op_case, DType dtype, double tolerance) {
  const OpResult want = run_reference(op_case, dtype);
  const OpResult got = run_op(op_case, {.dtype = dtype});
  ASSERT_EQ(got.outputs.size(), want.outputs.size());
  for (size_t i = 0; i < want.outputs.size(); ++i) {
    expect_near(got.outputs[i], want.outputs[i], tolerance, "output " + std::to_string(i));
  }
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    expect_near(got.gradients[i], want.gradients[i], tolerance, "gradient of argument " + std::to_string(i));
  }
  for (const RunOptions& options :
       {RunOptions{.dtype = dtype, .recompute = true}, RunOptions{.dtype = dtype, .threads = 1}}) {
    const OpResult again = run_op(op_case, options);
    EXPECT_EQ(again.outputs, got.outputs) << (options.recompute ? "recomputed" : "one thread");
    EXPECT_EQ(again.gradients, got.gradients) << (options.recompute ? "recomputed" : "one thread");
  }
}

}  // namespace hone::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  constexpr int kSkipped = 77;  // CTest's SKIP_RETURN_CODE
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--device") == 0 && std::strcmp(argv[i + 1], "cuda") == 0) {
      hone::testing::device_under_test = {hone::DeviceKind::kCuda, 0};
    } else if (std::strcmp(argv[i], "--kernels") == 0 && std::strcmp(argv[i + 1], "general") == 0) {
      hone::testing::use_general = true;
    } else {
      std::fprintf(stderr, "usage: %s [--device cuda [--kernels general]] [gtest options]\n", argv[0]);
      return 2;
    }
  }
  if (hone::testing::test_device().kind == hone::DeviceKind::kCuda && hone::cuda::device_count() == 0) {
    std::printf("skipped: %s\n", hone::cuda::why_no_device().c_str());
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
