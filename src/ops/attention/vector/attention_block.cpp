#include "ops/attention/vector/attention_block.h"

#include <array>
#include <cmath>

#include "ops/attention/vector/score_kernel.h"

namespace hone::cpu {

MatrixView rows_from(const MatrixView& view, int64_t begin) {
  MatrixView rows = view;
  rows.data =
      static_cast<const std::byte*>(view.data) + begin * view.row_stride * static_cast<int64_t>(size_of(view.dtype));
  return rows;
}

std::byte* head_data(const Tensor& tensor, int64_t row, int64_t head, int64_t head_dim) {
  return tensor.data + (row * tensor.shape[1] + head * head_dim) * static_cast<int64_t>(size_of(tensor.dtype));
}

MatrixView head_rows(const Tensor& tensor, int64_t row, int64_t head, int64_t head_dim) {
  return {.data = head_data(tensor, row, head, head_dim), .dtype = tensor.dtype, .row_stride = tensor.shape[1]};
}

SequenceBlocks::SequenceBlocks(ArenaScope& scratch, int64_t tokens, int64_t num_sequences, int64_t block_tokens)
    : memory_(scratch.take({tokens / block_tokens + num_sequences, 2}, DType::kI32)),
      tokens_(tokens),
      num_sequences_(num_sequences),
      block_tokens_(block_tokens) {}

std::span<const SequenceBlock> SequenceBlocks::cut(const Tensor& cu_seqlens) const {
  const int32_t* offsets = cu_seqlens.as<int32_t>();
  const auto blocks_of = [&](int64_t n) { return (offsets[n + 1] - offsets[n] + block_tokens_ - 1) / block_tokens_; };
  HONE_ASSERT(cu_seqlens.numel() == num_sequences_ + 1);
  HONE_ASSERT(offsets[0] == 0 && offsets[num_sequences_] == tokens_, "offsets do not cover the tokens");
  int64_t most = 0;
  for (int64_t n = 0; n < num_sequences_; ++n) {
    HONE_ASSERT(offsets[n] <= offsets[n + 1], "offsets do not rise");
    most = std::max(most, blocks_of(n));
  }
  auto* list = reinterpret_cast<SequenceBlock*>(memory_.data);
  size_t count = 0;
  for (int64_t block = most; block-- > 0;) {
    for (int64_t n = 0; n < num_sequences_; ++n) {
      if (block < blocks_of(n)) list[count++] = {static_cast<int32_t>(n), static_cast<int32_t>(block)};
    }
  }
  return {list, count};
}

AttentionShape::AttentionShape(const AttentionOptions& options, DType activations)
    : num_heads(options.num_heads),
      num_kv_heads(options.num_kv_heads),
      head_dim(options.head_dim),
      v_head_dim(options.v_head_dim),
      scale(options.scale),
      window(options.sliding_window),
      dtype(activations) {
  HONE_ASSERT(num_kv_heads > 0 && num_heads % num_kv_heads == 0 && window >= 0);
  HONE_ASSERT(head_dim > 0 && v_head_dim > 0);
}

AttendScratch::AttendScratch(ArenaScope& scratch, const AttentionShape& shape, int threads)
    : rows_((shape.query_tokens() * shape.group() + 15) / 16 * 16),
      padded_v_dim_(shape.padded_v_dim()),
      group_(shape.group()),
      num_heads_(shape.num_heads) {
  row_index_ = scratch.take({rows_}, DType::kI32);
  per_thread_ = scratch.take({threads, rows_ * (kBlockKeys + padded_v_dim_ + 2)}, DType::kF32);
}

void fill_row_index(int64_t group, int64_t num_heads, const Tensor& row_index) {
  for (int64_t row = 0; row < row_index.numel(); ++row) {
    row_index.as<int32_t>()[row] = static_cast<int32_t>(row / group * num_heads + row % group);
  }
}

void AttendScratch::prepare() const { fill_row_index(group_, num_heads_, row_index_); }

namespace {

/// out = Σ / sum and lse = largest + log(sum), row by row.
template <class T>
void finish(const AttentionShape& shape, const QueryBlock& block, const OnlineSoftmax& state) {
  const int64_t group = shape.group(), dim = shape.v_head_dim;
  for (int64_t row = 0; row < block.tokens * group; ++row) {
    const int64_t token = row / group, head = row % group;
    const float inverse = 1.0f / state.sum[row];
    T* out = reinterpret_cast<T*>(block.out) + (token * shape.num_heads + head) * dim;
    const float* sums = state.out + row * state.out_stride;
    for (int64_t i = 0; i < dim; ++i) out[i] = T(sums[i] * inverse);
    if (block.lse) block.lse[head * block.lse_stride + token] = state.largest[row] + std::log(state.sum[row]);
  }
}

}  // namespace

void attend(const AttentionShape& shape, const QueryBlock& block, const AttendScratch& scratch, int thread) {
  const int64_t rows = block.tokens * shape.group(), dim = shape.head_dim;
  const int64_t end = block.first_position + block.tokens;  // no query of the block attends to later keys
  const int64_t first_seen = shape.window > 0 ? std::max<int64_t>(0, block.first_position - shape.window + 1) : 0;
  const MatrixView q{.data = block.q, .dtype = shape.dtype, .row_stride = dim, .row_index = scratch.row_index()};
  const OnlineSoftmax state{.largest = scratch.largest(thread),
                            .sum = scratch.sum(thread),
                            .out = scratch.out(thread),
                            .out_stride = shape.padded_v_dim()};
  std::array<int32_t, kBlockKeys> index;  // rows of values
  std::fill_n(state.largest, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, rows, 0.0f);
  for (int64_t key = first_seen; key < end; key += kBlockKeys) {
    const ScoreBlock scores{.scores = scratch.scores(thread),
                            .stride = kBlockKeys,
                            .rows = rows,
                            .cols = std::min(kBlockKeys, end - key),
                            .first_query = block.first_position,
                            .first_key = key,
                            .group = shape.group(),
                            .window = shape.window};
    int64_t cols = 0;
    for (int64_t col = 0; col < scores.cols; col += cols) {  // those of a page at a time, whose rows are contiguous
      cols = scores.cols - col;
      if (block.pages) cols = std::min(cols, kCachePage - (key + col) % kCachePage);
      gemm_serial({.m = rows,
                   .n = cols,
                   .k = dim,
                   .a = q,
                   .b = transposed(rows_from(block.k, block.key_row(key + col))),
                   .c = scores.scores + col,
                   .ldc = scores.stride,
                   .alpha = shape.scale});
    }
    score_kernel().softmax(scores, state);
    // A sum over all keys of the block is one product, so that pages change none of its bits.
    MatrixView values = block.v;
    if (block.pages) {
      for (size_t i = 0; i < static_cast<size_t>(scores.cols); ++i) {
        index[i] = static_cast<int32_t>(block.key_row(key + static_cast<int64_t>(i)));
      }
      values.row_index = index.data();
    } else {
      values = rows_from(values, key);
    }
    gemm_serial({.m = rows,
                 .n = shape.v_head_dim,
                 .k = scores.cols,
                 .a = {.data = scores.scores, .row_stride = scores.stride},
                 .b = values,
                 .c = state.out,
                 .ldc = state.out_stride,
                 .beta = key == first_seen ? 0.0f : 1.0f});
  }
  dispatch_float(shape.dtype, [&](auto element) { finish<decltype(element)>(shape, block, state); });
}

}  // namespace hone::cpu
