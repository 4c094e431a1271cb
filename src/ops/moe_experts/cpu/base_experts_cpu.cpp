#include "ops/moe_experts/cpu/base_experts_cpu.h"

#include "core/cpu/node_loop.h"
#include "kernels/cpu/gemm/task_cut.h"
#include "kernels/cpu/row_math/packed_rows.h"
#include "ops/moe_experts/cpu/tile_products_cpu.h"

namespace hone::cpu {

namespace {

constexpr int64_t kScratchBytes = 64 << 20;
/// Rows of a weight that a task dequantises; int8_format() needs multiples of them.
constexpr int64_t kTaskRows = 64;

}  // namespace

BaseExperts::BaseExperts(ArenaScope& scratch, const WeightView& weight, int64_t rows, DType activations)
    : weight_(weight),
      tiles_(takes_tiles(weight.payload.shape[1], weight.payload.shape[2], activations, weight.payload.dtype) &&
             (!weight.packed || weight.packed->layout.rows % amx::kStripLanes == 0)) {
  HONE_ASSERT(tiles_ || weight.format != &tile_format());
  if (tiles_ || weight.is_dense()) return;
  const int64_t experts = weight.payload.shape[0], n = weight.payload.shape[1], k = weight.payload.shape[2];
  const DType dtype = weight.packed ? weight.packed->dtype : DType::kF32;
  const int64_t fitting = kScratchBytes / (n * k * static_cast<int64_t>(size_of(dtype)));
  wide_ = scratch.take({std::max<int64_t>(std::min({fitting, experts, rows}), 1), n, k}, dtype);
}

void BaseExperts::dequantize(ThreadPool& pool, std::span<const int64_t> experts) const {
  const Tensor& payload = weight_.payload;
  const int64_t n = payload.shape[1], k = payload.shape[2], tasks = ceil_div(n, kTaskRows);
  const EncodedWeight encoded{payload.shape, payload, weight_.scales};
  const auto node_of = [&](int64_t task) {
    return node_of_item(experts[static_cast<size_t>(task / tasks)], payload.shape[0], pool.nodes());
  };
  parallel_for_on_nodes(pool, static_cast<int64_t>(experts.size()) * tasks, node_of, [&](int64_t task, int) {
    const int64_t slot = task / tasks, row = task % tasks * kTaskRows, e = experts[static_cast<size_t>(slot)];
    const int64_t rows = std::min(kTaskRows, n - row);
    if (const auto& packed = weight_.packed) {
      return unpack_elements(packed->layout, packed->chunks.data, (e * n + row) * k, rows * k, wide_,
                             (slot * n + row) * k);
    }
    const Tensor to = expert_tensor(wide_, slot).rows(row, rows);
    weight_.format->read(encoded, e * n + row, rows, to.as<float>());
  });
}

template <class Multiply>
void BaseExperts::for_experts(ThreadPool& pool, const ExpertRows& rows, Multiply multiply) const {
  const int64_t* offsets = rows.offsets.as<int64_t>();
  const int64_t count = weight_.payload.shape[0];
  const int nodes = pool.nodes();
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < ceil_div(count, nodes); ++i) {
    for (int node = 0; node < nodes; ++node) {
      const int64_t e = first_item_of_node(node, count, nodes) + i;
      if (e < first_item_of_node(node + 1, count, nodes) && offsets[e] < offsets[e + 1]) chosen.push_back(e);
    }
  }
  const std::span<const int64_t> all = chosen;
  if (!wide_.defined()) {
    multiply(all, [&](size_t i) { return expert_matrix(weight_.payload, all[i]); });
    return;
  }
  const auto at_once = static_cast<size_t>(wide_.shape[0]);
  for (size_t begin = 0; begin < all.size(); begin += at_once) {
    const auto some = all.subspan(begin, std::min(at_once, all.size() - begin));
    dequantize(pool, some);
    multiply(some, [&](size_t i) { return expert_matrix(wide_, static_cast<int64_t>(i)); });
  }
}

void BaseExperts::product(ThreadPool& pool, const ExpertRows& rows, const RowMatrix& a, const Tensor& c) const {
  if (tiles_) return tile_product(pool, rows, a, weight_, c);
  const int64_t n = weight_.payload.shape[1], k = weight_.payload.shape[2];
  for_experts(pool, rows, [&](auto experts, auto w) { rows_product(pool, rows, experts, a, w, n, {c}, k); });
}

void BaseExperts::transposed_product(ThreadPool& pool, const ExpertRows& rows, const RowMatrix& a, const Tensor& bias,
                                     const RowMatrix& c, float beta) const {
  HONE_ASSERT(wide_.defined() || weight_.is_dense());
  const int64_t n = weight_.payload.shape[1], k = weight_.payload.shape[2];
  for_experts(pool, rows, [&](auto experts, auto w) {
    const auto w_transposed = [&](size_t i) { return transposed(w(i)); };
    rows_product(pool, rows, experts, a, w_transposed, k, c, n, {.beta = beta, .bias = bias});
  });
}

}  // namespace hone::cpu
