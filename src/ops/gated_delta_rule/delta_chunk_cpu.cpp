#include "ops/gated_delta_rule/delta_chunk_cpu.h"

#include <algorithm>
#include <cmath>

namespace hone::cpu {

namespace {

constexpr float kNormEps = 1e-6f;

float element(const Tensor& tensor, int64_t i) {
  return tensor.dtype == DType::kF32 ? tensor.as<float>()[i] : static_cast<float>(tensor.as<BFloat16>()[i]);
}

void load_row(const Tensor& tensor, int64_t begin, float* to, int64_t n) {
  if (tensor.dtype == DType::kBF16) return row_math().widen(tensor.as<BFloat16>() + begin, to, n);
  std::copy_n(tensor.as<float>() + begin, n, to);
}

/// Loads a row and scales it to norm `length`; returns 1 / its original norm.
float load_normalised(const Tensor& tensor, int64_t begin, float* to, int64_t n, float length) {
  const RowMath& math = row_math();
  load_row(tensor, begin, to, n);
  const float inverse = 1.0f / std::sqrt(math.dot(to, to, n) + kNormEps);
  math.scale(length * inverse, to, to, n);
  return inverse;
}

}  // namespace

DeltaGate delta_gate(const DeltaRuleArgs& args, int64_t token, int64_t head) {
  const int64_t at = token * args.heads.num_value_heads + head;
  const float x = element(args.a, at) + element(args.dt_bias, head), rate = -std::exp(element(args.a_log, head));
  const float softplus = x > 20.0f ? x : std::log1p(std::exp(x));
  return {.beta = 1.0f / (1.0f + std::exp(-element(args.b, at))),
          .g = rate * softplus,
          .dg_da = rate / (1.0f + std::exp(-x))};
}

DeltaKeys::DeltaKeys(const DeltaRuleArgs& args, FloatStack& memory)
    : q(memory.take(kDeltaChunk * args.heads.key_dim)), k(memory.take(kDeltaChunk * args.heads.key_dim)) {}

void DeltaKeys::load(const DeltaRuleArgs& args, int64_t key_head, int64_t row, int64_t n) {
  const int64_t dim = args.heads.key_dim, width = args.heads.width();
  const float length = 1.0f / std::sqrt(static_cast<float>(dim));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = (row + i) * width + key_head * dim;
    q_inverse[i] = load_normalised(args.qkv, begin, q + i * dim, dim, length);
    k_inverse[i] = load_normalised(args.qkv, begin + args.heads.num_key_heads * dim, k + i * dim, dim, 1.0f);
  }
}

DeltaChunk::DeltaChunk(const DeltaRuleArgs& args, FloatStack& memory)
    : v(memory.take(kDeltaChunk * args.heads.value_dim)),
      decay(memory.take(kDeltaChunk * kDeltaChunk)),
      b(memory.take(kDeltaChunk * kDeltaChunk)),
      fresh(memory.take(kDeltaChunk * args.heads.value_dim)) {}

void DeltaChunk::load(const DeltaRuleArgs& args, const DeltaKeys& keys, int64_t head, int64_t row, int64_t rows,
                      const float* state) {
  const RowMath& math = row_math();
  const int64_t key_dim = args.heads.key_dim, dim = args.heads.value_dim;
  n = rows;
  double sums[kDeltaChunk], sum = 0;  // a decay is the exponential of a difference of these
  for (int64_t i = 0; i < n; ++i) {
    const DeltaGate gate = delta_gate(args, row + i, head);
    beta[i] = gate.beta;
    sums[i] = sum += static_cast<double>(gate.g);
    grown[i] = std::exp(static_cast<float>(sum));
    load_row(args.qkv, (row + i) * args.heads.width() + 2 * args.heads.num_key_heads * key_dim + head * dim,
             v + i * dim, dim);
  }
  for (int64_t i = 0; i < n; ++i) {
    float* row_decay = decay + i * kDeltaChunk;
    to_end[i] = std::exp(static_cast<float>(sum - sums[i]));
    for (int64_t j = 0; j <= i; ++j) row_decay[j] = static_cast<float>(sums[i] - sums[j]);
    math.scaled_exp(1.0f, 0.0f, row_decay, row_decay, i + 1);
  }
  const MatrixView k = rows_of(keys.k, key_dim);
  gemm_serial({.m = n, .n = n, .k = key_dim, .a = k, .b = transposed(k), .c = b, .ldc = kDeltaChunk});
  for (int64_t i = 0; i < n; ++i) math.multiply(b + i * kDeltaChunk, decay + i * kDeltaChunk, b + i * kDeltaChunk, i);
  std::copy_n(v, n * dim, fresh);
  if (state != nullptr) {
    gemm_serial({.m = n,
                 .n = dim,
                 .k = key_dim,
                 .a = k,
                 .b = rows_of(state, dim),
                 .c = fresh,
                 .ldc = dim,
                 .alpha = -1.0f,
                 .beta = 1.0f,
                 .row_scale = grown});
  }
  // (I + A) V = R, row by row.
  scale_rows(beta, fresh, fresh, n, dim);
  for (int64_t i = 1; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      math.add_scaled(-beta[i] * b[i * kDeltaChunk + j], fresh + j * dim, fresh + i * dim, dim);
    }
  }
}

void DeltaChunk::advance(const DeltaRuleArgs& args, const DeltaKeys& keys, float* state, bool first,
                         float* scaled) const {
  const int64_t key_dim = args.heads.key_dim, dim = args.heads.value_dim;
  scale_rows(to_end, fresh, scaled, n, dim);
  gemm_serial({.m = key_dim,
               .n = dim,
               .k = n,
               .a = transposed(rows_of(keys.k, key_dim)),
               .b = rows_of(scaled, dim),
               .c = state,
               .ldc = dim,
               .beta = first ? 0.0f : end_growth()});
}

void DeltaChunk::scores(const DeltaRuleArgs& args, const DeltaKeys& keys, float* p) const {
  const int64_t key_dim = args.heads.key_dim;
  gemm_serial({.m = n,
               .n = n,
               .k = key_dim,
               .a = rows_of(keys.q, key_dim),
               .b = transposed(rows_of(keys.k, key_dim)),
               .c = p,
               .ldc = kDeltaChunk});
  for (int64_t i = 0; i < n; ++i) {
    float* row = p + i * kDeltaChunk;
    row_math().multiply(row, decay + i * kDeltaChunk, row, i + 1);
    std::fill(row + i + 1, row + n, 0.0f);
  }
}

void scale_rows(const float* factor, const float* from, float* to, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) row_math().scale(factor[i], from + i * width, to + i * width, width);
}

}  // namespace hone::cpu
