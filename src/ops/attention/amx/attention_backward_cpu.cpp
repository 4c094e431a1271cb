// Backward of attention on AMX: all operands are packed once, then one launch runs pairs of blocks in the order of
// their distance from the diagonal; a pair waits for the two before it. This replaces a fork and join for each
// distance.
#include <atomic>
#include <numbers>

#include "core/cpu/spin_wait.h"
#include "core/cpu/thread_pool.h"
#include "ops/attention/amx/attention.h"
#include "ops/attention/amx/attention_cpu.h"

namespace hone::cpu {

namespace {

using amx::kGradTokens;
constexpr int64_t kSlabsOfBlock = kGradTokens / amx::kSlab;

/// A gradient as float32 sums in tiles: 1 KiB for 16 rows x 16 elements.
struct TileSums {
  GradDest dest;
  PackedHeads sums;

  TileSums() = default;
  TileSums(ArenaScope& memory, const GradDest& destination, int64_t heads, int64_t slabs, int64_t steps)
      : dest(destination) {
    if (dest.wanted()) sums = PackedHeads(memory, heads, slabs, 4 * steps);
  }
  float* slab(int64_t head, int64_t slab) const {
    return dest.wanted() ? reinterpret_cast<float*>(sums.slab(head, slab)) : nullptr;
  }
  /// Destination of rows of a slab of a head.
  amx::GradRows rows(int64_t row, int64_t count, int64_t head, int64_t dim, float scale) const {
    return {.to = head_data(dest.dst, row, head, dim),
            .is_bf16 = dest.dst.dtype == DType::kBF16,
            .stride = dest.dst.shape[1],
            .rows = count,
            .dim = dim,
            .scale = scale,
            .beta = dest.beta};
  }
};

/// A block of queries of one document, the keys `distance` blocks before it, and one key-value head.
struct BlockPair {
  int32_t document;
  int64_t block, distance, kv_head;
};

/// Queries and keys are divided at the same positions. The pairs of one distance share no queries and no keys; a pair
/// (i, i − d) adds to the results of (i, i − d + 1) and (i − 1, i − d), so each gradient is summed in a fixed order,
/// whichever threads run. Tasks are taken in order of distance, so those two have been started and the wait is short.
class Backward {
 public:
  Backward(ArenaScope& memory, const AttentionBackwardArgs& args, int threads);
  void run(ThreadPool& pool) const;

 private:
  int64_t begin(int32_t document) const { return offsets()[document]; }
  int64_t length(int32_t document) const { return offsets()[document + 1] - offsets()[document]; }
  const int32_t* offsets() const { return forward_.sequences.cu_seqlens.as<int32_t>(); }
  /// Number of distances that a block of queries has finished.
  std::atomic_ref<int32_t> progress(int32_t document, int64_t block, int64_t kv_head) const;
  void wait_for(const BlockPair& pair) const;

  void pack(const SequenceBlock& cut) const;
  void run_pair(const BlockPair& pair, int thread) const;
  void store_finished(const BlockPair& pair) const;
  void store_queries(const BlockPair& pair) const;
  void store_keys(const BlockPair& pair) const;

  AttentionArgs forward_;
  Tensor dout_;
  AttentionShape shape_;
  int64_t d_steps_, v_steps_;
  SequenceBlocks slabs_, blocks_;
  PackedHeads q_, dout_tiles_, q_columns_, dout_columns_, k_, v_, k_rows_;
  TileSums dq_, dk_, dv_;
  Tensor delta_;     // [Hq, T]
  Tensor progress_;  // [blocks, Hkv]
  Tensor ends_;      // [distances + 1] number of tasks of smaller distances
  Tensor scratch_;   // [threads, bytes]
};

Backward::Backward(ArenaScope& memory, const AttentionBackwardArgs& args, int threads)
    : forward_(args.forward),
      dout_(args.dout),
      shape_(forward_.options, forward_.q.dtype),
      d_steps_(amx::steps_of(shape_.head_dim)),
      v_steps_(amx::steps_of(shape_.v_head_dim)),
      slabs_(memory, forward_.q.shape[0], forward_.sequences.num_documents, amx::kSlab),
      blocks_(memory, forward_.q.shape[0], forward_.sequences.num_documents, kGradTokens) {
  const int64_t tokens = forward_.q.shape[0], documents = forward_.sequences.num_documents;
  const int64_t slabs = slab_capacity(tokens, documents), heads = shape_.num_heads, kv_heads = shape_.num_kv_heads;
  q_ = PackedHeads(memory, heads, slabs, 2 * d_steps_);
  dout_tiles_ = PackedHeads(memory, heads, slabs, 2 * v_steps_);
  q_columns_ = PackedHeads(memory, heads, slabs, 2 * d_steps_);
  dout_columns_ = PackedHeads(memory, heads, slabs, 2 * v_steps_);
  k_ = PackedHeads(memory, kv_heads, slabs, 2 * d_steps_);
  v_ = PackedHeads(memory, kv_heads, slabs, 2 * v_steps_);
  k_rows_ = PackedHeads(memory, kv_heads, slabs, 2 * d_steps_);
  dq_ = TileSums(memory, args.dq, heads, slabs, d_steps_);
  dk_ = TileSums(memory, args.dk, kv_heads, slabs, d_steps_);
  dv_ = TileSums(memory, args.dv, kv_heads, slabs, v_steps_);
  delta_ = memory.take({heads, tokens}, DType::kF32);
  progress_ = memory.take({tokens / kGradTokens + documents, kv_heads}, DType::kI32);
  ends_ = memory.take({tokens / kGradTokens + 2}, DType::kI64);
  scratch_ = memory.take({threads, amx::kGradScratch}, DType::kU8);
}

std::atomic_ref<int32_t> Backward::progress(int32_t document, int64_t block, int64_t kv_head) const {
  const int64_t number = begin(document) / kGradTokens + document + block;
  return std::atomic_ref<int32_t>(progress_.as<int32_t>()[number * shape_.num_kv_heads + kv_head]);
}

void Backward::wait_for(const BlockPair& pair) const {
  if (pair.distance == 0) return;
  for (const int64_t block : {pair.block, pair.block - 1}) {
    wait_for_tasks(progress(pair.document, block, pair.kv_head), static_cast<int32_t>(pair.distance));
  }
}

void Backward::pack(const SequenceBlock& cut) const {
  const int64_t row = begin(cut.sequence) + cut.block * amx::kSlab;
  const int64_t rows = std::min(amx::kSlab, length(cut.sequence) - cut.block * amx::kSlab);
  const int64_t slab = first_slab(begin(cut.sequence), cut.sequence) + cut.block, tokens = forward_.q.shape[0];
  const int64_t dim = shape_.head_dim, v_dim = shape_.v_head_dim;
  for (int64_t head = 0; head < shape_.num_kv_heads; ++head) {
    const MatrixView k = head_rows(forward_.k, row, head, dim), v = head_rows(forward_.v, row, head, v_dim);
    pack_slab(k, rows, dim, SlabForm::kRowsRight, k_.slab(head, slab));
    pack_slab(v, rows, v_dim, SlabForm::kRowsRight, v_.slab(head, slab));
    pack_slab(k, rows, dim, SlabForm::kColumnsRight, k_rows_.slab(head, slab));
  }
  for (int64_t head = 0; head < shape_.num_heads; ++head) {
    const MatrixView d_out = head_rows(dout_, row, head, v_dim), out = head_rows(forward_.out, row, head, v_dim);
    const MatrixView q = head_rows(forward_.q, row, head, dim);
    pack_slab(q, rows, dim, SlabForm::kRowsLeft, q_.slab(head, slab));
    pack_slab(q, rows, dim, SlabForm::kColumnsLeft, q_columns_.slab(head, slab));
    pack_slab(d_out, rows, v_dim, SlabForm::kRowsLeft, dout_tiles_.slab(head, slab));
    pack_slab(d_out, rows, v_dim, SlabForm::kColumnsLeft, dout_columns_.slab(head, slab));
    for (int64_t i = 0; i < rows; ++i) {
      delta_.as<float>()[head * tokens + row + i] =
          amx::dot(static_cast<const uint16_t*>(d_out.data) + i * d_out.row_stride,
                   static_cast<const uint16_t*>(out.data) + i * out.row_stride, v_dim);
    }
  }
}

void Backward::run_pair(const BlockPair& pair, int thread) const {
  const int64_t document = begin(pair.document), tokens = forward_.q.shape[0];
  const int64_t query = pair.block * kGradTokens, key = query - pair.distance * kGradTokens;
  const int64_t rows = std::min(kGradTokens, length(pair.document) - query), row = document + query;
  const int64_t slab = first_slab(document, pair.document);
  const int64_t query_slab = slab + pair.block * kSlabsOfBlock, key_slab = query_slab - pair.distance * kSlabsOfBlock;
  for (int64_t i = 0; i < shape_.group(); ++i) {
    const int64_t head = pair.kv_head * shape_.group() + i;
    amx::differentiate({.queries = {rows, query, 1, shape_.window},
                        .first_key = key,
                        .keys = std::min(kGradTokens, length(pair.document) - key),
                        .d_steps = d_steps_,
                        .v_steps = v_steps_,
                        .scale = shape_.scale * std::numbers::log2e_v<float>,
                        .q = q_.slab(head, query_slab),
                        .dout = dout_tiles_.slab(head, query_slab),
                        .q_columns = q_columns_.slab(head, query_slab),
                        .dout_columns = dout_columns_.slab(head, query_slab),
                        .k = k_.slab(pair.kv_head, key_slab),
                        .v = v_.slab(pair.kv_head, key_slab),
                        .k_rows = k_rows_.slab(pair.kv_head, key_slab),
                        .lse = forward_.lse.as<float>() + head * tokens + row,
                        .delta = delta_.as<float>() + head * tokens + row,
                        .dq = dq_.slab(head, query_slab),
                        .dk = dk_.slab(pair.kv_head, key_slab),
                        .dv = dv_.slab(pair.kv_head, key_slab),
                        .first_of_queries = pair.distance == 0,
                        .first_of_keys = pair.distance == 0 && i == 0,
                        .scratch = scratch_.data + thread * scratch_.shape[1]});
  }
}

/// Stores the gradients that this pair has completed.
void Backward::store_finished(const BlockPair& pair) const {
  const int64_t blocks = (length(pair.document) + kGradTokens - 1) / kGradTokens,
                last = last_distance(blocks, shape_.window, kGradTokens);
  if (dq_.dest.wanted() && pair.distance == std::min(pair.block, last)) store_queries(pair);
  const int64_t key_block = pair.block - pair.distance;
  if (pair.distance == std::min(blocks - 1 - key_block, last)) store_keys(pair);
}

void Backward::store_queries(const BlockPair& pair) const {
  const int64_t slab = first_slab(begin(pair.document), pair.document);
  const int64_t first = pair.block * kGradTokens, end = std::min(first + kGradTokens, length(pair.document));
  for (int64_t at = first; at < end; at += amx::kSlab) {
    const int64_t row = begin(pair.document) + at, count = std::min(amx::kSlab, end - at);
    for (int64_t head = pair.kv_head * shape_.group(); head < (pair.kv_head + 1) * shape_.group(); ++head) {
      amx::store_rows(dq_.slab(head, slab + at / amx::kSlab),
                      dq_.rows(row, count, head, shape_.head_dim, shape_.scale));
    }
  }
}

void Backward::store_keys(const BlockPair& pair) const {
  const int64_t slab = first_slab(begin(pair.document), pair.document), head = pair.kv_head;
  const int64_t first = (pair.block - pair.distance) * kGradTokens;
  const int64_t end = std::min(first + kGradTokens, length(pair.document));
  for (int64_t at = first; at < end; at += amx::kSlab) {
    const int64_t row = begin(pair.document) + at, count = std::min(amx::kSlab, end - at),
                  from = slab + at / amx::kSlab;
    if (dk_.dest.wanted()) {
      amx::store_columns(dk_.slab(head, from), dk_.rows(row, count, head, shape_.head_dim, shape_.scale));
    }
    if (dv_.dest.wanted()) {
      amx::store_columns(dv_.slab(head, from), dv_.rows(row, count, head, shape_.v_head_dim, 1.0f));
    }
  }
}

void Backward::run(ThreadPool& pool) const {
  const auto slabs = slabs_.cut(forward_.sequences.cu_seqlens);
  pool.parallel_for(static_cast<int64_t>(slabs.size()), [&](int64_t i, int) { pack(slabs[static_cast<size_t>(i)]); });
  const auto list = blocks_.cut(forward_.sequences.cu_seqlens);
  if (list.empty()) return;
  std::fill_n(progress_.as<int32_t>(), progress_.numel(), 0);
  // The list has the last blocks of documents first: those with a partner at a given distance come first.
  const int64_t kv_heads = shape_.num_kv_heads,
                distances = last_distance(list.front().block + 1, shape_.window, kGradTokens) + 1;
  int64_t* ends = ends_.as<int64_t>();
  ends[0] = 0;
  for (int64_t distance = 0; distance < distances; ++distance) {
    const auto end =
        std::partition_point(list.begin(), list.end(), [&](const SequenceBlock& cut) { return cut.block >= distance; });
    ends[distance + 1] = ends[distance] + (end - list.begin()) * kv_heads;
  }
  pool.parallel_for(ends[distances], [&](int64_t task, int thread) {
    const int64_t distance = std::upper_bound(ends, ends + distances, task) - ends - 1;
    const int64_t i = task - ends[distance];
    const SequenceBlock& cut = list[static_cast<size_t>(i / kv_heads)];
    const BlockPair pair{cut.sequence, cut.block, distance, i % kv_heads};
    wait_for(pair);
    run_pair(pair, thread);
    store_finished(pair);
    progress(cut.sequence, cut.block, pair.kv_head)
        .store(static_cast<int32_t>(distance + 1), std::memory_order_release);
  });
}

}  // namespace

void attention_backward_on_amx(const Context& context, const AttentionBackwardArgs& args) {
  ArenaScope memory(context.scratch());
  const Backward backward(memory, args, context.threads());
  context.launch([backward](ThreadPool& pool) { backward.run(pool); });
}

}  // namespace hone::cpu
