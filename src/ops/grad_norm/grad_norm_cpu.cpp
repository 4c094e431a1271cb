#include <algorithm>
#include <cmath>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/grad_norm/grad_norm.h"

namespace hone::cpu {

namespace {
/// Elements whose squares a task sums, independent of the number of threads.
constexpr int64_t kChunk = 65536;

double sum_chunk(const RowMath& math, const Tensor& gradient, int64_t begin, int64_t count) {
  if (gradient.dtype == DType::kF32) return math.sum_squares(gradient.as<float>() + begin, count);
  double sum = 0;
  for_row_blocks(count, [&](int64_t offset, int64_t n) {
    float buffer[kRowBlock];
    sum += math.sum_squares(load_block(math, gradient, begin + offset, buffer, n), n);
  });
  return sum;
}

}  // namespace

void sum_of_squares(const Context& context, const SumOfSquaresArgs& args) {
  std::vector<int64_t> first_chunk;  // per gradient
  int64_t chunks = 0;
  for (const Tensor& gradient : args.gradients) {
    first_chunk.push_back(chunks);
    chunks += (gradient.numel() + kChunk - 1) / kChunk;
  }
  ArenaScope scratch(context.scratch());
  const Tensor partial = scratch.take({chunks}, DType::kF64);
  context.launch([args, first_chunk, chunks, partial](ThreadPool& pool) {
    const RowMath& math = row_math();
    double* sums = partial.as<double>();
    const auto owner = [&](int64_t chunk) {  // the last gradient that starts at or before the chunk: it is not empty
      return static_cast<size_t>(std::upper_bound(first_chunk.begin(), first_chunk.end(), chunk) -
                                 first_chunk.begin()) -
             1;
    };
    pool.parallel_for(chunks, [&](int64_t chunk, int) {
      const size_t i = owner(chunk);
      const int64_t begin = (chunk - first_chunk[i]) * kChunk;
      const Tensor& gradient = args.gradients[i];
      sums[chunk] = sum_chunk(math, gradient, begin, std::min(kChunk, gradient.numel() - begin));
    });
    const bool goes_on = args.earlier_gradients >= 0;
    double sum = goes_on ? *args.sum_of_squares.as<double>() : 0.0;
    int32_t first_nonfinite = goes_on ? *args.first_nonfinite.as<int32_t>() : -1;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      sum += sums[chunk];
      // Squares of finite float32 do not overflow float64.
      if (first_nonfinite < 0 && !std::isfinite(sums[chunk])) {
        first_nonfinite = static_cast<int32_t>(owner(chunk)) + (goes_on ? args.earlier_gradients : 0);
      }
    }
    *args.sum_of_squares.as<double>() = sum;
    *args.first_nonfinite.as<int32_t>() = first_nonfinite;
  });
}

void finish_grad_norm(const Context& context, const FinishGradNormArgs& args) {
  context.launch([args](ThreadPool&) {
    StepScalars& step = *args.scalars;
    const double norm = std::sqrt(*args.sum_of_squares.as<double>());
    step.grad_norm = static_cast<float>(norm);
    step.clip_coefficient = 1.0f;
    if (!std::isfinite(step.grad_norm)) {
      step.nonfinite = 1;
    } else if (step.max_grad_norm > 0) {
      step.clip_coefficient =
          static_cast<float>(std::min(1.0, static_cast<double>(step.max_grad_norm) / (norm + 1e-6)));
    }
  });
}

}  // namespace hone::cpu
