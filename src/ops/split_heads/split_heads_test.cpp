#include "ops/split_heads/split_heads.h"

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::Values;

/// The outputs, element by element.
std::vector<Values> split(const Values& x, const HeadParts& parts) {
  const int64_t width = parts.heads * parts.width(), rows = static_cast<int64_t>(x.size()) / width;
  std::vector<Values> outputs;
  for (int o = 0; o < parts.outputs(); ++o) {
    Values y;
    for (int64_t row = 0; row < rows; ++row) {
      int64_t before = 0;
      for (const HeadPart& part : parts.list) {
        for (int64_t head = 0; part.output == o && head < parts.heads; ++head) {
          for (int64_t i = 0; i < part.width; ++i) {
            y.push_back(x[static_cast<size_t>(row * width + head * parts.width() + before + i)]);
          }
        }
        before += part.width;
      }
    }
    outputs.push_back(y);
  }
  return outputs;
}

OpCase split_case(int64_t rows, const HeadParts& parts) {
  return {.inputs = {testing::random_argument({rows, parts.heads * parts.width()}, 1)},
          .weights = {},
          .op = [parts](Tape& tape, const std::vector<Var>& in,
                        const std::vector<Weight*>&) { return split_heads(tape, in[0], parts); },
          .reference = [parts](const std::vector<Values>& a) { return split(a[0], parts); }};
}

const HeadParts kQueryAndGate{.heads = 3, .list = {{5, 0}, {5, 1}}};
const HeadParts kAligned{.heads = 2, .list = {{8, 0}, {8, 0}, {16, 0}, {16, 1}}};
const HeadParts kUneven{.heads = 2, .list = {{3, 0}, {1, 1}, {2, 0}}};

TEST(SplitHeads, CopiesEveryElementToItsPlaceAndGradientsBack) {
  for (const HeadParts& parts : {kQueryAndGate, kAligned, kUneven}) {
    for (const int64_t rows : {1, 7, 33}) {
      // Copies are exact; central differences of them have an error of 1e-10, and bfloat16 seeds are exact in bfloat16.
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        expect_matches_reference(split_case(rows, parts), dtype, 1e-6);
      }
    }
  }
}

TEST(SplitHeads, AnOutputThatNobodyUsesHasNoGradient) {
  OpCase one = split_case(5, kAligned);
  one.op = [](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
    return std::vector<Var>{split_heads(tape, in[0], kAligned)[1]};
  };
  one.reference = [](const std::vector<Values>& a) { return std::vector<Values>{split(a[0], kAligned)[1]}; };
  expect_matches_reference(one, DType::kF32, 1e-6);
}

TEST(SplitHeads, AddsToAGradientThatIsThere) {
  OpCase twice = split_case(5, kUneven);
  twice.op = [](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
    std::vector<Var> outputs = split_heads(tape, in[0], kUneven);
    outputs.push_back(split_heads(tape, in[0], kUneven)[0]);
    return outputs;
  };
  twice.reference = [](const std::vector<Values>& a) {
    std::vector<Values> outputs = split(a[0], kUneven);
    outputs.push_back(outputs[0]);
    return outputs;
  };
  expect_matches_reference(twice, DType::kF32, 1e-6);
}

}  // namespace
}  // namespace hone
