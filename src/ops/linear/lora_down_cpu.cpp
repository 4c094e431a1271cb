#include <algorithm>

#include "kernels/cpu/gemm/gemm.h"
#include "ops/linear/lora_down_cpu.h"

namespace hone::cpu {

namespace {

/// Rows whose dropped copy is in memory at once: a multiple of kGemmDepth, so that sums over rows are the same blocks
/// as in one product over all rows.
constexpr int64_t kRowsPerChunk = 4 * kGemmDepth;

int64_t chunk_rows(const Tensor& x) { return std::min(kRowsPerChunk, x.shape[0]); }

/// Calls body(begin, count) for the chunks of the rows, of which there is one where nothing is dropped; once with count
/// 0 if there are none.
template <class Body>
void for_chunks(int64_t rows, bool drops, const Body& body) {
  const int64_t chunk = drops ? kRowsPerChunk : std::max<int64_t>(rows, 1);
  for (int64_t begin = 0; begin < std::max<int64_t>(rows, 1); begin += chunk) {
    body(begin, std::min(chunk, rows - begin));
  }
}

/// to = mask ∘ from + beta · to for rows that are [begin, …) of the launch.
void drop(ThreadPool& pool, const LoraDropout& dropout, int64_t first_row, const Tensor& from, const Tensor& to,
          float beta) {
  const uint64_t key = lora_dropout_key(dropout.rows.scalars->seed, dropout.stream_id);
  const int64_t* samples = dropout.rows.sample_ids.as<int64_t>() + first_row;
  const int32_t* positions = dropout.rows.positions.as<int32_t>() + first_row;
  const int64_t features = from.shape[1];
  dispatch_float(from.dtype, [&](auto from_element) {
    dispatch_float(to.dtype, [&](auto to_element) {
      const auto* source = from.as<decltype(from_element)>();
      auto* destination = to.as<decltype(to_element)>();
      pool.parallel_ranges(from.shape[0], 8, [&](int64_t row, int64_t end) {
        for (; row < end; ++row) {
          lora_drop_row(key, dropout.probability, samples[row], positions[row], source + row * features,
                        destination + row * features, features, beta);
        }
      });
    });
  });
}

}  // namespace

void lora_down(const Context& context, const LoraDownArgs& args) {
  const int64_t rows = args.x.shape[0], in = args.x.shape[1], rank = args.lora_a.shape[0];
  const bool drops = args.dropout.probability > 0.0f;
  ArenaScope scratch(context.scratch());
  Tensor dropped;
  if (drops) dropped = scratch.take({chunk_rows(args.x), in}, args.x.dtype);
  context.launch([=](ThreadPool& pool) {
    for_chunks(rows, drops, [&](int64_t begin, int64_t count) {
      Tensor x = args.x.rows(begin, count), xa = args.xa.rows(begin, count);
      if (drops) {
        drop(pool, args.dropout, begin, x, dropped.rows(0, count), 0.0f);
        x = dropped.rows(0, count);
      }
      gemm(pool, {.m = count,
                  .n = rank,
                  .k = in,
                  .a = matrix(x),
                  .b = transposed(matrix(args.lora_a)),
                  .c = xa.data,
                  .c_dtype = DType::kF32,
                  .ldc = rank,
                  .alpha = lora_keep_scale(args.dropout.probability),
                  .may_round = x.dtype == DType::kBF16});
    });
  });
}

namespace {

/// dx of one chunk; `product` [chunk, in] float32 is used if features are dropped.
void chunk_dx(ThreadPool& pool, const LoraDownGradArgs& args, int64_t begin, int64_t count, const Tensor& product) {
  const int64_t in = args.dx.dst.shape[1], rank = args.dxa.shape[1];
  const Tensor dx = args.dx.dst.rows(begin, count);
  const Tensor c = product.defined() ? product.rows(0, count) : dx;
  gemm(pool, {.m = count,
              .n = in,
              .k = rank,
              .a = matrix(args.dxa.rows(begin, count)),
              .b = matrix(args.lora_a),
              .c = c.data,
              .c_dtype = c.dtype,
              .ldc = in,
              .alpha = lora_keep_scale(args.dropout.probability),
              .beta = product.defined() ? 0.0f : args.dx.beta,
              .may_round = dx.dtype == DType::kBF16});
  if (product.defined()) drop(pool, args.dropout, begin, c, dx, args.dx.beta);
}

/// Adds one chunk to dlora_a; `dropped` [chunk, in] in x's dtype is used if features are dropped.
void chunk_dlora_a(ThreadPool& pool, const LoraDownGradArgs& args, int64_t begin, int64_t count,
                   const Tensor& dropped) {
  Tensor x = args.x.rows(begin, count);
  if (dropped.defined()) {
    drop(pool, args.dropout, begin, x, dropped.rows(0, count), 0.0f);
    x = dropped.rows(0, count);
  }
  const Tensor& dst = args.dlora_a.dst;
  gemm(pool, {.m = dst.shape[0],
              .n = dst.shape[1],
              .k = count,
              .a = transposed(matrix(args.dxa.rows(begin, count))),
              .b = matrix(x),
              .c = dst.data,
              .c_dtype = DType::kF32,
              .ldc = dst.shape[1],
              .alpha = lora_keep_scale(args.dropout.probability),
              .beta = begin == 0 ? args.dlora_a.beta : 1.0f,
              .may_round = x.dtype == DType::kBF16});
}

}  // namespace

Tensor lora_dx_scratch(ArenaScope& scratch, const LoraDownGradArgs& args) {
  if (args.dropout.probability <= 0.0f || !args.dx.wanted()) return {};
  return scratch.take({chunk_rows(args.dxa), args.dx.dst.shape[1]}, DType::kF32);
}

void lora_dx(ThreadPool& pool, const LoraDownGradArgs& args, const Tensor& scratch) {
  for_chunks(args.dxa.shape[0], scratch.defined(),
             [&](int64_t begin, int64_t count) { chunk_dx(pool, args, begin, count, scratch); });
}

void lora_down_grad(const Context& context, const LoraDownGradArgs& args) {
  const bool drops = args.dropout.probability > 0.0f;
  ArenaScope scratch(context.scratch());
  const Tensor product = lora_dx_scratch(scratch, args);
  Tensor dropped;
  if (drops && args.dlora_a.wanted()) dropped = scratch.take({chunk_rows(args.dxa), args.x.shape[1]}, args.x.dtype);
  context.launch([=](ThreadPool& pool) {
    if (args.dx.wanted()) lora_dx(pool, args, product);
    if (!args.dlora_a.wanted()) return;
    for_chunks(args.dxa.shape[0], drops,
               [&](int64_t begin, int64_t count) { chunk_dlora_a(pool, args, begin, count, dropped); });
  });
}

}  // namespace hone::cpu
