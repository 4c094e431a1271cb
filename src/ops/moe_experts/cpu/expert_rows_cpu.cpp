#include "ops/moe_experts/cpu/expert_rows_cpu.h"
#include "core/cpu/thread_pool.h"

namespace hone::cpu {

void moe_permutation(const Context& context, const ExpertRowsArgs& args) {
  context.launch([args](ThreadPool&) {
    // A counting sort on one thread: it takes a thousandth of the products' time.
    const ExpertRows& rows = args.rows;
    const int64_t k = args.ids.shape[1], count = args.ids.numel(), experts = rows.offsets.numel() - 1;
    const int64_t all = rows.partial() ? rows.all_experts : experts;
    const int32_t* ids = args.ids.as<int32_t>();
    int64_t* offsets = rows.offsets.as<int64_t>();
    const auto is_here = [&](int64_t expert) { return expert >= 0 && expert < experts; };
    std::fill_n(offsets, experts + 1, int64_t{0});
    for (int64_t i = 0; i < count; ++i) {
      HONE_ASSERT(ids[i] >= 0 && ids[i] < all, "expert " + std::to_string(ids[i]));
      const int64_t expert = ids[i] - rows.first_expert;
      if (is_here(expert)) ++offsets[expert + 1];
    }
    for (int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
    HONE_ASSERT(offsets[experts] <= rows.token.numel(), "a token chooses an expert twice");
    std::vector<int64_t> next(offsets, offsets + experts);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t expert = ids[i] - rows.first_expert;
      int32_t& row_of_choice = rows.row.as<int32_t>()[i];
      row_of_choice = -1;
      if (!is_here(expert)) continue;
      const int64_t row = next[static_cast<size_t>(expert)]++;
      rows.token.as<int32_t>()[row] = static_cast<int32_t>(i / k);
      rows.assignment.as<int32_t>()[row] = static_cast<int32_t>(i);
      row_of_choice = static_cast<int32_t>(row);
    }
  });
}

ExpertBias::ExpertBias(ArenaScope& scratch, const Tensor& bias, DType dtype) : given_(bias) {
  if (bias.defined() && bias.dtype != dtype) converted_ = scratch.take(bias.shape, dtype);
}

Tensor ExpertBias::ready(ThreadPool& pool) const {
  if (!converted_.defined()) return given_;
  convert_elements(pool, given_, converted_);
  return converted_;
}

void bias_grad(ThreadPool& pool, const ExpertRows& rows, const RowMatrix& dy, const Tensor& weights,
               const GradDest& dbias) {
  constexpr int64_t kColumns = 256;  // columns per task
  const RowMath& math = row_math();
  const int64_t n = dy.tensor.shape[1], blocks = (n + kColumns - 1) / kColumns;
  const int64_t* offsets = rows.offsets.as<int64_t>();
  pool.parallel_for(dbias.dst.shape[0] * blocks, [&](int64_t task, int) {
    const int64_t expert = task / blocks, column = task % blocks * kColumns, count = std::min(kColumns, n - column);
    float sum[kColumns] = {}, buffer[kColumns];
    for (int64_t r = offsets[expert]; r < offsets[expert + 1]; ++r) {
      const float w = weights.defined() ? element_of(weights, rows.assignment.as<int32_t>()[r]) : 1.0f;
      const int64_t row = dy.index ? dy.index[r] : r;
      math.add_scaled(w, load_block(math, dy.tensor, row * n + column, buffer, count), sum, count);
    }
    store_block(math, sum, dbias, expert * n + column, count);
  });
}

void combine_rows(ThreadPool& pool, const ExpertRows& rows, const Tensor& y, const Tensor& weights, GradDest dst) {
  const RowMath& math = row_math();
  const int64_t k = rows.row.shape[1], n = y.shape[1];
  pool.parallel_ranges(dst.dst.shape[0], 8, [&](int64_t begin, int64_t end) {
    float sum[kRowBlock], buffer[kRowBlock];
    for (int64_t t = begin; t < end; ++t) {
      for_row_blocks(n, [&](int64_t column, int64_t count) {
        std::fill_n(sum, count, 0.0f);
        for (int64_t choice = t * k; choice < (t + 1) * k; ++choice) {
          const int32_t row = rows.row.as<int32_t>()[choice];
          if (row < 0) continue;
          const float w = weights.defined() ? element_of(weights, choice) : 1.0f;
          const int64_t at = row * n + column;
          math.add_scaled(w, load_block(math, y, at, buffer, count), sum, count);
        }
        store_block(math, sum, dst, t * n + column, count);
      });
    }
  });
}

}  // namespace hone::cpu
