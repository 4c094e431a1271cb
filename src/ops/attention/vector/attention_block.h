// Shared by the CPU code of attention and cached_attention: dividing packed sequences into blocks, and one block of
// queries against all keys that it attends to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "core/stream/context.h"
#include "kernels/cpu/gemm/gemm.h"
#include "ops/attention/attention.h"
#include "ops/attention/cache_pages.h"

namespace hone::cpu {

/// Rows of queries (tokens x the heads that share their keys) and keys in a block of scores: large enough for matrix
/// products near their peak at head_dim 64 to 128, small enough for an L2 cache.
inline constexpr int64_t kBlockRows = 128;
inline constexpr int64_t kBlockKeys = 256;

/// A view of rows from `begin` on.
MatrixView rows_from(const MatrixView& view, int64_t begin);

/// Head `head` of [rows, heads · head_dim] from row `row` on.
std::byte* head_data(const Tensor& tensor, int64_t row, int64_t head, int64_t head_dim);
MatrixView head_rows(const Tensor& tensor, int64_t row, int64_t head, int64_t head_dim);

/// Block `block` of sequence `sequence`.
struct SequenceBlock {
  int32_t sequence;
  int32_t block;
};

/// Blocks of `block_tokens` tokens over packed sequences, the last ones of each sequence first: these attend to the
/// most keys, and long tasks should start early.
class SequenceBlocks {
 public:
  /// Allocates the list.
  SequenceBlocks(ArenaScope& scratch, int64_t tokens, int64_t num_sequences, int64_t block_tokens);

  /// Inside launched work: fills the list for these offsets, which must increase from 0 to `tokens`.
  std::span<const SequenceBlock> cut(const Tensor& cu_seqlens) const;

 private:
  Tensor memory_;
  int64_t tokens_, num_sequences_, block_tokens_;
};

/// The constants of a call.
struct AttentionShape {
  int64_t num_heads, num_kv_heads, head_dim, v_head_dim;
  float scale;
  int64_t window;  ///< 0: none
  DType dtype;

  AttentionShape(const AttentionOptions& options, DType activations);
  int64_t group() const { return num_heads / num_kv_heads; }
  /// Tokens in a block of queries.
  int64_t query_tokens() const { return std::max<int64_t>(1, kBlockRows / group()); }
  int64_t padded_v_dim() const { return (v_head_dim + 15) / 16 * 16; }
};

/// row_index i32: the rows of the matrix [tokens · heads, D] that are queries of `group` heads which share keys, token
/// by token.
void fill_row_index(int64_t group, int64_t num_heads, const Tensor& row_index);

/// The largest distance between blocks of `block_tokens` tokens at which queries attend to any key; window 0: no limit.
inline int64_t last_distance(int64_t blocks_of_longest, int64_t window, int64_t block_tokens) {
  const int64_t last = blocks_of_longest - 1;
  return window > 0 ? std::min(last, (window - 1 + block_tokens - 1) / block_tokens) : last;
}

/// Scratch of attend(), one per thread.
class AttendScratch {
 public:
  AttendScratch(ArenaScope& scratch, const AttentionShape& shape, int threads);

  /// Inside launched work, before the threads start.
  void prepare() const;
  const int32_t* row_index() const { return row_index_.as<int32_t>(); }
  float* scores(int thread) const { return per_thread_.as<float>() + thread * per_thread_.shape[1]; }
  float* out(int thread) const { return scores(thread) + rows_ * kBlockKeys; }
  float* largest(int thread) const { return out(thread) + rows_ * padded_v_dim_; }
  float* sum(int thread) const { return largest(thread) + rows_; }

 private:
  Tensor row_index_;   // [rows] of a block of queries: rows of the matrix [tokens · heads, D]
  Tensor per_thread_;  // [threads, floats]
  int64_t rows_, padded_v_dim_, group_, num_heads_;
};

/// A block of queries of one sequence that share a key-value head.
struct QueryBlock {
  const std::byte* q;              ///< first token and head of the block in [T, Hq·D]
  std::byte* out;                  ///< same position in [T, Hq·Dv]
  float* lse;                      ///< same position in [Hq, lse_stride], or null
  int64_t lse_stride;              ///< between heads
  int64_t tokens;                  ///< at most shape.query_tokens()
  int64_t first_position;          ///< position in the sequence
  MatrixView k, v;                 ///< [rows, D] and [rows, Dv]; without pages, a row for each position of the sequence
  const int32_t* pages = nullptr;  ///< where positions are (cache_row), or null

  int64_t key_row(int64_t position) const { return pages ? cache_row(pages, position) : position; }
};

/// Computes out (and lse) of the block on the calling thread.
void attend(const AttentionShape& shape, const QueryBlock& block, const AttendScratch& scratch, int thread);

}  // namespace hone::cpu
