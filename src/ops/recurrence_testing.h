// What ops must hold that carry a state along each of the packed documents, in training and in generation: the inputs
// are [T, ...] of all documents, and the output is one tensor [T, width].
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "ops/packed_testing.h"

namespace hone::testing {

/// The op on documents of these lengths.
using CaseOfLengths = std::function<OpCase(const std::vector<int>&)>;

/// All arguments as the op reads them in `dtype`.
inline std::vector<Values> rounded_arguments(const OpCase& op_case, DType dtype) {
  std::vector<Values> arguments;
  for (const auto* list : {&op_case.inputs, &op_case.weights}) {
    for (const Argument& argument : *list) arguments.push_back(rounded(argument.values, dtype));
  }
  return arguments;
}

/// The reference's derivative of f along `direction` at the arguments.
inline double slope(const OpCase& op_case, const std::vector<Values>& arguments, const std::vector<Values>& direction,
                    const std::vector<Values>& seeds) {
  constexpr double kStep = 1e-5;
  const auto objective = [&](double step) {
    std::vector<Values> moved = arguments;
    for (size_t i = 0; i < moved.size(); ++i) {
      for (size_t j = 0; j < moved[i].size(); ++j) moved[i][j] += step * direction[i][j];
    }
    const Values out = op_case.reference(moved)[0];
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += seeds[0][i] * out[i];
    return sum;
  };
  return (objective(kStep) - objective(-kStep)) / (2 * kStep);
}

/// For sizes with too many gradients for central differences of each: compares the output, and derivatives along
/// `directions` random directions of one argument at a time.
inline void expect_slopes(const OpCase& op_case, DType dtype, double tolerance, uint64_t directions) {
  const OpResult got = run_op(op_case, {.dtype = dtype});
  const std::vector<Values> arguments = rounded_arguments(op_case, dtype);
  const Values want = op_case.reference(arguments)[0];
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got.outputs[0][i] - want[i]) * (got.outputs[0][i] - want[i]);
    size += want[i] * want[i];
  }
  EXPECT_LE(std::sqrt(error), tolerance * std::sqrt(size)) << "out";
  const std::vector<Values> seeds = output_seeds(got.outputs, dtype);
  for (size_t argument = 0; argument < arguments.size(); ++argument) {
    for (uint64_t key = 0; key < directions; ++key) {
      std::vector<Values> direction;
      for (const Values& values : arguments) direction.emplace_back(values.size());
      const auto count = static_cast<int64_t>(arguments[argument].size());
      direction[argument] = random_argument({count}, 50 + key).values;
      const Values& gradient = got.gradients[argument];
      double along = 0, squares = 0;
      for (size_t i = 0; i < gradient.size(); ++i) {
        along += gradient[i] * direction[argument][i];
        squares += gradient[i] * gradient[i];
      }
      // The slope along a random direction is about as large as the gradient's norm.
      EXPECT_NEAR(along, slope(op_case, arguments, direction, seeds), 3 * tolerance * std::sqrt(squares))
          << "argument " << argument << ", direction " << key;
    }
  }
}

/// A document between others has the output that it has alone.
inline void expect_documents_apart(const CaseOfLengths& of, DType dtype) {
  const OpCase all = of({70, 66, 5});
  const OpResult packed = run_op(all, {.dtype = dtype});
  OpCase alone = of({66});
  for (size_t i = 0; i < alone.inputs.size(); ++i) {
    const auto width = static_cast<std::ptrdiff_t>(alone.inputs[i].shape[1]);
    alone.inputs[i].values =
        Values(all.inputs[i].values.begin() + 70 * width, all.inputs[i].values.begin() + 136 * width);
  }
  const OpResult own = run_op(alone, {.dtype = dtype});
  const size_t width = own.outputs[0].size() / 66;
  for (size_t i = 0; i < own.outputs[0].size(); ++i) {
    ASSERT_EQ(own.outputs[0][i], packed.outputs[0][70 * width + i]) << i;
  }
}

/// The division of work depends on the number of documents; the results of the first two do not.
inline void expect_same_bits_beside_documents(const CaseOfLengths& of) {
  const auto run = [&](int further) {
    std::vector<int> lengths = {70, 130};
    for (int i = 0; i < further; ++i) lengths.push_back(1 + i % 3);
    return run_op(of(lengths), {.dtype = DType::kBF16});
  };
  const size_t inputs = of({1}).inputs.size();
  const OpResult alone = run(0);
  for (const int further : {14, 80}) {
    const OpResult packed = run(further);
    const auto expect_begins_with = [&](const Values& values, const Values& first, size_t input) {
      for (size_t i = 0; i < first.size(); ++i) ASSERT_EQ(values[i], first[i]) << further << ", " << input << ", " << i;
    };
    expect_begins_with(packed.outputs[0], alone.outputs[0], 9);
    // The seeds of the first documents' outputs are the same, whatever comes after them.
    for (size_t input = 0; input < inputs; ++input) {
      expect_begins_with(packed.gradients[input], alone.gradients[input], input);
    }
  }
}

/// Five hundred documents, of which some are empty.
inline void expect_short_documents(const CaseOfLengths& of) {
  std::vector<int> lengths(500);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int>(i % 5);
  const OpCase op_case = of(lengths);
  const OpResult got = run_op(op_case, {});
  const Values want = op_case.reference(rounded_arguments(op_case, DType::kF32))[0];
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got.outputs[0][i], want[i], 2e-5) << i;
}

/// A pass of generation: tokens of one document after lengths[0] earlier ones, whose state is in `state`.
struct RecurrencePiece {
  const std::vector<TestTensor<float>>& inputs;
  const std::vector<TestTensor<float>>& weights;
  const TestTensor<float>&out, &state;
  const PackedSequences& sequences;
  const TestTensor<int32_t>& lengths;
};

/// A document of 75 tokens fed in pieces, in a slot with stale state, gives bitwise the same results however it is
/// divided, and those of training up to the order of sums. `op_case` is on that document.
inline void expect_same_bits_in_pieces(const OpCase& op_case, const Shape& state_shape, int64_t width,
                                       const std::function<void(const Context&, const RecurrencePiece&)>& run_piece) {
  ThreadPool pool(2);
  TestStream stream(pool);
  Arena scratch(test_device(), "scratch");
  scratch.reserve(16 << 20);
  const Context context(stream, scratch);
  std::vector<TestTensor<float>> weights;
  for (const Argument& weight : op_case.weights) {
    weights.emplace_back(std::vector<float>(weight.values.begin(), weight.values.end()), weight.shape);
  }
  const auto run = [&](const std::vector<int64_t>& cuts) {
    const TestTensor<float> state(std::vector<float>(static_cast<size_t>(state_shape.numel()), std::nanf("")),
                                  state_shape);
    std::vector<float> result;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const int64_t begin = cuts[i], end = cuts[i + 1];
      const PackedDocuments packed({static_cast<int>(end - begin)});
      const TestTensor<int32_t> lengths({static_cast<int32_t>(begin)}, {1});
      std::vector<TestTensor<float>> inputs;
      for (const Argument& input : op_case.inputs) {
        const auto columns = static_cast<std::ptrdiff_t>(input.shape[1]);
        inputs.emplace_back(
            std::vector<float>(input.values.begin() + begin * columns, input.values.begin() + end * columns),
            Shape{end - begin, input.shape[1]});
      }
      const TestTensor<float> out(std::vector<float>(static_cast<size_t>((end - begin) * width)), {end - begin, width});
      run_piece(context, {inputs, weights, out, state, packed.sequences, lengths});
      stream.synchronize();
      for (const float value : host_values<float>(out)) result.push_back(value);
    }
    return result;
  };
  const std::vector<float> once = run({0, 75});
  EXPECT_EQ(run({0, 1, 2, 40, 75}), once);
  EXPECT_EQ(run({0, 64, 74, 75}), once);
  const OpResult training = run_op(op_case, {});
  double largest = 0;
  for (const double value : training.outputs[0]) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(once[i], training.outputs[0][i], 2e-5 * largest) << i;
}

}  // namespace hone::testing
