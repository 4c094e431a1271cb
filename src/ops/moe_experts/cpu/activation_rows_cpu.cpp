#include "ops/moe_experts/cpu/activation_rows_cpu.h"

#include <cstring>
#include <utility>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/mlp_activation_cpu.h"

namespace hone::cpu {

namespace {

constexpr int64_t kRowsPerTask = 16;

/// Rows are far apart in memory, so hardware does not prefetch them.
constexpr int64_t kRowsAhead = 8;

/// Prefetches the elements of x [R, width] at columns [begin, begin + n), some rows ahead.
template <bool Writes>
void prefetch_ahead(const Tensor& x, int64_t begin, int64_t n) {
  const int64_t size = size_of(x.dtype);
  const auto* at = static_cast<const std::byte*>(x.data) + (begin + kRowsAhead * x.shape[1]) * size;
  for (int64_t i = 0; i < n * size; i += 64) __builtin_prefetch(at + i, Writes);
}

}  // namespace

float ActivationGrad::columns(int64_t r, int64_t column, int64_t n, const float* dact) const {
  const float w = element_of(args_.weights, args_.rows.assignment.as<int32_t>()[r]);
  if (args_.function.kind == MlpActivation::Kind::kSwiglu && args_.dh.wanted()) {
    return swiglu_columns(r, column, n, w, dact);
  }
  const int64_t row_begin = r * args_.h.shape[1];
  ActivationBlock f(math_, args_.function);
  f.load(args_.h, row_begin, column, intermediate_, n, args_.dh.wanted());
  float act[kRowBlock];
  f.activate(args_.h.dtype, act, n);
  float dot = 0.0f;
  if (wants_dact_) {
    dot = math_.dot(dact, act, n);
    if (args_.dh.wanted()) {
      f.differentiate(n);
      const auto store = [&](float* factor, int64_t at) {
        math_.multiply(factor, dact, factor, n);
        math_.scale(w, factor, factor, n);
        store_block(math_, factor, args_.dh, row_begin + at, n);
      };
      store(f.glu_slope, column);
      if (args_.function.gated()) store(f.glu, intermediate_ + column);
    }
  }
  store_weighted(w, act, r, column, n);
  return dot;
}

float ActivationGrad::swiglu_columns(int64_t r, int64_t column, int64_t n, float w, const float* dact) const {
  const int64_t gate_at = r * 2 * intermediate_ + column, up_at = gate_at + intermediate_;
  float gate_buffer[kRowBlock], up_buffer[kRowBlock], act[kRowBlock], dgate[kRowBlock], dup[kRowBlock];
  for (const int64_t at : {gate_at, up_at}) {
    prefetch_ahead<false>(args_.h, at, n);
    prefetch_ahead<true>(args_.dh.dst, at, n);
  }
  const float* gate = load_block(math_, args_.h, gate_at, gate_buffer, n);
  const float* up = load_block(math_, args_.h, up_at, up_buffer, n);
  math_.swiglu_grad(w, gate, up, dact, act, dgate, dup, n);
  store_block(math_, dgate, args_.dh, gate_at, n);
  store_block(math_, dup, args_.dh, up_at, n);
  if (args_.h.dtype == DType::kBF16) math_.round(act, n);
  const float dot = math_.dot(dact, act, n);
  store_weighted(w, act, r, column, n);
  return dot;
}

void ActivationGrad::store_weighted(float w, float* act, int64_t r, int64_t column, int64_t n) const {
  if (!args_.weighted_act.defined()) return;
  math_.scale(w, act, act, n);
  store_block(math_, static_cast<const float*>(act), args_.weighted_act, r * intermediate_ + column, n);
}

void ActivationGrad::store_weight_grad(int64_t expert, int64_t r, float dot) const {
  if (args_.bias.defined()) dot += bias_dot(expert, args_.rows.token.as<int32_t>()[r]);
  store_block(math_, &dot, args_.dweights, args_.rows.assignment.as<int32_t>()[r], 1);
}

float ActivationGrad::bias_dot(int64_t expert, int64_t token) const {
  const int64_t hidden = args_.dout.shape[1];
  float dot = 0.0f, dout_buffer[kRowBlock], bias_buffer[kRowBlock];
  for_row_blocks(hidden, [&](int64_t column, int64_t n) {
    dot += math_.dot(load_block(math_, args_.dout, token * hidden + column, dout_buffer, n),
                     load_block(math_, args_.bias, expert * hidden + column, bias_buffer, n), n);
  });
  return dot;
}

void activate_columns(const RowMath& math, const MlpActivation& function, float* gate, float* up, const Tensor& h,
                      const Tensor& act, int64_t r, int64_t column, int64_t n) {
  const int64_t intermediate = act.shape[1], row_begin = r * h.shape[1];
  prefetch_ahead<true>(act, r * intermediate + column, n);
  const auto store = [&](float* values, int64_t at) {
    prefetch_ahead<true>(h, at, n);
    if (h.dtype == DType::kBF16) {
      math.round_and_narrow(values, h.as<BFloat16>() + at, n);
    } else {
      store_block(math, static_cast<const float*>(values), h, at, n);
    }
  };
  store(gate, row_begin + column);
  if (function.gated()) store(up, row_begin + intermediate + column);
  ActivationBlock f(math, function);
  f.compute(gate, up, n);
  f.multiply(f.glu, n);
  store_block(math, static_cast<const float*>(f.glu), act, r * intermediate + column, n);
}

void activate_rows(ThreadPool& pool, const ExpertRows& rows, const MlpActivation& function, const Tensor& h,
                   const Tensor& act) {
  const RowMath& math = row_math();
  const int64_t intermediate = act.shape[1];
  pool.parallel_ranges(rows_in_use(rows), kRowsPerTask, [&](int64_t row, int64_t end) {
    ActivationBlock f(math, function);
    for (; row < end; ++row) {
      for_row_blocks(intermediate, [&](int64_t column, int64_t n) {
        f.load(h, row * h.shape[1], column, intermediate, n);
        f.multiply(f.glu, n);
        store_block(math, static_cast<const float*>(f.glu), act, row * intermediate + column, n);
      });
    }
  });
}

void clear_weights_grad_elsewhere(ThreadPool& pool, const ExpertRows& rows, const GradDest& dweights) {
  if (rows_in_use(rows) == rows.row.numel()) return;
  HONE_ASSERT(dweights.beta == 0.0f, "zeros overwrite");
  const size_t element = size_of(dweights.dst.dtype);
  pool.parallel_ranges(rows.row.numel(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t choice = begin; choice < end; ++choice) {
      if (rows.row.as<int32_t>()[choice] < 0) {
        std::memset(dweights.dst.data + static_cast<size_t>(choice) * element, 0, element);
      }
    }
  });
}

void activation_grad(ThreadPool& pool, const ActivationGradArgs& args) {
  const ActivationGrad grad(args);
  const int64_t intermediate = args.function.width(args.h.shape[1]);
  for_each_expert_row(pool, args.rows, [&](int64_t expert, int64_t r) {
    float dot = 0.0f;
    for_row_blocks(intermediate, [&](int64_t column, int64_t n) {
      const float* dact = args.dact.defined() ? args.dact.as<float>() + r * intermediate + column : nullptr;
      dot += grad.columns(r, column, n, dact);
    });
    if (args.dweights.wanted()) grad.store_weight_grad(expert, r, dot);
  });
}

void router_weights_grad(ThreadPool& pool, const ActivationGradArgs& args, const Tensor& dots) {
  const ActivationGrad grad(args);
  const int64_t parts = dots.shape[1];
  for_each_expert_row(pool, args.rows, [&](int64_t expert, int64_t r) {
    float dot = 0.0f;
    for (int64_t i = 0; i < parts; ++i) dot += dots.as<float>()[r * parts + i];
    grad.store_weight_grad(expert, r, dot);
  });
}

}  // namespace hone::cpu
