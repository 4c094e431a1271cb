#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "kernels/op_bench.h"
#include "ops/attention/cached/cached_attention.h"

namespace hone {

namespace {

/// One more token for each sequence: cached keys and values are read once.
OpCase one_more_token(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const int64_t sequences = sizes.decode ? sizes.tokens : std::max<int64_t>(1, sizes.tokens / sizes.seq);
  const int64_t of_each = cache_pages(sizes.seq + 1);
  const int64_t k_width = sizes.kv_heads * sizes.head_dim, v_width = sizes.kv_heads * sizes.v_head_dim;
  const auto rows = [&](int64_t width) { return data.random({sequences, width}, sizes.dtype); };
  const Tensor q = rows(sizes.heads * sizes.head_dim), k = rows(k_width), v = rows(v_width);
  std::vector<int32_t> starts(static_cast<size_t>(sequences + 1));
  std::iota(starts.begin(), starts.end(), 0);
  const std::vector<int32_t> lengths(static_cast<size_t>(sequences), static_cast<int32_t>(sizes.seq));
  std::vector<int32_t> pages;  // by turns, as sequences that grow at the same time get them
  for (int64_t n = 0; n < sequences; ++n) {
    for (int64_t i = 0; i < of_each; ++i) pages.push_back(static_cast<int32_t>(i * sequences + n));
  }
  const KvCache cache{.k = data.random({sequences * of_each, kCachePage, k_width}, sizes.dtype),
                      .v = data.random({sequences * of_each, kCachePage, v_width}, sizes.dtype),
                      .pages = data.upload({sequences, of_each}, std::move(pages)),
                      .lengths = data.upload({sequences}, lengths),
                      .added = {data.upload({sequences + 1}, std::move(starts)), sequences, 1}};
  const AttentionOptions options{.num_heads = sizes.heads,
                                 .num_kv_heads = sizes.kv_heads,
                                 .head_dim = sizes.head_dim,
                                 .v_head_dim = sizes.v_head_dim,
                                 .scale = 1.0f / std::sqrt(static_cast<float>(sizes.head_dim))};
  const std::string shape =
      fmt::format("{} × 1 after {}, {} / {} heads", sequences, sizes.seq, sizes.heads, sizes.kv_heads);
  OpCase result;
  result.parts = {{"cached_attention", shape, "cached_attention", "forward",
                   static_cast<double>(sequences * (sizes.seq + 1) * (k_width + v_width)) *
                       static_cast<double>(size_of(sizes.dtype)),
                   1}};
  result.backward = false;
  result.record = [=](Tape& tape) {
    return cached_attention(tape, tape.input(q), tape.input(k), tape.input(v), options, cache);
  };
  return result;
}

}  // namespace

void cached_attention_cases(OpCases& cases) {
  cases.add(OpGroup::kAttention, {"cached_attention"}, one_more_token);
  cases.add_decode(OpGroup::kAttention, "cached_attention", one_more_token);
}

}  // namespace hone
