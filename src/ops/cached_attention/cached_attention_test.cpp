#include "ops/cached_attention/cached_attention.h"

#include <cmath>
#include <cstring>

#include "ops/op_harness.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;

using testing::Values;

struct Model {
  int64_t num_heads = 4, num_kv_heads = 2, head_dim = 16, window = 0;
  DType dtype = DType::kF32;
  int threads = 2;

  AttentionOptions options() const {
    return {.num_heads = num_heads,
            .num_kv_heads = num_kv_heads,
            .head_dim = head_dim,
            .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
            .sliding_window = window};
  }
};

Tensor to_device(std::vector<Buffer>& memory, const std::vector<int32_t>& values) {
  memory.emplace_back(test_device(), values.size() * sizeof(int32_t));
  const Tensor tensor = memory.back().tensor({static_cast<int64_t>(values.size())}, DType::kI32);
  std::memcpy(tensor.data, values.data(), tensor.bytes());
  return tensor;
}

Tensor empty(std::vector<Buffer>& memory, Shape shape, DType dtype) {
  memory.emplace_back(test_device(), static_cast<size_t>(shape.numel()) * size_of(dtype));
  return memory.back().tensor(shape, dtype);
}

void write_row(const Tensor& tensor, int64_t row, const Values& values) {
  dispatch_float(tensor.dtype, [&](auto element) {
    using T = decltype(element);
    const int64_t width = tensor.shape[-1];
    for (int64_t i = 0; i < width; ++i) {
      tensor.as<T>()[row * width + i] = T(static_cast<float>(values[static_cast<size_t>(i)]));
    }
  });
}

Values read_row(const Tensor& tensor, int64_t row) {
  Values values;
  dispatch_float(tensor.dtype, [&](auto element) {
    const auto* from = tensor.as<decltype(element)>() + row * tensor.shape[-1];
    for (int64_t i = 0; i < tensor.shape[-1]; ++i) values.push_back(static_cast<double>(static_cast<float>(from[i])));
  });
  return values;
}

/// q, k or v of a token: a function of its sequence and position only.
Values token_values(char what, int64_t sequence, int64_t position, int64_t width) {
  return testing::random_argument({width}, static_cast<uint64_t>(what * 1000003 + sequence * 10007 + position)).values;
}

/// Sequences and their cache over several passes.
class Generation {
 public:
  Generation(const Model& model, int64_t sequences, int64_t capacity)
      : model_(model),
        pool_(model.threads),
        stream_(pool_),
        memory_(test_device()),
        lengths_host_(sequences) {
    const Shape shape{sequences, capacity, model.num_kv_heads * model.head_dim};
    cache_.k = empty(buffers_, shape, model.dtype);
    cache_.v = empty(buffers_, shape, model.dtype);
    // What has not been written is NaN: reading it shows.
    std::memset(cache_.k.data, 0xff, cache_.k.bytes());
    std::memset(cache_.v.data, 0xff, cache_.v.bytes());
    cache_.lengths = to_device(buffers_, std::vector<int32_t>(static_cast<size_t>(sequences), 0));
  }

  /// Adds counts[n] tokens to each sequence n; returns the output row of each token, all sequences in turn.
  std::vector<Values> add(const std::vector<int32_t>& counts) {
    std::vector<Buffer> inputs;
    std::vector<int32_t> offsets{0};
    for (int32_t count : counts) offsets.push_back(offsets.back() + count);
    cache_.added = {to_device(inputs, offsets), static_cast<int64_t>(counts.size()), 0};
    const int64_t tokens = offsets.back(), kv = model_.num_kv_heads * model_.head_dim;
    const Tensor q = empty(inputs, {tokens, model_.num_heads * model_.head_dim}, model_.dtype);
    const Tensor k = empty(inputs, {tokens, kv}, model_.dtype), v = empty(inputs, {tokens, kv}, model_.dtype);
    for (size_t n = 0, row = 0; n < counts.size(); ++n) {
      for (int32_t i = 0; i < counts[n]; ++i, ++row) {
        const auto sequence = static_cast<int64_t>(n), at = static_cast<int64_t>(row);
        write_row(q, at, token_values('q', sequence, lengths_host_[n] + i, q.shape[1]));
        write_row(k, at, token_values('k', sequence, lengths_host_[n] + i, kv));
        write_row(v, at, token_values('v', sequence, lengths_host_[n] + i, kv));
      }
      lengths_host_[n] += counts[n];
    }
    return run(q, k, v);
  }

 private:
  std::vector<Values> run(const Tensor& q, const Tensor& k, const Tensor& v) {
    const Context context(stream_, memory_.scratch);
    TapePlan plan;
    Tensor out;
    for (int pass = 0; pass < 3; ++pass) {
      if (pass < 2) memory_.begin_dry();
      if (pass == 2) memory_.reserve();
      Tape tape(context, memory_, plan, {});
      const Var in[] = {tape.input(q), tape.input(k), tape.input(v)};
      tape.block([&] { out = tape.data(cached_attention(tape, in[0], in[1], in[2], model_.options(), cache_)); });
      advance_cache(context, {cache_.lengths, cache_.added});
    }
    stream_.synchronize();
    std::vector<Values> rows;
    for (int64_t row = 0; row < out.shape[0]; ++row) rows.push_back(read_row(out, row));
    return rows;
  }

  Model model_;
  ThreadPool pool_;
  TestStream stream_;
  TapeMemory memory_;
  std::vector<Buffer> buffers_;
  KvCache cache_;
  std::vector<int64_t> lengths_host_;
};

/// Rows of a sequence of `length` tokens through the attention that training uses.
std::vector<Values> full_attention(const Model& model, int64_t sequence, int64_t length) {
  std::vector<Buffer> buffers;
  const int64_t kv = model.num_kv_heads * model.head_dim;
  const Tensor q = empty(buffers, {length, model.num_heads * model.head_dim}, model.dtype);
  const Tensor k = empty(buffers, {length, kv}, model.dtype), v = empty(buffers, {length, kv}, model.dtype);
  for (int64_t row = 0; row < length; ++row) {
    write_row(q, row, token_values('q', sequence, row, q.shape[1]));
    write_row(k, row, token_values('k', sequence, row, kv));
    write_row(v, row, token_values('v', sequence, row, kv));
  }
  const AttentionArgs args{.q = q,
                           .k = k,
                           .v = v,
                           .out = empty(buffers, q.shape, model.dtype),
                           .lse = empty(buffers, {model.num_heads, length}, DType::kF32),
                           .options = model.options(),
                           .sequences = {to_device(buffers, {0, static_cast<int32_t>(length)}), 1, length}};
  ThreadPool pool(2);
  TestStream stream(pool);
  Arena scratch(test_device(), "scratch");
  const Context context(stream, scratch);
  attention(context, args);
  scratch.reserve(scratch.high_water());
  attention(context, args);
  stream.synchronize();
  std::vector<Values> rows;
  for (int64_t row = 0; row < length; ++row) rows.push_back(read_row(args.out, row));
  return rows;
}

void expect_near(const Values& got, const Values& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_LE(std::abs(got[i] - want[i]), tolerance) << i;
}

TEST(CachedAttention, PrefillAndDecodingGiveTheBitsOfFullAttention) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{2, 2}, {8, 1}}) {
      const Model model{.num_heads = heads, .num_kv_heads = kv_heads, .dtype = dtype};
      Generation generation(model, 1, 300);
      std::vector<Values> rows;
      for (int32_t count : {250, 1, 1, 17, 1, 1, 5, 1}) {
        for (Values& row : generation.add({count})) rows.push_back(std::move(row));
      }
      EXPECT_EQ(rows, full_attention(model, 0, 277));
    }
  }
}

TEST(CachedAttention, AWindowHidesOldTokens) {
  const Model model{.window = 20};
  Generation generation(model, 1, 300);
  std::vector<Values> rows;
  for (int32_t count : {150, 1, 1, 40, 1}) {
    for (Values& row : generation.add({count})) rows.push_back(std::move(row));
  }
  const auto want = full_attention(model, 0, 193);
  ASSERT_EQ(rows.size(), want.size());
  // The same 20 probabilities and values of at most 5, summed in another order.
  for (size_t i = 0; i < rows.size(); ++i) expect_near(rows[i], want[i], 2 * 20 * 5 * 0x1p-24);
}

TEST(CachedAttention, SequencesOfABatchDoNotSeeEachOther) {
  const Model model{.threads = 3};
  Generation generation(model, 3, 80);
  std::vector<std::vector<Values>> rows(3);
  const std::vector<std::vector<int32_t>> passes{{5, 0, 70}, {1, 3, 1}, {1, 1, 0}, {0, 1, 1}};
  for (const auto& counts : passes) {
    const auto added = generation.add(counts);
    auto next = added.begin();
    for (size_t n = 0; n < 3; ++n) {
      for (int32_t i = 0; i < counts[n]; ++i) rows[n].push_back(*next++);
    }
  }
  for (size_t n = 0; n < 3; ++n) {
    EXPECT_EQ(rows[n], full_attention(model, static_cast<int64_t>(n), static_cast<int64_t>(rows[n].size())));
  }
}

TEST(CachedAttention, AFullCacheIsAnError) {
  Generation generation(Model{}, 1, 8);
  generation.add({8});
  EXPECT_ANY_THROW(generation.add({1}));
}

}  // namespace
}  // namespace hone
