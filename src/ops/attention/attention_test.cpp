#include "ops/attention/attention.h"

#include <cmath>
#include <numeric>

#include "core/cpu/isa_testing.h"
#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::test_device;

using testing::OpCase;
using testing::OpResult;
using testing::Values;

struct AttentionCase {
  std::vector<int32_t> lengths;  ///< lengths of the documents
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t window = 0;
  int64_t other_v_head_dim = 0;  ///< if it differs from head_dim
  bool sinks = false;            ///< a fourth argument

  int64_t v_head_dim() const { return other_v_head_dim > 0 ? other_v_head_dim : head_dim; }
  int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
  double scale() const { return static_cast<double>(static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)))); }
  int64_t kv_head_of(int64_t head) const { return head / (num_heads / num_kv_heads); }
  std::string name() const {
    std::string result = "lengths";
    for (size_t i = 0; i < std::min<size_t>(lengths.size(), 5); ++i) result += " " + std::to_string(lengths[i]);
    return result + " heads " + std::to_string(num_heads) + "/" + std::to_string(num_kv_heads) + " dim " +
           std::to_string(head_dim) + "/" + std::to_string(v_head_dim()) + " window " + std::to_string(window) +
           (sinks ? " sinks" : "");
  }
};

/// Offsets of the documents, with their own memory.
struct Sequences {
  Buffer bytes;
  PackedSequences packed;

  explicit Sequences(const std::vector<int32_t>& lengths) {
    std::vector<int32_t> offsets{0};
    for (int32_t length : lengths) offsets.push_back(offsets.back() + length);
    bytes = Buffer(test_device(), offsets.size() * sizeof(int32_t));
    const auto documents = static_cast<int64_t>(lengths.size());
    packed = {.cu_seqlens = bytes.tensor({documents + 1}, DType::kI32),
              .num_documents = documents,
              .max_seqlen = *std::max_element(lengths.begin(), lengths.end())};
    copy_from_host(packed.cu_seqlens, offsets.data(), offsets.size() * sizeof(int32_t));
  }
};

/// Calls visit(i, j range) for each row with the rows that it attends to.
template <class Visit>
void for_each_row(const AttentionCase& c, const Visit& visit) {
  int64_t begin = 0;
  for (int32_t length : c.lengths) {
    for (int64_t i = begin; i < begin + length; ++i) {
      visit(i, c.window > 0 ? std::max(begin, i - c.window + 1) : begin);
    }
    begin += length;
  }
}

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// Softmax probabilities of row i and head h over the keys [first, i].
std::vector<double> probabilities(const AttentionCase& c, const std::vector<Values>& qkv, int64_t i, int64_t first,
                                  int64_t head) {
  const double* q = qkv[0].data() + (i * c.num_heads + head) * c.head_dim;
  std::vector<double> p;
  double sum = c.sinks ? std::exp(qkv[3][static_cast<size_t>(head)]) : 0;
  for (int64_t j = first; j <= i; ++j) {
    const double* k = qkv[1].data() + (j * c.num_kv_heads + c.kv_head_of(head)) * c.head_dim;
    p.push_back(std::exp(c.scale() * dot(q, k, c.head_dim)));
    sum += p.back();
  }
  for (double& value : p) value /= sum;
  return p;
}

Values reference(const AttentionCase& c, const std::vector<Values>& qkv) {
  const int64_t v_dim = c.v_head_dim();
  Values out(static_cast<size_t>(c.tokens() * c.num_heads * v_dim));
  for_each_row(c, [&](int64_t i, int64_t first) {
    for (int64_t head = 0; head < c.num_heads; ++head) {
      const auto p = probabilities(c, qkv, i, first, head);
      for (int64_t j = first; j <= i; ++j) {
        const double* v = qkv[2].data() + (j * c.num_kv_heads + c.kv_head_of(head)) * v_dim;
        double* to = out.data() + (i * c.num_heads + head) * v_dim;
        for (int64_t x = 0; x < v_dim; ++x) to[x] += p[static_cast<size_t>(j - first)] * v[x];
      }
    }
  });
  return out;
}

/// dq, dk, dv and dsinks by the formulas; checked against differences if those are affordable.
std::vector<Values> reference_gradients(const AttentionCase& c, const std::vector<Values>& qkv, const Values& d_out) {
  std::vector<Values> gradients{Values(qkv[0].size()), Values(qkv[1].size()), Values(qkv[2].size())};
  if (c.sinks) gradients.emplace_back(qkv[3].size());
  const int64_t dim = c.head_dim, v_dim = c.v_head_dim();
  for_each_row(c, [&](int64_t i, int64_t first) {
    for (int64_t head = 0; head < c.num_heads; ++head) {
      const auto p = probabilities(c, qkv, i, first, head);
      const int64_t query = (i * c.num_heads + head) * dim, row = (i * c.num_heads + head) * v_dim;
      std::vector<double> d_p;
      double delta = 0;
      for (int64_t j = first; j <= i; ++j) {
        const int64_t value = (j * c.num_kv_heads + c.kv_head_of(head)) * v_dim;
        d_p.push_back(dot(d_out.data() + row, qkv[2].data() + value, v_dim));
        delta += p[static_cast<size_t>(j - first)] * d_p.back();
      }
      // The sink has the probability that the keys leave.
      if (c.sinks) gradients[3][static_cast<size_t>(head)] -= (1 - std::accumulate(p.begin(), p.end(), 0.0)) * delta;
      for (int64_t j = first; j <= i; ++j) {
        const int64_t kv_row = j * c.num_kv_heads + c.kv_head_of(head), key = kv_row * dim, value = kv_row * v_dim;
        const double probability = p[static_cast<size_t>(j - first)];
        const double d_s = c.scale() * probability * (d_p[static_cast<size_t>(j - first)] - delta);
        for (int64_t x = 0; x < dim; ++x) {
          gradients[0][static_cast<size_t>(query + x)] += d_s * qkv[1][static_cast<size_t>(key + x)];
          gradients[1][static_cast<size_t>(key + x)] += d_s * qkv[0][static_cast<size_t>(query + x)];
        }
        for (int64_t x = 0; x < v_dim; ++x) {
          gradients[2][static_cast<size_t>(value + x)] += probability * d_out[static_cast<size_t>(row + x)];
        }
      }
    }
  });
  return gradients;
}

OpCase op_case_of(const AttentionCase& c, uint64_t key = 1) {
  OpCase result;
  result.inputs = {testing::random_argument({c.tokens(), c.num_heads * c.head_dim}, key),
                   testing::random_argument({c.tokens(), c.num_kv_heads * c.head_dim}, key + 1),
                   testing::random_argument({c.tokens(), c.num_kv_heads * c.v_head_dim()}, key + 2)};
  if (c.sinks) result.weights = {testing::random_argument({c.num_heads}, key + 3)};
  result.op = [c, sequences = std::make_shared<Sequences>(c.lengths)](Tape& tape, const std::vector<Var>& in,
                                                                      const std::vector<Weight*>& weights) {
    const AttentionOptions options{.num_heads = c.num_heads,
                                   .num_kv_heads = c.num_kv_heads,
                                   .head_dim = c.head_dim,
                                   .v_head_dim = c.v_head_dim(),
                                   .scale = static_cast<float>(c.scale()),
                                   .sliding_window = c.window};
    Weight* const sinks = c.sinks ? weights[0] : nullptr;
    return std::vector<Var>{attention(tape, in[0], in[1], in[2], options, sequences->packed, sinks)};
  };
  result.reference = [c](const std::vector<Values>& arguments) { return std::vector<Values>{reference(c, arguments)}; };
  return result;
}

/// Bound on errors relative to the largest value for standard normal inputs. The error of a score is at most (D + 3)
/// 2^-24 scale Σ|q||k|, where Σ|q||k| < 2 D; that of a probability twice that, plus that of the sum of up to T terms; a
/// gradient is a product of two such factors, each of which also enters through δ.
double float_tolerance(const AttentionCase& c) {
  const double dim = static_cast<double>(std::max(c.head_dim, c.v_head_dim()));
  const double longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  return 4 * 0x1p-24 * (2 * (dim + 3) * c.scale() * 2 * dim / 4 + longest + dim + 10);
}

/// out is rounded by 2^-9 of itself, with sinks twice; the sinks' gradient is a sum of p · δ over all rows, with both
/// signs, which may be some three times smaller than the root of the sum of their squares. δ sums D such errors of
/// random sign, and dS is a difference with it. Tensor cores and AMX also round P and dS: each term of a sum has an
/// error of up to 2^-9 of itself, with random signs. Four standard deviations of their sum (2.8 for dS, if it is
/// computed from the rounded P) are 4 · 2^-9 / √3 of the root of the sum of their squares, which the largest sum
/// exceeds.
double bfloat16_tolerance(const AttentionCase& c) {
  const bool rounds = test_device().kind == DeviceKind::kCuda || active_isa() == Isa::kAmx;
  const double tensor_cores = rounds ? 4 / std::sqrt(3.0) : 0;
  return 0x1p-9 * ((c.sinks ? 2 * 3 : 2) + tensor_cores + std::sqrt(static_cast<double>(c.v_head_dim())) / 2);
}

TEST(PackedAttention, MatchesTheReferenceAndItsGradients) {
  for (const AttentionCase& c :
       {AttentionCase{{1}, 1, 1, 16}, AttentionCase{{1, 1, 1}, 2, 1, 4}, AttentionCase{{7}, 2, 2, 5, 3},
        AttentionCase{{3, 1, 5}, 8, 1, 3}, AttentionCase{{2, 11}, 2, 1, 8, 4}, AttentionCase{{4, 0, 6}, 3, 1, 6, 2},
        AttentionCase{{3, 6}, 2, 2, 6, 0, 4}, AttentionCase{{7}, 4, 2, 3, 4, 5},
        AttentionCase{{5, 0, 8}, 4, 2, 6, 3, 0, true}, AttentionCase{{1, 4}, 3, 1, 5, 0, 7, true}}) {
    SCOPED_TRACE(c.name());
    expect_matches_reference(op_case_of(c), DType::kF32, float_tolerance(c));
    expect_matches_reference(op_case_of(c), DType::kBF16, bfloat16_tolerance(c));
  }
}

void expect_close(const Values& got, const Values& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  double scale = 0, worst = 0;
  for (double value : want) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - want[i]);
    worst = error <= worst ? worst : error;
  }
  EXPECT_LE(worst, tolerance * scale) << what;
}

void expect_matches_formulas(const AttentionCase& c, DType dtype, double tolerance) {
  SCOPED_TRACE(c.name());
  const OpCase op_case = op_case_of(c);
  const OpResult got = testing::run_op(op_case, {.dtype = dtype});
  std::vector<Values> arguments;
  for (const auto* list : {&op_case.inputs, &op_case.weights}) {
    for (const auto& argument : *list) arguments.push_back(testing::rounded(argument.values, dtype));
  }
  expect_close(got.outputs[0], reference(c, arguments), tolerance, "out");
  const auto want = reference_gradients(c, arguments, testing::output_seeds(got.outputs, dtype)[0]);
  const std::string names[] = {"dq", "dk", "dv", "dsinks"};
  for (size_t i = 0; i < want.size(); ++i) expect_close(got.gradients[i], want[i], tolerance, names[i]);
  const OpResult again = testing::run_op(op_case, {.dtype = dtype, .recompute = true, .threads = 3});
  EXPECT_EQ(got.outputs, again.outputs);
  EXPECT_EQ(got.gradients, again.gradients);
}

TEST(PackedAttention, MatchesTheFormulasAcrossBlocks) {
  for (const AttentionCase& c : {AttentionCase{{300}, 2, 1, 16},
                                 AttentionCase{{130, 1, 0, 169}, 2, 2, 64, 100},
                                 AttentionCase{{257, 127}, 2, 1, 32, 128},
                                 AttentionCase{{290}, 2, 2, 16, 129},
                                 AttentionCase{{270}, 2, 2, 16, 130},
                                 AttentionCase{{137}, 1, 1, 128, 5},
                                 AttentionCase{{150, 20}, 16, 2, 16},
                                 AttentionCase{{400}, 3, 1, 20, 40},
                                 AttentionCase{{1, 131, 0, 64, 200}, 4, 1, 128},
                                 AttentionCase{{390}, 2, 1, 128, 150},
                                 AttentionCase{{70, 129}, 2, 1, 80},
                                 AttentionCase{{90, 40}, 2, 1, 96, 33},
                                 AttentionCase{{140}, 1, 1, 256},
                                 AttentionCase{{150, 1, 40}, 3, 3, 192, 0, 128},
                                 AttentionCase{{600, 3, 140}, 4, 2, 128},
                                 AttentionCase{{530}, 3, 1, 64},
                                 AttentionCase{{640}, 2, 1, 128, 300},
                                 AttentionCase{{520}, 2, 1, 64, 128},
                                 AttentionCase{{400, 70}, 2, 2, 192, 0, 128},
                                 AttentionCase{{390}, 2, 1, 160, 140, 96},
                                 AttentionCase{{300, 20}, 2, 1, 256, 100},
                                 AttentionCase{{150, 1, 70}, 2, 1, 512},
                                 AttentionCase{{140}, 2, 2, 512, 40},
                                 AttentionCase{{135, 20}, 2, 1, 320, 0, 264},
                                 AttentionCase{{131}, 1, 1, 128, 0, 512},
                                 AttentionCase{{135, 30}, 4, 2, 32, 50, 24},
                                 AttentionCase{{131}, 2, 1, 24, 0, 72},
                                 AttentionCase{{150, 1, 0, 70}, 4, 2, 64, 0, 0, true},
                                 AttentionCase{{200, 33}, 8, 1, 64, 128, 0, true},
                                 AttentionCase{{130}, 2, 1, 128, 0, 0, true}}) {
    expect_matches_formulas(c, DType::kF32, float_tolerance(c));
    expect_matches_formulas(c, DType::kBF16, bfloat16_tolerance(c));
  }
}

TEST(PackedAttention, FiveHundredShortDocumentsAreExact) {
  AttentionCase c{{}, 2, 1, 16};
  for (int32_t i = 0; i < 500; ++i) c.lengths.push_back(1 + i % 7);
  expect_matches_formulas(c, DType::kF32, float_tolerance(c));
  c.head_dim = 64;
  expect_matches_formulas(c, DType::kBF16, bfloat16_tolerance(c));
}

TEST(PackedAttention, ManyBlocksAtOnceAddInTheSameOrder) {
  if (test_device().kind == DeviceKind::kCpu) GTEST_SKIP() << "blocks of a GPU; long documents";
  for (const AttentionCase& c :
       {AttentionCase{{2300, 1, 1700, 129}, 16, 2, 128}, AttentionCase{{3000}, 16, 4, 64, 700},
        AttentionCase{{2100, 1900}, 64, 8, 64, 128}, AttentionCase{{1500, 900}, 8, 8, 192, 0, 128},
        AttentionCase{{1500, 900, 33}, 24, 24, 192, 0, 128},  // several passes
        AttentionCase{{1100, 600}, 16, 2, 256}, AttentionCase{{1100, 600}, 16, 2, 512}}) {
    SCOPED_TRACE(c.name());
    const OpCase op_case = op_case_of(c);
    const OpResult first = testing::run_op(op_case, {.dtype = DType::kBF16});
    for (int run = 0; run < 3; ++run) {
      const OpResult again = testing::run_op(op_case, {.dtype = DType::kBF16});
      EXPECT_EQ(first.outputs, again.outputs);
      EXPECT_EQ(first.gradients, again.gradients);
    }
  }
}

TEST(PackedAttention, TensorCoresServeTheHeadsOfReleasedModels) {
  for (const AttentionCase& c :
       {AttentionCase{{130}, 2, 1, 64}, AttentionCase{{130}, 2, 1, 128}, AttentionCase{{130}, 2, 2, 192, 0, 128},
        AttentionCase{{130}, 2, 1, 256}, AttentionCase{{130}, 2, 1, 512}, AttentionCase{{130}, 2, 1, 64, 128, 0, true},
        AttentionCase{{70, 0, 60}, 2, 1, 128, 33, 0, true}}) {
    testing::expect_tensor_cores(op_case_of(c), {"attention"}, "attention, " + c.name());
  }
}

TEST(PackedAttention, NoTokensAreNoError) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const OpResult got = testing::run_op(op_case_of({{0, 0}, 2, 1, 16}), {.dtype = dtype});
    EXPECT_TRUE(got.outputs[0].empty());
    for (const Values& gradient : got.gradients) EXPECT_TRUE(gradient.empty());
  }
}

TEST(PackedAttention, GradientsOfTwoUsesAdd) {
  for (const int64_t dim : {8, 128}) {
    const AttentionCase c{{5, 0, 9}, 2, 1, dim};
    AttentionCase windowed = c;
    windowed.window = 3;
    OpCase op_case = op_case_of(c);
    op_case.op = [first = op_case.op, second = op_case_of(windowed).op](Tape& tape, const std::vector<Var>& in,
                                                                        const std::vector<Weight*>& weights) {
      return std::vector<Var>{first(tape, in, weights)[0], second(tape, in, weights)[0]};
    };
    op_case.reference = [c, windowed](const std::vector<Values>& arguments) {
      return std::vector<Values>{reference(c, arguments), reference(windowed, arguments)};
    };
    expect_matches_reference(op_case, DType::kF32, 2 * float_tolerance(c));
    // The sum is rounded once more.
    expect_matches_reference(op_case, DType::kBF16, 2 * bfloat16_tolerance(c) + 0x1p-9);
  }
}

TEST(PackedAttention, EveryInstructionSetMatchesTheFormulas) {
  if (test_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "instruction sets of a CPU";
  for (const Isa isa : supported_isas()) {
    const ForcedIsa forced(isa);
    SCOPED_TRACE(name_of(isa));
    for (const AttentionCase& c : {AttentionCase{{131, 40}, 4, 2, 32, 90}, AttentionCase{{140, 3, 17}, 3, 1, 40}}) {
      expect_matches_formulas(c, DType::kF32, float_tolerance(c));
      expect_matches_formulas(c, DType::kBF16, bfloat16_tolerance(c));
    }
  }
}

/// Rows [begin, begin + count) of all outputs and gradients.
std::vector<Values> rows_of(const OpResult& result, int64_t tokens, int64_t begin, int64_t count) {
  std::vector<Values> rows;
  for (const auto* list : {&result.outputs, &result.gradients}) {
    for (const Values& values : *list) {
      const int64_t width = static_cast<int64_t>(values.size()) / tokens;
      rows.emplace_back(values.begin() + begin * width, values.begin() + (begin + count) * width);
    }
  }
  return rows;
}

/// Writes `planted` into the second of three documents; expects bitwise equal rows in the others.
void expect_isolated(const AttentionCase& c, DType dtype, double planted) {
  SCOPED_TRACE(c.name() + " planted " + std::to_string(planted));
  const int64_t begin = c.lengths[0], end = begin + c.lengths[1], tokens = c.tokens();
  OpCase op_case = op_case_of(c);
  const OpResult before = testing::run_op(op_case, {.dtype = dtype});
  for (auto& input : op_case.inputs) {
    const int64_t width = input.shape[1];
    std::fill(input.values.begin() + begin * width, input.values.begin() + end * width, planted);
  }
  const OpResult after = testing::run_op(op_case, {.dtype = dtype});
  EXPECT_NE(rows_of(before, tokens, begin, end - begin), rows_of(after, tokens, begin, end - begin));
  EXPECT_EQ(rows_of(before, tokens, 0, begin), rows_of(after, tokens, 0, begin));
  EXPECT_EQ(rows_of(before, tokens, end, tokens - end), rows_of(after, tokens, end, tokens - end));
}

TEST(PackedAttention, DocumentsDoNotSeeEachOther) {
  const AttentionCase small{{140, 33, 150}, 4, 2, 16}, large{{140, 33, 150}, 2, 1, 128};
  for (double planted : {7.0, std::nan("")}) expect_isolated(small, DType::kF32, planted);
  expect_isolated(small, DType::kBF16, 7.0);
  expect_isolated(large, DType::kBF16, 7.0);
}

TEST(PackedAttention, ADocumentInAPackIsBitwiseTheDocumentAlone) {
  for (int64_t window : {0, 50}) {
    const AttentionCase packed{{140, 33, 1, 150}, 4, 2, 32, window};
    const OpCase all = op_case_of(packed);
    const OpResult together = testing::run_op(all, {});
    const Values seeds = testing::output_seeds(together.outputs, DType::kF32)[0];
    int64_t begin = 0;
    for (int32_t length : packed.lengths) {
      AttentionCase alone = packed;
      alone.lengths = {length};
      OpCase one = op_case_of(alone);
      for (size_t i = 0; i < one.inputs.size(); ++i) {
        const auto from = all.inputs[i].values.begin() + begin * one.inputs[i].shape[1];
        one.inputs[i].values.assign(from, from + length * one.inputs[i].shape[1]);
      }
      EXPECT_EQ(testing::run_op(one, {}).outputs[0], rows_of(together, packed.tokens(), begin, length)[0]);
      begin += length;
    }
  }
}

TEST(PackedAttention, AWindowOfOneCopiesTheValue) {
  const AttentionCase c{{4, 0, 131}, 1, 1, 8, 1};
  const OpCase op_case = op_case_of(c);
  const OpResult got = testing::run_op(op_case, {});
  EXPECT_EQ(got.outputs[0], testing::rounded(op_case.inputs[2].values, DType::kF32));
  EXPECT_EQ(got.gradients[2], testing::output_seeds(got.outputs, DType::kF32)[0]);
  // dS = dP − δ, both the same sum of 8 products below 16, each with an error of at most 8 roundings
  for (double value : got.gradients[0]) EXPECT_LE(std::abs(value), 2 * 8 * 8 * 16 * 0x1p-24 * 4);
}

TEST(PackedAttention, LargeScoresDoNotOverflow) {
  const AttentionCase c{{40}, 1, 1, 16};
  OpCase op_case = op_case_of(c);
  for (double& value : op_case.inputs[0].values) value *= 100;
  const OpResult got = testing::run_op(op_case, {});
  std::vector<Values> arguments;
  for (const auto& input : op_case.inputs) arguments.push_back(testing::rounded(input.values, DType::kF32));
  expect_close(got.outputs[0], reference(c, arguments), 100 * float_tolerance(c), "out");
}

TEST(PackedAttention, OffsetsThatDoNotCoverTheTokensAreAnError) {
  if (test_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "offsets are checked on a CPU only";
  const AttentionCase c{{4, 3}, 1, 1, 8};
  OpCase op_case = op_case_of({{4, 2}, 1, 1, 8});
  op_case.inputs = op_case_of(c).inputs;
  EXPECT_ANY_THROW(testing::run_op(op_case, {}));
}

}  // namespace
}  // namespace hone
