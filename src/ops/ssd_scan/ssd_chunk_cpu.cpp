#include "ops/ssd_scan/ssd_chunk_cpu.h"

#include <algorithm>
#include <cmath>

namespace hone::cpu {

float ssd_element(const Tensor& tensor, int64_t i) {
  return tensor.dtype == DType::kF32 ? tensor.as<float>()[i] : static_cast<float>(tensor.as<BFloat16>()[i]);
}

void load_ssd_row(const Tensor& tensor, int64_t begin, float* to, int64_t n) {
  if (tensor.dtype == DType::kBF16) return row_math().widen(tensor.as<BFloat16>() + begin, to, n);
  std::copy_n(tensor.as<float>() + begin, n, to);
}

SsdStep ssd_step(const SsdScanArgs& args, int64_t token, int64_t head) {
  const float x = ssd_element(args.dt, token * args.heads.num_heads + head) + ssd_element(args.dt_bias, head);
  const float softplus = x > 20.0f ? x : std::log1p(std::exp(x));
  const bool inside = softplus >= args.heads.min_step && softplus <= args.heads.max_step;
  const float delta = std::clamp(softplus, args.heads.min_step, args.heads.max_step);
  return {.delta = delta,
          .g = -std::exp(ssd_element(args.a_log, head)) * delta,
          .slope = inside ? 1.0f / (1.0f + std::exp(-x)) : 0.0f};
}

SsdHeadBlock ssd_head_block(const SsdHeads& heads, int64_t i) {
  const int64_t group = i / heads.blocks(), index = i % heads.blocks(), first = index * kSsdHeadBlock;
  return {.group = group,
          .first = group * heads.group() + first,
          .count = std::min(kSsdHeadBlock, heads.group() - first),
          .index = index};
}

SsdKeys::SsdKeys(const SsdHeads& heads, FloatStack& memory)
    : b(memory.take(kSsdChunk * heads.state_size)),
      c(memory.take(kSsdChunk * heads.state_size)),
      products(memory.take(kSsdChunk * kSsdChunk)) {}

void SsdKeys::load(const SsdScanArgs& args, int64_t group, int64_t row, int64_t n) {
  const int64_t size = args.heads.state_size;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = (row + i) * args.heads.width() + args.heads.inner() + group * size;
    load_ssd_row(args.xbc, begin, b + i * size, size);
    load_ssd_row(args.xbc, begin + args.heads.keys(), c + i * size, size);
  }
  gemm_serial({.m = n,
               .n = n,
               .k = size,
               .a = ssd_rows(c, size),
               .b = transposed(ssd_rows(b, size)),
               .c = products,
               .ldc = kSsdChunk});
}

SsdChunk::SsdChunk(const SsdHeads& heads, FloatStack& memory)
    : x(memory.take(kSsdChunk * heads.head_dim)),
      v(memory.take(kSsdChunk * heads.head_dim)),
      decay(memory.take(kSsdChunk * kSsdChunk)),
      p(memory.take(kSsdChunk * kSsdChunk)) {}

void SsdChunk::load(const SsdScanArgs& args, const SsdKeys& keys, int64_t head, int64_t row, int64_t rows) {
  const RowMath& math = row_math();
  const int64_t dim = args.heads.head_dim;
  n = rows;
  double sums[kSsdChunk], sum = 0;  // a decay is the exponential of a difference of these
  for (int64_t i = 0; i < n; ++i) {
    steps[i] = ssd_step(args, row + i, head);
    sums[i] = sum += static_cast<double>(steps[i].g);
    grown[i] = std::exp(static_cast<float>(sum));
    load_ssd_row(args.xbc, (row + i) * args.heads.width() + head * dim, x + i * dim, dim);
    math.scale(steps[i].delta, x + i * dim, v + i * dim, dim);
  }
  for (int64_t i = 0; i < n; ++i) {
    float *const of_row = decay + i * kSsdChunk, *const scores = p + i * kSsdChunk;
    to_end[i] = std::exp(static_cast<float>(sum - sums[i]));
    for (int64_t j = 0; j <= i; ++j) of_row[j] = static_cast<float>(sums[i] - sums[j]);
    math.scaled_exp(1.0f, 0.0f, of_row, of_row, i + 1);
    math.multiply(keys.products + i * kSsdChunk, of_row, scores, i + 1);
    std::fill(scores + i + 1, scores + n, 0.0f);
  }
}

void SsdChunk::advance(const SsdHeads& heads, const SsdKeys& keys, float* state, bool first, float* scaled) const {
  const int64_t dim = heads.head_dim, size = heads.state_size;
  for (int64_t i = 0; i < n; ++i) row_math().scale(to_end[i], v + i * dim, scaled + i * dim, dim);
  gemm_serial({.m = size,
               .n = dim,
               .k = n,
               .a = transposed(ssd_rows(keys.b, size)),
               .b = ssd_rows(scaled, dim),
               .c = state,
               .ldc = dim,
               .beta = first ? 0.0f : end_growth()});
}

}  // namespace hone::cpu
