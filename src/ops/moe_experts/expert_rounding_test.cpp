// Gate and up of experts in bfloat16 are rounded once, from the sum of base product, bias and adapters.
#include "core/cpu/thread_pool.h"
#include "kernels/cpu/gemm/gemm.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/rounding_testing.h"

namespace hone {
namespace {

using testing::ExactMatrix;
using testing::ExactProduct;
using testing::expect_rounded_once;
using testing::test_device;
using testing::Values;

constexpr int64_t kRoundingTokens = 160, kRoundingExperts = 4, kRoundingChoices = 2, kRoundingHidden = 64,
                  kRoundingIntermediate = 96;
constexpr int64_t kRoundingRows = kRoundingTokens * kRoundingChoices, kRoundingOutputs = 2 * kRoundingIntermediate;

/// An adapter of outputs [begin, begin + count) of every expert, of which each may be in one adapter only.
struct AdapterOfOutputs {
  int64_t rank, begin, count;
  ExactMatrix a, b;

  AdapterOfOutputs(int64_t r, int64_t first, int64_t n)
      : rank(r),
        begin(first),
        count(n),
        a(kRoundingExperts * r, kRoundingHidden, DType::kF32, static_cast<uint64_t>(20 + first),
          1 / std::sqrt(double{kRoundingHidden})),
        b(kRoundingExperts * n, r, DType::kF32, static_cast<uint64_t>(30 + first),
          1e-3 / std::sqrt(static_cast<double>(r))) {}

  ExpertAdapterView view() const {
    return {.lora_a = a.tensor.reshaped({kRoundingExperts, rank, kRoundingHidden}),
            .lora_b = b.tensor.reshaped({kRoundingExperts, count, rank}),
            .out_begin = begin,
            .out_count = count,
            .scaling = 0.5f};
  }
};

void expect_rounds_once(const std::vector<std::pair<int64_t, int64_t>>& outputs, int64_t rank, bool biased) {
  SCOPED_TRACE(::testing::Message() << outputs.size() << " adapters of rank " << rank << (biased ? " bias" : ""));
  const DType bf16 = DType::kBF16;
  const ExactMatrix x(kRoundingTokens, kRoundingHidden, bf16, 1), bias(kRoundingExperts, kRoundingOutputs, bf16, 2);
  const ExactMatrix w(kRoundingExperts * kRoundingOutputs, kRoundingHidden, bf16, 3,
                      1 / std::sqrt(double{kRoundingHidden}));
  const ExactMatrix h(kRoundingRows, kRoundingOutputs, bf16, 4),
      activation(kRoundingRows, kRoundingIntermediate, bf16, 5);
  std::vector<std::unique_ptr<AdapterOfOutputs>> adapters;
  std::vector<ExpertAdapterView> views;
  int64_t columns = 0;
  for (const auto& [begin, count] : outputs) {
    adapters.push_back(std::make_unique<AdapterOfOutputs>(rank, begin, count));
    views.push_back(adapters.back()->view());
    columns += expert_rank_columns(rank);
  }
  const ExactMatrix xa(kRoundingRows, columns, bf16, 6);

  std::vector<int32_t> ids;
  for (int64_t t = 0; t < kRoundingTokens; ++t) {
    for (int64_t j = 0; j < kRoundingChoices; ++j)
      ids.push_back(static_cast<int32_t>((t * t + 3 * j) % kRoundingExperts));
  }
  const testing::TestTensor<int32_t> chosen(ids, {kRoundingTokens, kRoundingChoices});
  const testing::TestTensor<int64_t> offsets(std::vector<int64_t>(kRoundingExperts + 1), {kRoundingExperts + 1});
  const testing::TestTensor<int32_t> token(std::vector<int32_t>(kRoundingRows), {kRoundingRows});
  const testing::TestTensor<int32_t> assignment(std::vector<int32_t>(kRoundingRows), {kRoundingRows});
  const testing::TestTensor<int32_t> row(std::vector<int32_t>(kRoundingRows), {kRoundingTokens, kRoundingChoices});
  const ExpertRows rows{.offsets = offsets, .token = token, .assignment = assignment, .row = row};

  ThreadPool pool(2);
  testing::TestStream stream(pool);
  Arena scratch(test_device(), "scratch");
  const Context context(stream, scratch);
  for (const bool dry : {true, false}) {
    if (!dry) scratch.reserve(scratch.high_water());
    moe_permutation(context, {.ids = chosen, .rows = rows});
    moe_gate_up(context, {.rows = rows,
                          .x = x.tensor,
                          .weight = {w.tensor.reshaped({kRoundingExperts, kRoundingOutputs, kRoundingHidden})},
                          .bias = biased ? bias.tensor : Tensor{},
                          .adapters = views,
                          .dropout = {},
                          .xa = xa.tensor,
                          .h = h.tensor,
                          .activation = activation.tensor});
    stream.synchronize();
  }

  const auto tokens = testing::host_values<int32_t>(token);
  const auto ends = testing::host_values<int64_t>(offsets);
  std::vector<int64_t> expert_of;
  for (int64_t e = 0; e < kRoundingExperts; ++e)
    expert_of.resize(static_cast<size_t>(ends[static_cast<size_t>(e + 1)]), e);
  const auto expert = [&](int64_t r) { return expert_of[static_cast<size_t>(r)]; };
  const Values xa_got = xa.read();
  Values rest, terms;
  ExactProduct of_adapters(
      0, 0, 0, [](int64_t, int64_t) { return 0.0; }, [](int64_t, int64_t) { return 0.0; });
  for (int64_t r = 0; r < kRoundingRows; ++r) {
    for (int64_t n = 0; n < kRoundingOutputs; ++n) {
      double sum = biased ? bias.at(expert(r), n) : 0.0, size = std::abs(sum);
      for (int64_t k = 0; k < kRoundingHidden; ++k) {
        const double term = x.at(tokens[static_cast<size_t>(r)], k) * w.at(expert(r) * kRoundingOutputs + n, k);
        sum += term;
        size += std::abs(term);
      }
      rest.push_back(sum);
      terms.push_back(size);
      sum = size = 0;
      for (size_t i = 0; i < adapters.size(); ++i) {
        const AdapterOfOutputs& a = *adapters[i];
        if (n < a.begin || n >= a.begin + a.count) continue;
        const int64_t first = static_cast<int64_t>(i) * expert_rank_columns(rank);
        for (int64_t j = 0; j < rank; ++j) {
          const double term =
              0.5 * xa_got[static_cast<size_t>(r * columns + first + j)] * a.b.at(expert(r) * a.count + n - a.begin, j);
          sum += term;
          size += std::abs(term);
        }
      }
      of_adapters.sum.push_back(sum);
      of_adapters.size.push_back(size);
    }
  }
  expect_rounded_once(h.read(), rest, terms, of_adapters, "h");
}

/// Gate and up apart, together, or only one of them.
TEST(ExpertRounding, AdaptersPartIsNotRoundedAway) {
  // A GPU rounds a product before it adds a bias.
  const bool takes_bias = test_device().kind == DeviceKind::kCpu;
  for (const bool biased : {false, true}) {
    if (biased && !takes_bias) continue;
    for (const int64_t rank : {8, 5}) {
      expect_rounds_once({{0, kRoundingIntermediate}, {kRoundingIntermediate, kRoundingIntermediate}}, rank, biased);
      expect_rounds_once({{0, kRoundingOutputs}}, rank, biased);
      expect_rounds_once({{kRoundingIntermediate, kRoundingIntermediate}}, rank, biased);
    }
  }
}

}  // namespace
}  // namespace hone
