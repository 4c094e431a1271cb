#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <tuple>

#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/stream/graph_cache.h"
#include "core/stream/process_kernels.h"
#include "kernels/cuda/kernel_limit.h"
#include "kernels/op_testing.h"
#include "ops/cast/cast.h"

namespace hone::testing {

namespace {

Device device_under_test;

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

/// Passes fixed gradients to the outputs of the op under test.
struct SeedGradients : Node {
  std::vector<Tensor> seeds;  // empty in a dry pass
  std::string_view kind() const override { return "seed_gradients"; }
  bool starts_gradient() const override { return true; }
  void forward(Tape&) override {}
  void backward(Tape& tape) override {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const GradDest dest = tape.grad_dest(inputs[i]);
      if (dest.wanted() && !tape.context().dry()) copy(tape.context(), seeds[i], dest.dst);
    }
  }
};

/// Device memory of one argument, output or gradient.
struct DeviceValues {
  DeviceValues() = default;
  DeviceValues(const Values& values, Shape shape, DType dtype) : tensor(to_device(buffer, values, shape, dtype)) {}

  Buffer buffer;
  Tensor tensor;
};

Values unwritten(const Shape& shape) { return Values(static_cast<size_t>(shape.numel()), std::nan("")); }

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

TestStream::TestStream(ThreadPool& pool) : Stream(test_device(), pool) {}

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

TestWeight::TestWeight(const Argument& argument, DType dtype, WeightGradients gradients)
    : shape_(argument.shape), differentiable_(argument.differentiable) {
  payload_ = to_device(bytes_, argument.values, shape_, dtype);
  const bool narrow = argument.takes_narrow_gradient && gradients != WeightGradients::kFloat;
  adds_ = written_ = narrow && gradients == WeightGradients::kNarrowAdded;
  grad_ = to_device(grad_bytes_, before(), shape_, narrow ? DType::kBF16 : DType::kF32);
}

Values TestWeight::before() const {
  return adds_ ? Values(static_cast<size_t>(shape_.numel()), kGradientBefore) : unwritten(shape_);
}

void TestWeight::forget_gradient() {
  dispatch_float(grad_.dtype, [&](auto element) {
    copy_from_host(grad_, converted<decltype(element)>(before()).data(), grad_.bytes());
  });
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

namespace {

/// An op case on the device under test.
class OpRun {
 public:
  OpRun(const OpCase& op_case, const RunOptions& options)
      : case_(op_case), options_(options), pool_(options.threads), stream_(pool_) {
    for (const Argument& input : op_case.inputs) {
      inputs_.emplace_back(input.values, input.shape, options.dtype);
      grads_.push_back(input.differentiable ? DeviceValues(unwritten(input.shape), input.shape, options.dtype)
                                            : DeviceValues());
    }
    for (const Argument& weight : op_case.weights) {
      weights_.push_back(std::make_unique<TestWeight>(weight, options.dtype, options.weight_gradients));
    }
  }

  OpResult run() {
    // A dry pass to record the plan, one to size the arenas, then the real one.
    for (int dry = 0; dry < 2; ++dry) {
      memory_.begin_dry();
      pass([](Tape&, const std::vector<Var>&) {});
    }
    memory_.reserve();
    OpResult result;
    const KernelNotes notes(stream_);
    pass([&](Tape& tape, const std::vector<Var>& outputs) {
      stream_.synchronize();
      for (Var output : outputs) {
        result.outputs.push_back(to_host(tape.data(output)));
        outputs_.emplace_back(result.outputs.back(), tape.shape(output), tape.dtype(output));
      }
      const std::vector<Values> seeds = output_seeds(result.outputs, options_.dtype);
      for (size_t i = 0; i < seeds.size(); ++i) {
        seeds_.emplace_back(seeds[i], outputs_[i].tensor.shape, outputs_[i].tensor.dtype);
      }
    });
    result.gradients = gradients();
    result.kernels = notes.kernels();
    return result;
  }

  /// Called after run(): runs directly, records and replays; returns the results of the replay.
  OpResult run_recorded() {
    GraphCache graphs(stream_, GraphUse::kAlways, [] { return true; });
    for (int call = 0; call < 3; ++call) {
      stream_.synchronize();
      forget_results();
      graphs.run({0}, [&] {
        pass([&](Tape& tape, const std::vector<Var>& outputs) {
          for (size_t i = 0; i < outputs.size(); ++i) copy(tape.context(), tape.data(outputs[i]), outputs_[i].tensor);
        });
      });
    }
    EXPECT_EQ(graphs.counts().replayed, 1);
    OpResult result{.outputs = {}, .gradients = gradients()};
    for (const DeviceValues& output : outputs_) result.outputs.push_back(to_host(output.tensor));
    return result;
  }

 private:
  /// Forward, then `after_forward` while the outputs exist, then backward.
  void pass(const std::function<void(Tape&, const std::vector<Var>& outputs)>& after_forward) {
    std::vector<Weight*> weights;
    for (const auto& weight : weights_) {
      weight->begin_step();
      weights.push_back(weight.get());
    }
    Tape tape(
        context_, memory_, plan_,
        {.training = true, .recompute = {options_.recompute ? RecomputeLevel::kEverything : RecomputeLevel::kNone}});
    std::vector<Var> inputs;
    for (size_t i = 0; i < inputs_.size(); ++i) inputs.push_back(tape.input(inputs_[i].tensor, grads_[i].tensor));
    tape.block([&] {
      auto seed = std::make_unique<SeedGradients>();
      seed->inputs = case_.op(tape, inputs, weights);
      if (!context_.dry()) after_forward(tape, seed->inputs);
      for (const DeviceValues& values : seeds_) seed->seeds.push_back(values.tensor);
      tape.add_output(*seed, {1}, DType::kF32);
      tape.record(std::move(seed));
    });
    tape.backward();
  }

  std::vector<Values> gradients() {
    stream_.synchronize();
    std::vector<Values> result;
    for (const DeviceValues& grad : grads_) result.push_back(grad.tensor.defined() ? to_host(grad.tensor) : Values{});
    for (const auto& weight : weights_) result.push_back(weight->gradient());
    return result;
  }

  void forget_results() {
    for (auto* list : {&outputs_, &grads_}) {
      for (DeviceValues& values : *list) {
        if (!values.tensor.defined()) continue;
        dispatch_float(values.tensor.dtype, [&](auto element) {
          const auto lost = converted<decltype(element)>(unwritten(values.tensor.shape));
          copy_from_host(values.tensor, lost.data(), values.tensor.bytes());
        });
      }
    }
    for (const auto& weight : weights_) weight->forget_gradient();
  }

  const OpCase& case_;
  const RunOptions options_;
  ThreadPool pool_;
  TestStream stream_;
  TapeMemory memory_{test_device()};
  const Context context_{stream_, memory_.scratch};
  std::vector<DeviceValues> inputs_, grads_, outputs_, seeds_;
  std::vector<std::unique_ptr<TestWeight>> weights_;
  TapePlan plan_;
};

}  // namespace

OpResult run_op(const OpCase& op_case, const RunOptions& options) {
  OpRun run(op_case, options);
  const OpResult result = run.run();
  return options.recorded ? run.run_recorded() : result;
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

/// Rounding to nearest changes a gradient by at most 2^-8 of it, stochastic rounding a sum by 2^-7. A different
/// destination may use a different algorithm, which adds in another order.
void expect_narrow_gradients(const OpCase& op_case, DType dtype) {
  const bool any = std::any_of(op_case.weights.begin(), op_case.weights.end(),
                               [](const Argument& weight) { return weight.takes_narrow_gradient; });
  if (!any) return;
  const OpResult wide = run_op(op_case, {.dtype = dtype});
  for (const auto& [gradients, before, rounding] :
       {std::tuple{WeightGradients::kNarrow, 0.0, 0x1p-8}, {WeightGradients::kNarrowAdded, kGradientBefore, 0x1p-7}}) {
    const OpResult got = run_op(op_case, {.dtype = dtype, .weight_gradients = gradients});
    for (size_t w = 0; w < op_case.weights.size(); ++w) {
      if (!op_case.weights[w].takes_narrow_gradient) continue;
      const size_t i = op_case.inputs.size() + w;
      double scale = 1e-3;
      for (double value : wide.gradients[i]) scale = std::max(scale, std::abs(value));
      ASSERT_EQ(got.gradients[i].size(), wide.gradients[i].size());
      for (size_t j = 0; j < got.gradients[i].size(); ++j) {
        const double want = before + wide.gradients[i][j];
        ASSERT_NEAR(got.gradients[i][j], want, rounding * std::abs(want) + 1e-5 * scale)
            << "bfloat16 gradient of weight " << w << ", element " << j << (before != 0 ? ", added" : "");
      }
    }
  }
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
  std::vector<RunOptions> others = {{.dtype = dtype, .recompute = true}, {.dtype = dtype, .threads = 1}};
  if (test_device().kind == DeviceKind::kCuda) others.push_back({.dtype = dtype, .recorded = true});
  for (const RunOptions& options : others) {
    const OpResult again = run_op(op_case, options);
    const char* const how = options.recompute  ? "recomputed"
                            : options.recorded ? "from a recorded graph"
                                               : "one thread";
    EXPECT_EQ(again.outputs, got.outputs) << how;
    EXPECT_EQ(again.gradients, got.gradients) << how;
  }
  expect_narrow_gradients(op_case, dtype);
}

void expect_tensor_cores(const OpCase& op_case, const std::vector<std::string>& names, const std::string& what) {
  if (test_device().kind == DeviceKind::kCpu) GTEST_SKIP() << "kernels of a GPU";
  ThreadPool pool(1);
  if (TestStream(pool).kernel_limit().tier < KernelTier::kSm80) GTEST_SKIP() << "general kernels";
  const OpResult result = run_op(op_case, {.dtype = DType::kBF16});
  for (const std::string& name : names) {
    const auto found = result.kernels.find(name);
    const bool by_tensor_cores = found != result.kernels.end() &&
                                 std::any_of(found->second.begin(), found->second.end(),
                                             [](const std::string& kernel) { return kernel.starts_with("sm"); });
    EXPECT_TRUE(by_tensor_cores) << what << ": " << name;
  }
  for (const auto& [name, kernels] : result.kernels) {
    for (const std::string& kernel : kernels) {
      std::printf("%s: %s: %s\n", what.c_str(), name.c_str(), kernel.c_str());
      EXPECT_FALSE(kernel.starts_with("general")) << what << ": " << name;
    }
  }
}

}  // namespace hone::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  constexpr int kSkipped = 77;  // CTest's SKIP_RETURN_CODE
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--device") == 0 && std::strcmp(argv[i + 1], "cuda") == 0) {
      hone::testing::device_under_test = {hone::DeviceKind::kCuda, 0};
    } else if (std::strcmp(argv[i], "--tier") == 0) {
      try {
        hone::limit_kernels_of_process(hone::cuda::parse_kernel_limit(argv[i + 1], 0, "--tier"));
      } catch (const hone::UserError& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
      }
    } else {
      std::fprintf(stderr, "usage: %s [--device cuda [--tier NAME]] [gtest options]\n", argv[0]);
      return 2;
    }
  }
  if (hone::testing::test_device().kind == hone::DeviceKind::kCuda && hone::cuda::device_count() == 0) {
    std::printf("skipped: %s\n", hone::cuda::why_no_device().c_str());
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
