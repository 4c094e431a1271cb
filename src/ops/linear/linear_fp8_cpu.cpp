#include "ops/linear/linear_fp8_cpu.h"

#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/cast/cast.h"
#include "ops/linear/fp8_base.h"

namespace hone::cpu {

namespace {

/// The values of an operand, float32 [rows, k]. Scales of blockwise are [k / 128, rows] of rows, and [rows / 128, …] of
/// weights.
Tensor values_of(const Context& context, ArenaScope& scratch, Fp8Recipe recipe, const Fp8Operand& operand,
                 bool weight) {
  const Tensor values = scratch.take(operand.codes.shape, DType::kF32);
  context.launch([=](ThreadPool& pool) {
    const int64_t rows = values.shape[0], k = values.shape[1];
    const int64_t pitch = operand.scales.shape[-1];
    const auto* codes = operand.codes.as<uint8_t>();
    const auto* scales = operand.scales.as<float>();
    pool.parallel_ranges(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t i = 0; i < k; ++i) {
          const uint8_t code = codes[row * k + i];
          const float value = operand.code == Fp8Code::kE4m3 ? e4m3_value(code) : e5m2_value(code);
          int64_t at = recipe == Fp8Recipe::kRowwise ? row : 0;
          if (recipe == Fp8Recipe::kBlockwise) {
            at = weight ? row / kFp8Block * pitch + i / kFp8Block : i / kFp8Block * pitch + row;
          }
          values.as<float>()[row * k + i] = value * scales[at];
        }
      }
    });
  });
  return values;
}

/// dst = values + beta · dst.
void store(const Context& context, const Tensor& values, const GradDest& dst) {
  context.launch([=](ThreadPool& pool) {
    parallel_blocks(pool, values.numel(), [&](int64_t begin, int64_t n) {
      store_block(row_math(), values.as<float>() + begin, dst, begin, n);
    });
  });
}

/// What `base` multiplies x, or dy, to: float32 [T, out] or [T, in].
struct Product {
  Tensor x, w, y;

  Product(const Context& context, ArenaScope& scratch, const Fp8Base& base, const Tensor& rows)
      : x(values_of(context, scratch, base.recipe(), base.round(context, scratch, rows), false).rows(0, rows.shape[0])),
        w(values_of(context, scratch, base.recipe(), base.operand(), true)),
        y(scratch.take({x.shape[0], w.shape[0]}, DType::kF32)) {}
};

}  // namespace

void linear_fp8(const Context& context, const LinearArgs& args) {
  const Fp8Base base(context, args.fp8, args.w, false);
  ArenaScope scratch(context.scratch());
  const Product product(context, scratch, base, args.x);
  LinearArgs exact = args;
  exact.x = product.x;
  exact.w = {product.w};
  exact.y = product.y;
  exact.fp8 = Fp8Recipe::kOff;
  cpu::linear(context, exact);
  store(context, product.y, {args.y, 0.0f});
}

void linear_fp8_grad(const Context& context, const LinearGradArgs& args) {
  const Fp8Recipe recipe = args.fp8.recipe;
  LinearGradArgs others = args;
  others.fp8 = {};
  others.dx = {};
  others.lora_a = {};
  if (args.fp8.weight_gradient) others.dw = {};
  cpu::linear_grad(context, others);
  if (args.dx.wanted()) {
    const Fp8Base base(context, recipe, args.w, true);
    ArenaScope scratch(context.scratch());
    const Product product(context, scratch, base, args.dy);
    cpu::linear(context, {.x = product.x, .w = {product.w}, .y = product.y});
    if (args.lora_a.defined()) {
      cpu::lora_down_grad(context, {.dxa = args.dxa.dst,
                                    .lora_a = args.lora_a,
                                    .dropout = args.dropout,
                                    .dx = {product.y, 1.0f},
                                    .dlora_a = {}});
    }
    store(context, product.y, args.dx);
  }
  if (args.dw.wanted() && args.fp8.weight_gradient) {
    ArenaScope scratch(context.scratch());
    const Fp8WeightGradient operands(context, scratch, recipe, args.dy, args.x);
    const Tensor dy = values_of(context, scratch, recipe, operands.dy, false);
    const Tensor x = values_of(context, scratch, recipe, operands.x, false);
    const Tensor dw = scratch.take(args.dw.dst.shape, DType::kF32);
    cpu::linear(context, {.x = dy, .w = {x}, .y = dw});
    store(context, dw, args.dw);
  }
}

}  // namespace hone::cpu
