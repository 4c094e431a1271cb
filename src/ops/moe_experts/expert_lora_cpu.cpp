#include "ops/moe_experts/expert_lora_cpu.h"

namespace hone::cpu {

template <class T>
void ExpertLora::mask_rows(const RowMatrix& src, const Tensor& dst, float beta) const {
  const uint64_t seed = dropout_.scalars->seed;
  const int64_t n = dst.shape[1];
  for_each_expert_row(pool_, rows_, [&](int64_t expert, int64_t r) {
    const int32_t token = rows_.token.as<int32_t>()[r];
    const uint64_t key = lora_dropout_key(seed, adapter_.stream_id, static_cast<uint32_t>(expert));
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
  rows_product(pool_, rows_, masked_input, a_transposed, adapter_.lora_a.shape[2], xa, adapter_.rank());
}

void ExpertLora::expand(const RowMatrix& xa, const Tensor& y) const {
  const auto b_transposed = [&](int64_t e) { return transposed(expert_matrix(adapter_.lora_b, e)); };
  rows_product(pool_, rows_, xa, b_transposed, adapter_.rank(), outputs({y}), adapter_.out_count,
               adapter_.input_scaling(), 1.0f);
}

void ExpertLora::project_grad(const RowMatrix& dy, const Tensor& v) const {
  const auto b = [&](int64_t e) { return expert_matrix(adapter_.lora_b, e); };
  rows_product(pool_, rows_, outputs(dy), b, adapter_.out_count, {v}, adapter_.rank());
}

void ExpertLora::add_input_grad(const Tensor& v, const Tensor& da) const {
  const bool drops = adapter_.dropout != 0.0f;
  const auto a = [&](int64_t e) { return expert_matrix(adapter_.lora_a, e); };
  rows_product(pool_, rows_, {v}, a, adapter_.rank(), {drops ? wide_ : da}, da.shape[1], adapter_.input_scaling(),
               drops ? 0.0f : 1.0f);
  if (drops) mask_rows<float>({wide_}, da, 1.0f);
}

void ExpertLora::lora_a_grad(const Tensor& v, const RowMatrix& masked_input, const GradDest& dest) const {
  weight_product(pool_, rows_, {v}, masked_input, dest, adapter_.input_scaling());
}

void ExpertLora::lora_b_grad(const RowMatrix& dy, const RowMatrix& xa, const GradDest& dest) const {
  weight_product(pool_, rows_, outputs(dy), xa, dest, adapter_.input_scaling());
}

bool any_dropout(const std::vector<ExpertAdapterView>& adapters) {
  return std::any_of(adapters.begin(), adapters.end(), [](const ExpertAdapterView& a) { return a.dropout != 0.0f; });
}

RowMatrix rank_columns(const std::vector<ExpertAdapterView>& adapters, size_t i, const Tensor& xa) {
  RowMatrix columns{xa};
  for (size_t before = 0; before < i; ++before) columns.col_begin += expert_rank_columns(adapters[before].rank());
  return columns;
}

std::vector<Tensor> take_rank_rows(ArenaScope& scratch, const std::vector<ExpertAdapterView>& adapters, int64_t rows) {
  std::vector<Tensor> tensors;
  for (const ExpertAdapterView& a : adapters) tensors.push_back(scratch.take({rows, a.rank()}, DType::kF32));
  return tensors;
}

}  // namespace hone::cpu
