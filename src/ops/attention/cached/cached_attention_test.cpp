#include "ops/attention/cached/cached_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <tuple>

#include "core/cpu/cpu_features.h"
#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;

using testing::Values;

struct Model {
  int64_t num_heads = 4, num_kv_heads = 2, head_dim = 16, v_head_dim = 16, window = 0;
  DType dtype = DType::kF32;
  int threads = 2;
  bool has_sinks = false;

  /// Null without sinks.
  std::unique_ptr<testing::TestWeight> sinks() const {
    return has_sinks ? std::make_unique<testing::TestWeight>(testing::random_argument({num_heads}, 9), dtype) : nullptr;
  }
  AttentionOptions options() const {
    return {.num_heads = num_heads,
            .num_kv_heads = num_kv_heads,
            .head_dim = head_dim,
            .v_head_dim = v_head_dim,
            .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
            .sliding_window = window};
  }
};

Tensor to_device(std::vector<Buffer>& memory, const std::vector<int32_t>& values) {
  memory.emplace_back(test_device(), values.size() * sizeof(int32_t));
  const Tensor tensor = memory.back().tensor({static_cast<int64_t>(values.size())}, DType::kI32);
  copy_from_host(tensor, values.data(), tensor.bytes());
  return tensor;
}

/// Memory filled with bytes 0xff: floating-point values that are not written are NaN.
Tensor unwritten(std::vector<Buffer>& memory, Shape shape, DType dtype) {
  memory.emplace_back(test_device(), std::max<size_t>(static_cast<size_t>(shape.numel()) * size_of(dtype), 1));
  const Tensor tensor = memory.back().tensor(shape, dtype);
  copy_from_host(tensor, std::vector<uint8_t>(tensor.bytes(), 0xff).data(), tensor.bytes());
  return tensor;
}

/// A tensor with these rows.
Tensor to_device(std::vector<Buffer>& memory, const std::vector<Values>& rows, int64_t width, DType dtype) {
  const Tensor tensor = unwritten(memory, {static_cast<int64_t>(rows.size()), width}, dtype);
  dispatch_float(dtype, [&](auto element) {
    std::vector<decltype(element)> elements;
    for (const Values& row : rows) {
      for (double value : row) elements.emplace_back(static_cast<float>(value));
    }
    copy_from_host(tensor, elements.data(), tensor.bytes());
  });
  return tensor;
}

std::vector<Values> to_host(const Tensor& tensor) {
  std::vector<Values> rows(static_cast<size_t>(tensor.shape[0]));
  dispatch_float(tensor.dtype, [&](auto element) {
    const auto elements = testing::host_values<decltype(element)>(tensor);
    const auto width = static_cast<size_t>(tensor.shape[1]);
    for (size_t i = 0; i < elements.size(); ++i) {
      rows[i / width].push_back(static_cast<double>(static_cast<float>(elements[i])));
    }
  });
  return rows;
}

/// q, k or v of a token: a function of its sequence and position only.
Values token_values(char what, int64_t sequence, int64_t position, int64_t width) {
  return testing::random_argument({width}, static_cast<uint64_t>(what * 1000003 + sequence * 10007 + position)).values;
}

/// q, k and v of some tokens.
struct Tokens {
  std::vector<Values> q, k, v;

  void add(const Model& model, int64_t sequence, int64_t position) {
    q.push_back(token_values('q', sequence, position, model.num_heads * model.head_dim));
    k.push_back(token_values('k', sequence, position, model.num_kv_heads * model.head_dim));
    v.push_back(token_values('v', sequence, position, model.num_kv_heads * model.v_head_dim));
  }
};

/// Sequences and their cache over several passes.
class Generation {
 public:
  /// The sequences have numbers from `first_sequence` on, and `of_each` pages, one after another or scattered.
  Generation(const Model& model, int64_t sequences, int64_t of_each, int64_t first_sequence = 0, bool scattered = true)
      : model_(model),
        pool_(model.threads),
        stream_(pool_),
        memory_(test_device()),
        sinks_(model.sinks()),
        first_sequence_(first_sequence),
        lengths_host_(static_cast<size_t>(sequences)) {
    const int64_t pages = sequences * of_each + 1;  // no sequence has the first one
    cache_.k = unwritten(buffers_, {pages, kCachePage, model.num_kv_heads * model.head_dim}, model.dtype);
    cache_.v = unwritten(buffers_, {pages, kCachePage, model.num_kv_heads * model.v_head_dim}, model.dtype);
    for (int64_t n = 0; n < sequences; ++n) {
      for (int64_t i = 0; i < of_each; ++i) {
        table_.push_back(static_cast<int32_t>(scattered ? pages - 1 - (i * sequences + n) : 1 + n * of_each + i));
      }
    }
    cache_.pages = to_device(buffers_, table_).reshaped({sequences, of_each});
    cache_.lengths = to_device(buffers_, std::vector<int32_t>(static_cast<size_t>(sequences), 0));
  }

  /// Adds counts[n] tokens to each sequence n; returns the output row of each token, sequence after sequence.
  std::vector<Values> add(const std::vector<int32_t>& counts) {
    std::vector<Buffer> inputs;
    std::vector<int32_t> offsets{0};
    for (int32_t count : counts) offsets.push_back(offsets.back() + count);
    cache_.added = {to_device(inputs, offsets), static_cast<int64_t>(counts.size()),
                    *std::max_element(counts.begin(), counts.end())};
    Tokens tokens;
    for (size_t n = 0; n < counts.size(); ++n) {
      for (int32_t i = 0; i < counts[n]; ++i) {
        tokens.add(model_, first_sequence_ + static_cast<int64_t>(n), lengths_host_[n] + i);
      }
      lengths_host_[n] += counts[n];
    }
    if (model_.window > 0) forget_pages(counts);
    return run(to_device(inputs, tokens.q, model_.num_heads * model_.head_dim, model_.dtype),
               to_device(inputs, tokens.k, model_.num_kv_heads * model_.head_dim, model_.dtype),
               to_device(inputs, tokens.v, model_.num_kv_heads * model_.v_head_dim, model_.dtype));
  }

 private:
  /// Pages before the window of all new tokens become the first page, whose rows are NaN.
  void forget_pages(const std::vector<int32_t>& counts) {
    const auto of_each = static_cast<size_t>(cache_.pages.shape[1]);
    for (size_t n = 0; n < counts.size(); ++n) {
      const int64_t first_seen = std::max<int64_t>(0, lengths_host_[n] - counts[n] - model_.window + 1);
      for (size_t i = 0; i < static_cast<size_t>(first_seen / kCachePage); ++i) table_[n * of_each + i] = 0;
    }
    copy_from_host(cache_.pages, table_.data(), cache_.pages.bytes());
  }

  std::vector<Values> run(const Tensor& q, const Tensor& k, const Tensor& v) {
    const Context context(stream_, memory_.scratch);
    TapePlan plan;
    Tensor out;
    for (int pass = 0; pass < 3; ++pass) {
      if (pass < 2) memory_.begin_dry();
      if (pass == 2) memory_.reserve();
      Tape tape(context, memory_, plan, {});
      const Var in[] = {tape.input(q), tape.input(k), tape.input(v)};
      tape.block([&] {
        out = tape.data(cached_attention(tape, in[0], in[1], in[2], model_.options(), cache_, sinks_.get()));
      });
      advance_cache(context, {cache_.lengths, cache_.added});
    }
    stream_.synchronize();
    return to_host(out);
  }

  Model model_;
  ThreadPool pool_;
  TestStream stream_;
  TapeMemory memory_;
  std::vector<Buffer> buffers_;
  KvCache cache_;
  std::unique_ptr<testing::TestWeight> sinks_;
  int64_t first_sequence_;
  std::vector<int64_t> lengths_host_;
  std::vector<int32_t> table_;
};

/// Rows of a sequence of `length` tokens computed by training's attention; on a GPU by its general kernel, which is
/// also used here for passes of several tokens where tensor cores are not.
std::vector<Values> full_attention(const Model& model, int64_t sequence, int64_t length) {
  std::vector<Buffer> buffers;
  Tokens tokens;
  for (int64_t row = 0; row < length; ++row) tokens.add(model, sequence, row);
  const auto sinks = model.sinks();
  const AttentionArgs args{.q = to_device(buffers, tokens.q, model.num_heads * model.head_dim, model.dtype),
                           .k = to_device(buffers, tokens.k, model.num_kv_heads * model.head_dim, model.dtype),
                           .v = to_device(buffers, tokens.v, model.num_kv_heads * model.v_head_dim, model.dtype),
                           .out = unwritten(buffers, {length, model.num_heads * model.v_head_dim}, model.dtype),
                           .lse = unwritten(buffers, {model.num_heads, length}, DType::kF32),
                           .sinks = sinks ? sinks->view().dense() : Tensor{},
                           .options = model.options(),
                           .sequences = {to_device(buffers, {0, static_cast<int32_t>(length)}), 1, length}};
  ThreadPool pool(2);
  TestStream stream(pool);
  stream.use_general_kernels(true);
  Arena scratch(test_device(), "scratch");
  const Context context(stream, scratch);
  attention(context, args);
  scratch.reserve(scratch.high_water());
  attention(context, args);
  stream.synchronize();
  return to_host(args.out);
}

void expect_near(const Values& got, const Values& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_LE(std::abs(got[i] - want[i]), tolerance) << i;
}

constexpr double kLargestValue = 6;  // no normal number of these tests is larger

/// Difference between two orders of summing `keys` probabilities and values: the error of a score is (D + 3) 2^-24
/// scale Σ|q||k|, with Σ|q||k| < 2 D, that of a probability twice that. A bfloat16 result may be rounded to either of
/// two neighbours, with sinks twice.
double order_tolerance(const Model& model, int64_t keys) {
  const double dim = static_cast<double>(model.head_dim), scale = static_cast<double>(model.options().scale);
  const double sums = 2 * 0x1p-24 * (2 * (dim + 3) * scale * 2 * dim + static_cast<double>(keys));
  return kLargestValue * (sums + (model.dtype == DType::kBF16 ? (model.has_sinks ? 2 : 1) * 0x1p-8 : 0));
}

/// On a GPU a pass with a single token has its own kernel, which sums in another order.
bool keeps_bits(int32_t count) { return count > 1 || test_device().kind == DeviceKind::kCpu; }

/// Attention over whole sequences rounds its probabilities on AMX, and all attention on tensor cores, by 2^-9 of
/// themselves.
double probability_tolerance(DType dtype) {
  const bool rounds = test_device().kind == DeviceKind::kCuda || active_isa() == Isa::kAmx;
  return rounds && dtype == DType::kBF16 ? kLargestValue * 0x1p-9 : 0;
}

TEST(CachedAttention, PrefillAndDecodingGiveWhatFullAttentionGives) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [heads, kv_heads, dim, v_dim] : {std::array<int64_t, 4>{2, 2, 16, 16},
                                                      {8, 1, 16, 16},
                                                      {34, 2, 20, 20},
                                                      {34, 2, 64, 64},
                                                      {34, 2, 96, 192},
                                                      {4, 2, 128, 128},
                                                      {2, 1, 256, 256},
                                                      {18, 2, 512, 512},
                                                      {3, 3, 192, 128},
                                                      {4, 2, 20, 33}}) {
      const Model model{
          .num_heads = heads, .num_kv_heads = kv_heads, .head_dim = dim, .v_head_dim = v_dim, .dtype = dtype};
      Generation generation(model, 1, 3);
      const auto want = full_attention(model, 0, 277);
      const auto in_one_pass = Generation(model, 1, 3).add({277});
      size_t row = 0;
      for (int32_t count : {250, 1, 1, 17, 1, 1, 5, 1}) {
        for (const Values& got : generation.add({count})) {
          SCOPED_TRACE(row);
          const double rounding = probability_tolerance(dtype);
          if (keeps_bits(count) && rounding == 0) {
            EXPECT_EQ(got, want[row]);
          } else {
            expect_near(got, want[row], order_tolerance(model, 277) + rounding);
          }
          if (keeps_bits(count)) {
            EXPECT_EQ(got, in_one_pass[row]);
          }
          ++row;
        }
      }
    }
  }
}

TEST(CachedAttention, AWindowHidesOldTokens) {
  for (const auto& [dim, dtype] : {std::pair{16, DType::kF32}, {16, DType::kBF16}, {128, DType::kBF16}}) {
    const Model model{.head_dim = dim, .v_head_dim = dim, .window = 40, .dtype = dtype};
    Generation generation(model, 1, 3);
    std::vector<Values> rows;
    for (int32_t count : {150, 1, 1, 110, 1, 20, 1}) {
      for (Values& row : generation.add({count})) rows.push_back(std::move(row));
    }
    const auto want = full_attention(model, 0, 284);
    ASSERT_EQ(rows.size(), want.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      expect_near(rows[i], want[i], order_tolerance(model, 40) + probability_tolerance(dtype));
    }
  }
}

TEST(CachedAttention, SinksTakeTheirShareInEveryPass) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int64_t window : {int64_t{0}, int64_t{40}}) {
      const Model model{.window = window, .dtype = dtype, .has_sinks = true};
      Generation generation(model, 1, 3);
      const auto want = full_attention(model, 0, 274);
      Model without = model;
      without.has_sinks = false;
      EXPECT_NE(want, full_attention(without, 0, 274));
      size_t row = 0;
      for (int32_t count : {150, 1, 1, 110, 1, 10, 1}) {
        for (const Values& got : generation.add({count})) {
          expect_near(got, want[row++], order_tolerance(model, 274) + probability_tolerance(dtype));
        }
      }
    }
  }
}

TEST(CachedAttention, SequencesOfABatchDoNotSeeEachOther) {
  using Case = std::tuple<int64_t, DType, int64_t>;
  for (const auto& [dim, dtype, of_each] :
       {Case{16, DType::kF32, 1}, {16, DType::kBF16, 1}, {128, DType::kBF16, 1}, {128, DType::kBF16, 2}}) {
    const Model model{.head_dim = dim, .v_head_dim = dim, .dtype = dtype, .threads = 3};
    Generation generation(model, 4, of_each);
    const std::vector<std::vector<int32_t>> passes{{5, 0, 70, 0}, {1, 3, 1, 0}, {1, 1, 0, 0}, {0, 1, 1, 2}};
    std::vector<std::vector<Values>> rows(4);
    for (const auto& counts : passes) {
      const auto added = generation.add(counts);
      auto next = added.begin();
      for (size_t n = 0; n < rows.size(); ++n) {
        for (int32_t i = 0; i < counts[n]; ++i) rows[n].push_back(*next++);
      }
    }
    for (size_t n = 0; n < rows.size(); ++n) {
      Generation by_itself(model, 1, of_each, static_cast<int64_t>(n));
      std::vector<Values> want;
      for (const auto& counts : passes) {
        for (Values& row : by_itself.add({counts[n]})) want.push_back(std::move(row));
      }
      EXPECT_EQ(rows[n], want);
    }
  }
}

TEST(CachedAttention, ThePlacesOfPagesChangeNoBits) {
  for (const auto& [dim, dtype] : {std::pair{16, DType::kF32}, {20, DType::kBF16}, {128, DType::kBF16}}) {
    for (int64_t window : {0, 40, 200}) {
      const Model model{.head_dim = dim, .v_head_dim = dim, .window = window, .dtype = dtype};
      Generation scattered(model, 2, 5), in_order(model, 2, 5, 0, false);
      for (const auto& counts :
           std::vector<std::vector<int32_t>>{{250, 100}, {1, 27}, {6, 1}, {130, 2}, {1, 126}, {1, 1}, {0, 1}}) {
        EXPECT_EQ(scattered.add(counts), in_order.add(counts)) << dim << " window " << window;
      }
    }
  }
}

TEST(CachedAttention, AFullCacheIsAnError) {
  if (test_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "lengths are checked on a CPU only";
  Generation generation(Model{}, 1, 1);
  generation.add({kCachePage});
  EXPECT_ANY_THROW(generation.add({1}));
}

}  // namespace
}  // namespace hone
