#include "ops/fp8_operand/fp8_operand.h"
#include "ops/moe_experts/cuda/expert_rows_cuda.h"
#include "ops/moe_experts/cuda/fp8_experts.h"

namespace hone::cuda {

namespace {

/// Rows of activations with a scale each.
Fp8Operand rounded_rows(const Context& context, ArenaScope& scratch, const Tensor& x,
                        const Fp8GroupFactors& factors = {}) {
  const Fp8Operand rows = take_fp8_rows(scratch, Fp8Recipe::kRowwise, x.shape[0], x.shape[1], Fp8Code::kE4m3);
  hone::fp8_rows(context, {.recipe = Fp8Recipe::kRowwise, .x = x, .group_factors = factors, .to = rows});
  return rows;
}

/// The scales of a stack's matrices, where they lie in their chunks, `pitch` floats apart.
struct StackScales {
  const float* first = nullptr;
  int64_t pitch = 0;

  explicit StackScales(const PackedWeight& w) : pitch(w.layout.bytes / static_cast<int64_t>(sizeof(float))) {
    if (w.chunks.data != nullptr) first = reinterpret_cast<const float*>(w.chunks.data + w.layout.scales);
  }
};

int64_t matrices_of_a_group(const WeightView& weight) {
  return weight.packed->chunks.shape[0] / weight.payload.shape[0];
}

/// The codes as they are: w [E, N, K] of a forward product.
Fp8Stack stack_of(const WeightView& weight) {
  const PackedWeight& w = *weight.packed;
  const StackScales scales(w);
  Tensor codes = w.chunks;
  codes.shape = {w.chunks.shape[0] * w.layout.bytes};
  return {.codes = codes,
          .rows = w.layout.rows,
          .columns = w.layout.columns,
          .matrices = matrices_of_a_group(weight),
          .matrix_bytes = w.layout.bytes,
          .scales = scales.first,
          .scale_pitch = scales.pitch};
}

/// wᵀ [E, K, N], whose columns are those of gate and up where there are two matrices, without their scales: for the
/// gradient of an input. Tensor cores multiply 8-bit operands that are K-major alone.
Fp8Stack transposed_stack(const Context& context, ArenaScope& scratch, const WeightView& weight) {
  const Shape& shape = weight.payload.shape;
  const Tensor codes = scratch.take({shape[0], shape[2], shape[1]}, DType::kU8);
  hone::fp8_transposed_stack(context, {.w = *weight.packed, .parts = matrices_of_a_group(weight), .to = codes});
  return {.codes = codes, .rows = shape[2], .columns = shape[1], .matrix_bytes = shape[1] * shape[2]};
}

}  // namespace

bool experts_multiply_in_fp8(const Context& context, const Shape& weight, const MlpActivation& function) {
  return context.device().kind == DeviceKind::kCuda && function.kind == MlpActivation::Kind::kSwiglu &&
         weight[1] % 256 == 0 && takes_fp8_groups(context, weight[1], weight[2], weight[0]);
}

void moe_gate_up_fp8(const Context& context, const MoeGateUpArgs& args) {
  ArenaScope scratch(context.scratch());
  const Fp8Operand x = rounded_rows(context, scratch, args.x);
  grouped_gemm(context, {.groups = groups_of(args.rows),
                         .a = x.codes,
                         .a_rows = args.rows.token,
                         .w = {},
                         .c = args.h,
                         .activation = args.activation,
                         .fp8 = stack_of(args.weight),
                         .a_scales = x.scales});
}

void moe_gate_up_grad_fp8(const Context& context, const MoeGateUpGradArgs& args) {
  if (!args.dx.wanted()) return;
  ArenaScope scratch(context.scratch());
  // Gate and up have scales of their own, so these are brought into dh.
  const StackScales scales(*args.weight.packed);
  const Fp8Operand dh = rounded_rows(context, scratch, args.dh,
                                     {.offsets = args.rows.offsets,
                                      .scales = scales.first,
                                      .pitch = scales.pitch,
                                      .parts = matrices_of_a_group(args.weight)});
  const Tensor rows = scratch.take({args.dh.shape[0], args.weight.payload.shape[2]}, args.dh.dtype);
  grouped_gemm(context, {.groups = groups_of(args.rows),
                         .a = dh.codes,
                         .w = {},
                         .c = rows,
                         .fp8 = transposed_stack(context, scratch, args.weight),
                         .a_scales = dh.scales});
  combine_rows(context, {.rows = args.rows, .y = rows, .dst = args.dx});
}

void moe_down_fp8(const Context& context, const MoeDownArgs& args) {
  ArenaScope scratch(context.scratch());
  const Fp8Operand activation = rounded_rows(context, scratch, args.activation);
  const Tensor y = scratch.take({args.activation.shape[0], args.weight.payload.shape[1]}, args.activation.dtype);
  grouped_gemm(context, {.groups = groups_of(args.rows),
                         .a = activation.codes,
                         .w = {},
                         .c = y,
                         .fp8 = stack_of(args.weight),
                         .a_scales = activation.scales});
  combine_rows(context, {.rows = args.rows, .y = y, .weights = args.weights, .dst = {args.out}});
}

void moe_down_grad_fp8(const Context& context, const MoeDownGradArgs& args) {
  if (!args.dh.wanted() && !args.dweights.wanted()) return;
  ArenaScope scratch(context.scratch());
  const Fp8Operand dout = rounded_rows(context, scratch, args.dout);
  Fp8Stack transposed = transposed_stack(context, scratch, args.weight);
  const StackScales scales(*args.weight.packed);
  transposed.scales = scales.first;
  transposed.scale_pitch = scales.pitch;
  const bool in_place = args.dh.wanted() && args.dh.beta == 0.0f;
  const Tensor dh = in_place ? args.dh.dst : scratch.take(args.h.shape, args.h.dtype);
  const Tensor dweights = args.dweights.wanted() ? scratch.take(args.weights.shape, DType::kF32) : Tensor{};
  // Choices without a row get no value from the kernels.
  if (dweights.defined() && args.rows.partial()) clear(context, dweights);
  grouped_dswiglu(context, {.groups = groups_of(args.rows),
                            .token = args.rows.token,
                            .assignment = args.rows.assignment,
                            .dout = dout.codes,
                            .w = {},
                            .h = args.h,
                            .weights = args.weights,
                            .dh = dh,
                            .dweights = dweights,
                            .fp8 = transposed,
                            .dout_scales = dout.scales});
  if (args.dh.wanted() && !in_place) store_gradient(context, dh, args.dh);
  if (args.dweights.wanted()) store_gradient(context, dweights, args.dweights);
}

}  // namespace hone::cuda
