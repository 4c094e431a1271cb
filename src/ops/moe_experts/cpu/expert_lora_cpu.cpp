#include "ops/moe_experts/cpu/expert_lora_cpu.h"

#include <cstring>

namespace hone::cpu {

template <class T>
void ExpertLora::mask_rows(const RowMatrix& src, const Tensor& dst, float beta) const {
  const uint64_t seed = dropout_.scalars->seed;
  const int64_t n = dst.shape[1];
  for_each_expert_row(pool_, rows_, [&](int64_t expert, int64_t r) {
    const int32_t token = rows_.token.as<int32_t>()[r];
    const uint64_t key = lora_dropout_key(seed, adapter_.stream_id, static_cast<uint32_t>(rows_.first_expert + expert));
    const T* from = src.tensor.as<T>() + (src.index ? src.index[r] : r) * n;
    dispatch_float(dst.dtype, [&](auto element) {
      using U = decltype(element);
      lora_drop_row(key, adapter_.dropout, dropout_.sample_ids.as<int64_t>()[token],
                    dropout_.positions.as<int32_t>()[token], from, dst.as<U>() + r * n, n, beta);
    });
  });
}

RowMatrix ExpertLora::masked(const RowMatrix& a) const {
  if (adapter_.dropout == 0.0f) return a;
  Tensor rows = wide_;
  rows.dtype = a.tensor.dtype;
  dispatch_float(rows.dtype, [&](auto element) { mask_rows<decltype(element)>(a, rows, 0.0f); });
  return {rows};
}

void ExpertLora::project(const RowMatrix& masked_input, const RowMatrix& xa) const {
  const auto a_transposed = [&](int64_t e) { return transposed(expert_matrix(adapter_.lora_a, e)); };
  rows_product(pool_, rows_, masked_input, a_transposed, adapter_.lora_a.shape[2], xa, adapter_.rank(),
               {.may_round = may_round_});
}

void ExpertLora::expand(const RowMatrix& xa, const Tensor& y, float beta) const {
  const auto b_transposed = [&](int64_t e) { return transposed(expert_matrix(adapter_.lora_b, e)); };
  rows_product(pool_, rows_, xa, b_transposed, adapter_.rank(), outputs({y}), adapter_.out_count,
               {.alpha = adapter_.input_scaling(), .beta = beta, .may_round = may_round_});
}

void ExpertLora::project_grad(const RowMatrix& dy, const RowMatrix& v) const {
  const auto b = [&](int64_t e) { return expert_matrix(adapter_.lora_b, e); };
  rows_product(pool_, rows_, outputs(dy), b, adapter_.out_count, v, adapter_.rank(), {.may_round = may_round_});
}

void ExpertLora::add_input_grad(const RowMatrix& v, const Tensor& da) const {
  const bool drops = adapter_.dropout != 0.0f;
  const auto a = [&](int64_t e) { return expert_matrix(adapter_.lora_a, e); };
  rows_product(pool_, rows_, v, a, adapter_.rank(), {drops ? wide_ : da}, da.shape[1],
               {.alpha = adapter_.input_scaling(), .beta = drops ? 0.0f : 1.0f, .may_round = may_round_});
  if (drops) mask_rows<float>({wide_}, da, 1.0f);
}

void ExpertLora::lora_a_grad(const RowMatrix& v, const RowMatrix& masked_input, const GradDest& dest) const {
  weight_product(pool_, rows_, v, masked_input, dest, adapter_.input_scaling(), may_round_);
}

void ExpertLora::lora_b_grad(const RowMatrix& dy, const RowMatrix& xa, const GradDest& dest) const {
  weight_product(pool_, rows_, outputs(dy), xa, dest, adapter_.input_scaling(), may_round_);
}

namespace {

/// Whether each of n outputs has exactly one adapter.
bool share_outputs(const std::vector<ExpertAdapterView>& adapters, int64_t n) {
  for (const ExpertAdapterView& a : adapters) {
    for (const ExpertAdapterView& b : adapters) {
      if (&a != &b && a.out_begin < b.out_begin + b.out_count && b.out_begin < a.out_begin + a.out_count) return false;
    }
    n -= a.out_count;
  }
  return n == 0;
}

}  // namespace

void expand_all(ThreadPool& pool, const ExpertRows& rows, const std::vector<ExpertAdapterView>& adapters,
                const Tensor& xa, DType activations, const Tensor& y) {
  const bool overwrites = share_outputs(adapters, y.shape[1]);
  if (!overwrites) {
    pool.parallel_ranges(rows_in_use(rows), 32, [&](int64_t begin, int64_t end) {
      const Tensor part = y.rows(begin, end - begin);
      std::memset(part.data, 0, part.bytes());
    });
  }
  for (size_t i = 0; i < adapters.size(); ++i) {
    ExpertLora(pool, rows, adapters[i], {}, {}, activations)
        .expand(rank_columns(adapters, i, xa), y, overwrites ? 0.0f : 1.0f);
  }
}

bool any_dropout(const std::vector<ExpertAdapterView>& adapters) {
  return std::any_of(adapters.begin(), adapters.end(), [](const ExpertAdapterView& a) { return a.dropout != 0.0f; });
}

RowMatrix rank_columns(const std::vector<ExpertAdapterView>& adapters, size_t i, const Tensor& xa) {
  RowMatrix columns{xa};
  for (size_t before = 0; before < i; ++before) columns.col_begin += expert_rank_columns(adapters[before].rank());
  return columns;
}

Tensor take_rank_rows(ArenaScope& scratch, const std::vector<ExpertAdapterView>& adapters, int64_t rows, DType dtype) {
  int64_t columns = 0;
  for (const ExpertAdapterView& a : adapters) columns += expert_rank_columns(a.rank());
  return columns > 0 ? scratch.take({rows, columns}, dtype) : Tensor{};
}

void clear_rank_padding(ThreadPool& pool, const std::vector<ExpertAdapterView>& adapters, const Tensor& xa) {
  for (size_t i = 0; i < adapters.size(); ++i) {
    const int64_t rank = adapters[i].rank(), padding = expert_rank_columns(rank) - rank;
    if (padding == 0) continue;
    const RowMatrix columns = rank_columns(adapters, i, xa);
    const size_t element = size_of(xa.dtype), stride = static_cast<size_t>(xa.shape[1]) * element;
    pool.parallel_ranges(xa.shape[0], 1024, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        std::byte* row = xa.data + static_cast<size_t>(r) * stride;
        std::memset(row + static_cast<size_t>(columns.col_begin + rank) * element, 0,
                    static_cast<size_t>(padding) * element);
      }
    });
  }
}

}  // namespace hone::cpu
