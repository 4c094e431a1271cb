#include "ops/attention/cached/cached_attention.h"

#include <algorithm>

#include "kernels/device_dispatch.h"

namespace hone {

void cached_attention(const Context& context, const CachedAttentionArgs& args) {
  dispatch(context, args, &cpu::cached_attention, HONE_CUDA_OP(cached_attention));
}

void advance_cache(const Context& context, const AdvanceCacheArgs& args) {
  dispatch(context, args, &cpu::advance_cache, HONE_CUDA_OP(advance_cache));
}

namespace {

struct CachedAttentionNode : Node {
  AttentionOptions options;
  KvCache cache;
  Weight* sinks = nullptr;

  std::string_view kind() const override { return "cached_attention"; }
  OpGroup group() const override { return OpGroup::kAttention; }
  /// Assumes that the cache is full.
  double flops(const Tape& tape) const override {
    const int64_t capacity = cache.capacity(), window = options.sliding_window;
    const auto seen = static_cast<double>(window == 0 ? capacity : std::min(window, capacity));
    return 2 * seen * static_cast<double>(tape.shape(inputs[0]).numel() + tape.shape(outputs[0]).numel());
  }

  void forward(Tape& tape) override {
    cached_attention(tape.context(), {.q = tape.data(inputs[0]),
                                      .k = tape.data(inputs[1]),
                                      .v = tape.data(inputs[2]),
                                      .out = tape.data(outputs[0]),
                                      .sinks = sinks ? sinks->view().dense() : Tensor{},
                                      .options = options,
                                      .cache = cache});
  }

  void backward(Tape&) override { HONE_ASSERT(false, "a key-value cache has no gradient"); }
};

}  // namespace

Var cached_attention(Tape& tape, Var q, Var k, Var v, const AttentionOptions& options, const KvCache& cache,
                     Weight* sinks) {
  HONE_ASSERT(!tape.training(), "a key-value cache is for generation");
  const int64_t tokens = tape.shape(q)[0], sequences = cache.added.num_documents, pages = cache.k.shape[0];
  const int64_t k_width = options.num_kv_heads * options.head_dim, v_width = options.num_kv_heads * options.v_head_dim;
  HONE_ASSERT(tape.shape(q) == (Shape{tokens, options.num_heads * options.head_dim}));
  HONE_ASSERT(tape.shape(k) == (Shape{tokens, k_width}) && tape.shape(v) == (Shape{tokens, v_width}));
  HONE_ASSERT(cache.k.shape == (Shape{pages, kCachePage, k_width}));
  HONE_ASSERT(cache.v.shape == (Shape{pages, kCachePage, v_width}));
  HONE_ASSERT(cache.k.dtype == tape.dtype(q) && cache.v.dtype == tape.dtype(q) && tape.dtype(k) == tape.dtype(q));
  HONE_ASSERT(cache.lengths.shape == Shape{sequences});
  HONE_ASSERT(cache.pages.shape.rank() == 2 && cache.pages.shape[0] == sequences);
  auto node = std::make_unique<CachedAttentionNode>();
  node->options = options;
  node->cache = cache;
  node->sinks = sinks;
  node->inputs = {q, k, v};
  const Var out = tape.add_output(*node, {tokens, options.num_heads * options.v_head_dim}, tape.dtype(q));
  tape.record(std::move(node));
  return out;
}

}  // namespace hone
