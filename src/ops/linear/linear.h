// linear: y = x Wᵀ + b, with an optional low-rank adapter computed beside it (never merged):
//   y = x Wᵀ + b + scaling · (dropout(x) Aᵀ) Bᵀ
// Source of the adapter: Hu et al., "LoRA" (arXiv:2106.09685).
#pragma once

#include "kernels/lora_dropout.h"
#include "tape/tape.h"

namespace hone {

/// y[t, o] = Σ_i x[t, i] · w[o, i] + bias[o] + scaling · Σ_ρ xa[t, ρ] · lora_b[o, ρ]
///   x [T, in], y [T, out] of one dtype, float32 or bfloat16; w [out, in], bias [out] (or undefined), lora_b [out, r],
///   each float32 or bfloat16; xa [T, r] float32. xa and lora_b are undefined without an adapter.
/// Float32 accumulation. A bfloat16 y is rounded once, from the float32 sum of all three terms, so that a term far
/// below half a unit of y still arrives on average. The adapter's product is an addend of that sum in bfloat16: it is
/// rounded by its own size. Deterministic, and a row of y depends on its row of x only.
///
/// Here and below, with a bfloat16 x (or dy): on a GPU, or a CPU with AMX, operands that are multiplied with it are
/// rounded to bfloat16. On a GPU the bits of a row may depend on the number of rows. A bias is rounded to y's dtype
/// everywhere.
///
/// With a recipe `fp8`, the base product takes x and w, or dy and w, rounded to 8-bit floats (formats/fp8.h), from
/// bfloat16, and dw, where that is asked for, dyᵀ and xᵀ; adapters and all else stay as above. Sums of y may be kept in
/// tensor cores (Fp8MatmulArgs::fast), those of dx and dw are not. dx of rowwise takes dy · diag(scales of w's rows),
/// then rounded. w is dense, or packed in the format that the recipe reads; in and out are multiples of kFp8Unit. A CPU
/// multiplies the same rounded operands in float32.
///
/// w may be in tiles (formats/tiled_weights.h) if x and y, or dy and dx, are bfloat16: frozen, on a CPU with
/// AMX. On a CPU it may be packed, for y: then a few rows of w at a time are unpacked to memory that stays in a cache,
/// which for few rows of x is faster than unpacking all of it first. The bits are those of a dense w.
struct LinearArgs {
  Tensor x;
  WeightView w;
  Tensor bias = {};
  Tensor xa = {}, lora_b = {};
  float scaling = 0;
  Fp8Recipe fp8 = Fp8Recipe::kOff;
  Tensor y;
};

/// The most rows of x for which a CPU unpacks a packed w in panels.
inline constexpr int64_t kMostRowsOfPanels = 64;

void linear(const Context& context, const LinearArgs& args);

/// dx = dy W + dropout'(dxa A),  dw = dyᵀ x,  dbias = Σ_t dy,  dxa = scaling · dy B,  dlora_b = scaling · dyᵀ xa.
/// Shapes as above and in LoraDownArgs; each destination may be unwanted, and then its own inputs may be undefined. dx
/// in x's dtype, the others float32 (dw also bfloat16 with beta 0, where dy is bfloat16). Sums over T run in one fixed
/// order.
///
/// dx has its second term if lora_a is defined; dxa must then be wanted, with beta 0. A bfloat16 dx is rounded once,
/// from the float32 sum of both terms and, with beta 1, of the earlier dx; the second term is first rounded by its own
/// size, as in y. On a GPU, the sum of both terms is rounded before the earlier dx is added.
struct LinearGradArgs {
  Tensor dy;
  Tensor x = {};      ///< for dw
  WeightView w = {};  ///< for dx
  Tensor xa = {}, lora_b = {};
  Tensor lora_a = {};        ///< for the adapter's part of dx
  LoraDropout dropout = {};  ///< read with lora_a
  float scaling = 0;
  Fp8Products fp8 = {};
  GradDest dx, dw, dbias, dxa, dlora_b;
};

void linear_grad(const Context& context, const LinearGradArgs& args);

/// xa[t, ρ] = Σ_i dropout(x)[t, i] · lora_a[ρ, i]
///   x [T, in] and lora_a [r, in], each float32 or bfloat16; xa [T, r] float32.
struct LoraDownArgs {
  Tensor x, lora_a;
  LoraDropout dropout;
  Tensor xa;
};

void lora_down(const Context& context, const LoraDownArgs& args);

/// dx = dropout'(dxa A),  dlora_a = dxaᵀ dropout(x). Each may be unwanted. dx in x's dtype, dlora_a float32. Where the
/// base product has a gradient of x, too, linear_grad() computes both, so that a bfloat16 dx is rounded once.
struct LoraDownGradArgs {
  Tensor dxa;
  Tensor x = {};       ///< for dlora_a
  Tensor lora_a = {};  ///< for dx
  LoraDropout dropout;
  GradDest dx, dlora_a;
};

void lora_down_grad(const Context& context, const LoraDownGradArgs& args);

/// Records xa [T, r] float32 = dropout(x) Aᵀ. Saved: x if A is trained. Dropout acts only on a training tape. The
/// targets of `adapter` and `rows` must outlive the tape.
Var lora_down(Tape& tape, Var x, const Adapter& adapter, const LoraDropoutContext& rows);

/// Records y [T, out] = x Wᵀ + bias + adapter, in x's dtype. With an adapter there are two nodes, "lora_down" for
/// xa and "linear", so that computing xa again costs no base product. Saved: x if W or A is trained, xa
/// if B is trained. Backward computes only gradients that are wanted.
/// `bias` and `adapter` may be null; their targets and that of `dropout` must outlive the tape.
Var linear(Tape& tape, Var x, Weight& w, Weight* bias = nullptr, const Adapter* adapter = nullptr,
           const LoraDropoutContext& dropout = {});

namespace cpu {
void linear(const Context& context, const LinearArgs& args);
void linear_grad(const Context& context, const LinearGradArgs& args);
void lora_down(const Context& context, const LoraDownArgs& args);
void lora_down_grad(const Context& context, const LoraDownGradArgs& args);
}  // namespace cpu

namespace cuda {
void linear(const Context& context, const LinearArgs& args);
void linear_grad(const Context& context, const LinearGradArgs& args);
void lora_down(const Context& context, const LoraDownArgs& args);
void lora_down_grad(const Context& context, const LoraDownGradArgs& args);
}  // namespace cuda

}  // namespace hone
