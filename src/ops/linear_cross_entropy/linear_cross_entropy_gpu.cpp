// The LM head on a GPU: chunks of rows, cuBLASLt for the logits, one kernel for the losses and, in place, the gradients
// of the logits (loss_rows_cuda.h), then the products for dx and dw.
//
// One H200, 2026-11-21, `hone bench ops`, [16384, 2048] to 151,936: with every gradient 47.9 ms, 638 TFLOP/s of 810 in
// a square product (79 %); with a frozen head 33.3 ms, 612 TFLOP/s. Raw: bench/results/h200-ops.json.
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <algorithm>

#include "kernels/cuda/matmul/matmul_cuda.h"
#include "ops/gather_rows/gather_rows.h"
#include "ops/linear_cross_entropy/logits_chunk_cuda.h"

namespace hone::cuda {

namespace {

/// The maximum rows of a chunk. Multiples of 512 keep the products' last tiles full.
int64_t most_rows(const LinearCrossEntropyArgs& args, int64_t pitch, DType dtype) {
  const int64_t bytes = args.max_logits_bytes > 0 ? args.max_logits_bytes : default_logits_bytes(DeviceKind::kCuda);
  const int64_t rows = std::max<int64_t>(1, bytes / (pitch * static_cast<int64_t>(size_of(dtype))));
  return rows > 512 ? rows / 512 * 512 : rows;
}

/// One launch: its sizes and its scratch memory, whose tensors have `capacity` rows except `results`.
struct Head {
  const Context& context;
  const LinearCrossEntropyArgs& args;
  DType dtype;  // dtype of logits and of the products' operands: that of x
  int64_t supervised, vocab, hidden, pitch, capacity;
  Tensor w;  // in `dtype`
  Tensor logits;
  Tensor x_rows, dx_rows, xa_rows, dxa_rows;
  Tensor results;  // float64 [S, 3]

  Head(const Context& c, const LinearCrossEntropyArgs& a, ArenaScope& scratch)
      : context(c), args(a), dtype(a.x.dtype), supervised(a.tokens.count()), vocab(a.w.shape[0]), hidden(a.w.shape[1]) {
    pitch = aligned_pitch(vocab, dtype);
    capacity = std::min(most_rows(args, pitch, dtype), supervised);
    logits = scratch.take({capacity, pitch}, dtype);
    x_rows = scratch.take({capacity, hidden}, dtype);
    if (args.dx.defined()) dx_rows = scratch.take({capacity, hidden}, dtype);
    if (args.xa.defined()) xa_rows = scratch.take({capacity, args.xa.shape[1]}, DType::kF32);
    if (args.dxa.defined()) dxa_rows = scratch.take({capacity, args.dxa.shape[1]}, DType::kF32);
    results = scratch.take({supervised, 3}, DType::kF64);
    w = args.w;
    if (w.dtype != dtype && supervised > 0) {
      w = scratch.take(args.w.shape, dtype);
      copy_matrix(context, args.w, hidden, w, hidden);
    }
  }

  void run() {
    // Chunks of equal size: a short last one would leave much of the GPU idle. A dry pass takes the memory that any
    // number of tokens up to this one may need.
    const int64_t chunks = supervised == 0 ? 1 : (supervised + capacity - 1) / capacity;
    const int64_t even = ((supervised + chunks - 1) / chunks + 127) / 128 * 128;
    const int64_t rows = context.dry() ? capacity : std::min(capacity, even);
    for (int64_t begin = 0; begin < supervised; begin += rows) run_chunk(begin, std::min(rows, supervised - begin));
    if (supervised == 0) add_weight_gradients(0, 0);
    if (args.totals != nullptr && supervised > 0) add_loss_totals(context, args, results);
  }

  /// The logits of a chunk, with rows `pitch` apart.
  Tensor chunk_logits(int64_t count) const {
    Tensor result = logits;
    result.shape = {count, vocab};
    return result;
  }

  void run_chunk(int64_t begin, int64_t count) {
    const Tensor rows = args.tokens.rows.rows(begin, count);
    compute_logits(rows, count);
    differentiate_chunk(context, args, {.logits = logits, .begin = begin, .count = count, .results = results});
    if (args.dx.defined()) {
      const Tensor dx = dx_rows.rows(0, count);
      matmul(
          context,
          {.a = chunk_logits(count), .b = w, .c = dx, .operands = dtype, .alpha = args.logit_scale, .a_pitch = pitch});
      scatter_rows(context, dx, rows, args.dx);
    }
    if (args.dxa.defined()) {
      const Tensor dxa = dxa_rows.rows(0, count);
      matmul(context, {.a = chunk_logits(count),
                       .b = args.lora_b,
                       .c = dxa,
                       .operands = dtype,
                       .alpha = args.scaling * args.logit_scale,
                       .a_pitch = pitch});
      scatter_rows(context, dxa, rows, args.dxa);
    }
    add_weight_gradients(begin, count);
  }

  void compute_logits(const Tensor& rows, int64_t count) {
    const Tensor x = x_rows.rows(0, count);
    hone::gather_rows(context, {.x = args.x, .rows = rows, .y = x});
    const bool adapted = args.xa.defined();
    if (adapted) {
      const Tensor xa = xa_rows.rows(0, count);
      hone::gather_rows(context, {.x = args.xa, .rows = rows, .y = xa});
      matmul(context, {.a = xa,
                       .b = args.lora_b,
                       .b_transposed = true,
                       .c = chunk_logits(count),
                       .operands = dtype,
                       .alpha = args.scaling * args.logit_scale,
                       .c_pitch = pitch});
    }
    matmul(context, {.a = x,
                     .b = w,
                     .b_transposed = true,
                     .c = chunk_logits(count),
                     .operands = dtype,
                     .alpha = args.logit_scale,
                     .beta = adapted ? 1.0f : 0.0f,
                     .c_pitch = pitch});
  }

  void add_weight_gradients(int64_t begin, int64_t count) {
    const auto add = [&](const GradDest& dest, const Tensor& inputs, float alpha) {
      if (!dest.wanted()) return;
      matmul(context, {.a = chunk_logits(count),
                       .a_transposed = true,
                       .b = inputs.rows(0, count),
                       .c = dest.dst,
                       .operands = dtype,
                       .alpha = alpha * args.logit_scale,
                       .beta = begin == 0 ? dest.beta : 1.0f,
                       .a_pitch = pitch});
    };
    add(args.dw, x_rows, 1.0f);
    add(args.dlora_b, xa_rows, args.scaling);
  }
};

}  // namespace

void linear_cross_entropy(const Context& context, const LinearCrossEntropyArgs& args) {
  HONE_ASSERT(args.w.shape[0] <= INT32_MAX / 2);
  ArenaScope scratch(context.scratch());
  Head(context, args, scratch).run();
}

}  // namespace hone::cuda
