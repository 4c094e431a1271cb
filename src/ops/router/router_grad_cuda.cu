#include "kernels/cuda/low_rank/partial_sums_cuda.h"
#include "ops/router/router.h"
#include "ops/router/router_logits_cuda.h"
#include "ops/router/router_rows_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

/// Operands of products with dlogits (and of a float32 weight with bfloat16 activations) are split into sums of
/// bfloat16 parts, since tensor cores only multiply bfloat16, and one part would lose half of the digits. Two parts
/// have 16 bits. The parts are concatenated, so that one product adds them:
///   dx = [hi, lo] · [w; w]              or, for a float32 weight, [hi, lo, hi] · [w_hi; w_hi; w_lo]
struct GradRows {
  const float* logits;  // [T, E]
  const int32_t* ids;
  const void* dweights;
  bool bf16_weights;
  const float* fractions;      // or null
  const StepScalars* scalars;  // aux_scale
  RouterZLoss z_loss;
  float* dlogits;               // [T, E], may be logits; or null
  __nv_bfloat16* dlogit_parts;  // [T, parts, E]; or null
  int parts;
  int64_t tokens, num_layers;
  int experts, top_k;
  RouterRule rule;

  __device__ float dweight(int64_t i) const {
    return bf16_weights ? to_float(static_cast<const __nv_bfloat16*>(dweights)[i])
                        : static_cast<const float*>(dweights)[i];
  }
};

struct Parts {
  __nv_bfloat16 hi, lo;
  __device__ explicit Parts(float value)
      : hi(__float2bfloat16_rn(value)), lo(__float2bfloat16_rn(value - __bfloat162float(hi))) {}
};

/// Gradient of the auxiliary loss Σ_e p_e · factor · f_e for s: with softmax p is s, with sigmoid s / Σ s.
template <int kPerLane>
__device__ void differentiate_aux(const GradRows& a, const LogitRow<kPerLane>& row, const float (&p)[kPerLane],
                                  float (&ds)[kPerLane]) {
  const float factor =
      a.scalars->aux_scale * static_cast<float>(a.experts) / static_cast<float>(a.num_layers * a.tokens);
  float dot = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (row.expert(i) < a.experts) ds[i] = factor * a.fractions[row.expert(i)];
    dot += p[i] * ds[i];
  }
  if (a.rule.scores == RouterScores::kSoftmax) return;
  dot = warp_sum(dot);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) ds[i] = (ds[i] - dot) * row.inverse_sum;
}

/// One warp per token.
template <int kPerLane>
__global__ void __launch_bounds__(kThreads) differentiate_choices(const GradRows a) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t n = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (n >= a.tokens) return;
  const bool softmax = a.rule.scores == RouterScores::kSoftmax;
  const float* logits = a.logits + n * a.experts;
  LogitRow<kPerLane> row(logits, a.experts, a.rule.scores);
  float p[kPerLane], ds[kPerLane] = {};
  row.distribute(p);
  if (a.fractions != nullptr) differentiate_aux(a, row, p, ds);
  const int64_t first = n * a.top_k;
  float mean = 0.0f, factor = a.rule.scale;
  if (a.rule.normalise) {
    float sum = 0.0f;
    for (int j = lane; j < a.top_k; j += 32) {
      const float s = row.score(logits[a.ids[first + j]]);
      sum += s;
      mean += a.dweight(first + j) * s;
    }
    sum = warp_sum(sum) + kRouterEpsilon;
    const bool constant = sum < a.rule.least_sum;
    const float inverse_sum = 1.0f / (constant ? a.rule.least_sum : sum);
    mean = warp_sum(mean) * inverse_sum;
    if (constant) mean = 0.0f;
    factor *= inverse_sum;
  }
  for (int j = 0; j < a.top_k; ++j) {
    const int id = a.ids[first + j];
    const float change = (a.dweight(first + j) - mean) * factor;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) ds[i] += row.expert(i) == id ? change : 0.0f;
  }
  float dot = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) dot += p[i] * ds[i];
  dot = softmax ? warp_sum(dot) : 0.0f;
  const bool has_z = a.z_loss.coefficient != 0.0f;
  const float log_sum = has_z ? row.log_sum_exp() : 0.0f;
  const float z_factor = has_z ? 2.0f * log_sum * a.z_loss.coefficient *
                                     static_cast<float>(a.z_loss.scalars->token_share) /
                                     static_cast<float>(a.z_loss.num_layers * a.tokens)
                               : 0.0f;
  __syncwarp();  // dlogits may be logits
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = row.expert(i);
    if (expert >= a.experts) continue;
    const float s = softmax ? p[i] : row.score(row.logits[i]);
    float gradient = softmax ? s * (ds[i] - dot) : s * (1.0f - s) * ds[i];
    if (has_z) gradient += z_factor * expf(row.logits[i] - log_sum);
    if (a.dlogits != nullptr) a.dlogits[n * a.experts + expert] = gradient;
    if (a.dlogit_parts == nullptr) continue;
    const Parts parts(gradient);
    __nv_bfloat16* to = a.dlogit_parts + n * a.parts * a.experts + expert;
    to[0] = parts.hi;
    to[a.experts] = parts.lo;
    if (a.parts == 3) to[2 * a.experts] = parts.hi;
  }
}

/// The parts of the weight that dlogits' parts are multiplied with, [parts, E·H].
template <class W>
__global__ void __launch_bounds__(kThreads) split_weight(const W* w, __nv_bfloat16* parts, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= elements) return;
  const Parts split(to_float(w[i]));
  parts[i] = parts[elements + i] = split.hi;
  if constexpr (sizeof(W) == 4) parts[2 * elements + i] = split.lo;
}

/// dw = the gradients of both parts + beta · dw.
__global__ void __launch_bounds__(kThreads)
    add_both_parts(const float* parts, float* dw, bool accumulate, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= elements) return;
  const float sum = parts[i] + parts[elements + i];
  dw[i] = accumulate ? dw[i] + sum : sum;
}

void differentiate(const Context& context, GradRows rows) {
  if (context.dry() || rows.tokens == 0) return;
  with_logits_per_lane(rows.experts, [&](auto per_lane) {
    differentiate_choices<per_lane()><<<blocks_for(rows.tokens, kWarps), kThreads, 0, stream_of(context)>>>(rows);
  });
  check_launch("differentiating the choice of experts");
}

/// Float32 activations are multiplied in float32.
void products_in_float32(const Context& context, const RouterGradArgs& args, const Tensor& dlogits) {
  if (args.dx.wanted()) {
    matmul(context, {.a = dlogits, .b = args.weight, .c = args.dx.dst, .beta = args.dx.beta});
  }
  if (args.dweight.wanted()) {
    matmul(context,
           {.a = dlogits, .a_transposed = true, .b = args.x, .c = args.dweight.dst, .beta = args.dweight.beta});
  }
}

void gradient_of_input(const Context& context, const RouterGradArgs& args, const Tensor& dlogits) {
  const int64_t experts = args.weight.shape[0], hidden = args.weight.shape[1], count = experts * hidden;
  const int64_t parts = dlogits.shape[1] / experts;
  ArenaScope scratch(context.scratch());
  const Tensor weight = scratch.take({parts * experts, hidden}, DType::kBF16);
  if (!context.dry()) {
    cuda::dispatch_float(args.weight.dtype, [&](auto element) {
      using W = decltype(element);
      split_weight<W><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
          elements<W>(args.weight), elements<__nv_bfloat16>(weight), count);
    });
    check_launch("splitting the router's weight");
  }
  matmul(context, {.a = dlogits, .b = weight, .c = args.dx.dst, .operands = DType::kBF16, .beta = args.dx.beta});
}

void gradient_of_weight(const Context& context, const RouterGradArgs& args, const Tensor& dlogits) {
  const int64_t experts = args.weight.shape[0], hidden = args.weight.shape[1], count = experts * hidden;
  ArenaScope scratch(context.scratch());
  const Tensor sums = scratch.take({2 * experts, hidden}, DType::kF32);
  Tensor both = dlogits;
  both.shape = {dlogits.shape[0], 2 * experts};
  matmul(
      context,
      {.a = both, .a_transposed = true, .b = args.x, .c = sums, .operands = DType::kBF16, .a_pitch = dlogits.shape[1]});
  if (context.dry()) return;
  add_both_parts<<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
      elements<float>(sums), elements<float>(args.dweight.dst), args.dweight.beta != 0.0f, count);
  check_launch("adding the router's gradient");
}

}  // namespace

void router_grad(const Context& context, const RouterGradArgs& args) {
  const int64_t tokens = args.x.shape[0], experts = args.weight.shape[0];
  if (!args.dx.wanted() && !args.dweight.wanted() && !args.dbias.wanted()) return;
  const bool narrow = args.x.dtype == DType::kBF16;
  const int64_t parts = args.weight.dtype == DType::kBF16 ? 2 : 3;
  ArenaScope scratch(context.scratch());
  const Tensor logits = scratch.take({tokens, experts}, DType::kF32);
  Tensor dlogit_parts;
  if (narrow) dlogit_parts = scratch.take({tokens, parts * experts}, DType::kBF16);
  router_logits(context, args.x, args.weight, args.bias, logits);
  differentiate(context, {.logits = elements<float>(logits),
                          .ids = elements<int32_t>(args.ids),
                          .dweights = args.dweights.data,
                          .bf16_weights = args.dweights.dtype == DType::kBF16,
                          .fractions = elements<float>(args.aux.fractions),
                          .scalars = args.aux.scalars,
                          .z_loss = args.z_loss,
                          .dlogits = narrow && !args.dbias.wanted() ? nullptr : elements<float>(logits),
                          .dlogit_parts = elements<__nv_bfloat16>(dlogit_parts),
                          .parts = static_cast<int>(parts),
                          .tokens = tokens,
                          .num_layers = args.aux.num_layers,
                          .experts = static_cast<int>(experts),
                          .top_k = static_cast<int>(args.ids.shape[1]),
                          .rule = args.rule});
  if (args.dbias.wanted()) sum_over_rows(context, logits, args.dbias);
  if (!narrow) return products_in_float32(context, args, logits);
  if (args.dx.wanted()) gradient_of_input(context, args, dlogit_parts);
  if (args.dweight.wanted()) gradient_of_weight(context, args, dlogit_parts);
}

}  // namespace hone::cuda
