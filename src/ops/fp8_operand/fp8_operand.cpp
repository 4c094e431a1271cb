#include "ops/fp8_operand/fp8_operand.h"

#include "kernels/device_dispatch.h"

namespace hone {

namespace {

int64_t blocks(int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }
/// cuBLASLt reads the scales of a row of blocks from aligned memory.
int64_t padded_blocks(int64_t n) { return (blocks(n) + 3) / 4 * 4; }

Shape rows_scales(Fp8Recipe recipe, int64_t rows, int64_t k) {
  if (recipe == Fp8Recipe::kTensorwise) return {1};
  return recipe == Fp8Recipe::kRowwise ? Shape{rows} : Shape{blocks(k), rows};
}

/// The scales beside a matrix [n, k] that is written.
Shape weight_scales(Fp8Recipe recipe, int64_t n, int64_t k) {
  if (recipe == Fp8Recipe::kTensorwise) return {1};
  return recipe == Fp8Recipe::kRowwise ? Shape{n} : Shape{blocks(n), padded_blocks(k)};
}

}  // namespace

Fp8Operand take_fp8_rows(ArenaScope& scratch, Fp8Recipe recipe, int64_t rows, int64_t k, Fp8Code code) {
  return {.codes = scratch.take({rows, k}, DType::kU8),
          .scales = scratch.take(rows_scales(recipe, rows, k), DType::kF32),
          .code = code};
}

void fp8_rows(const Context& context, const Fp8RowsArgs& args) {
  const int64_t k = args.x.shape[-1], rows = args.to.codes.shape[0];
  HONE_ASSERT(args.recipe != Fp8Recipe::kOff && args.x.shape.rank() == 2 && k % kFp8Unit == 0);
  HONE_ASSERT(args.to.codes.shape == Shape({rows, k}) && rows >= args.x.shape[0]);
  HONE_ASSERT(args.to.scales.shape == rows_scales(args.recipe, rows, k));
  HONE_ASSERT(!args.factors.defined() || args.factors.shape == Shape({k}));
  HONE_ASSERT(!args.group_factors.offsets.defined() || args.recipe == Fp8Recipe::kRowwise);
  HONE_ASSERT(k / args.group_factors.parts % kFp8Unit == 0);
  dispatch(context, args, &cpu::fp8_rows, HONE_CUDA_OP(fp8_rows));
}

void fp8_columns(const Context& context, const Fp8ColumnsArgs& args) {
  const int64_t k = args.x.shape[1], tokens = args.to.codes.shape[1];
  HONE_ASSERT(args.recipe != Fp8Recipe::kOff && k % kFp8Unit == 0);
  HONE_ASSERT(args.to.codes.shape == Shape({k, tokens}) && tokens >= args.x.shape[0] && tokens % kFp8Unit == 0);
  HONE_ASSERT(args.to.scales.shape == rows_scales(args.recipe, k, tokens));
  dispatch(context, args, &cpu::fp8_columns, HONE_CUDA_OP(fp8_columns));
}

Fp8Operand take_fp8_weight(ArenaScope& scratch, Fp8Recipe recipe, const Shape& shape, bool transposed) {
  const int64_t n = shape[transposed ? 1 : 0], k = shape[transposed ? 0 : 1];
  return {.codes = scratch.take({n, k}, DType::kU8), .scales = scratch.take(weight_scales(recipe, n, k), DType::kF32)};
}

void fp8_weight(const Context& context, const Fp8WeightArgs& args) {
  const Shape &of = args.w.payload.shape, &to = args.to.codes.shape;
  const int64_t n = to[0], k = to[1];
  HONE_ASSERT(of[0] % kFp8Unit == 0 && of[1] % kFp8Unit == 0);
  HONE_ASSERT(args.transposed ? n == of[1] && k == of[0] : to == of);
  HONE_ASSERT(args.to.scales.shape == weight_scales(args.recipe, n, k));
  HONE_ASSERT(args.factors.defined() == (args.transposed && args.recipe == Fp8Recipe::kRowwise));
  HONE_ASSERT(args.w.is_dense() || args.w.packed.has_value());
  dispatch(context, args, &cpu::fp8_weight, HONE_CUDA_OP(fp8_weight));
}

void fp8_transposed_stack(const Context& context, const Fp8StackArgs& args) {
  const PackedLayout& layout = args.w.layout;
  const int64_t matrices = args.w.chunks.shape[0];
  HONE_ASSERT(args.w.format == &fp8_matrix_format() && matrices % args.parts == 0 && matrices <= UINT16_MAX);
  HONE_ASSERT(layout.rows % kFp8Unit == 0 && layout.columns % kFp8Unit == 0);
  HONE_ASSERT(args.to.shape == Shape({matrices / args.parts, layout.columns, args.parts * layout.rows}));
#if HONE_CUDA
  cuda::fp8_transposed_stack(context, args);
#else
  HONE_ASSERT(context.dry(), "built without CUDA");
#endif
}

std::optional<Fp8Operand> fp8_weight_in_place(Fp8Recipe recipe, const WeightView& w) {
  if (!w.packed) return std::nullopt;
  const PackedLayout& layout = w.packed->layout;
  const bool aligned = layout.scale_columns == padded_blocks(layout.columns);
  if (recipe == Fp8Recipe::kBlockwise && !aligned) return std::nullopt;
  const Tensor& chunks = w.packed->chunks;
  Tensor codes = chunks, scales = chunks;
  codes.shape = w.payload.shape;
  scales.data = chunks.data == nullptr ? nullptr : chunks.data + layout.scales;
  scales.dtype = DType::kF32;
  scales.shape = weight_scales(recipe, layout.rows, layout.columns);
  return Fp8Operand{.codes = codes, .scales = scales};
}

WeightProduct weight_product_of(Fp8Recipe recipe) {
  switch (recipe) {
    case Fp8Recipe::kRowwise:
      return WeightProduct::kFp8Rows;
    case Fp8Recipe::kBlockwise:
      return WeightProduct::kFp8Blocks;
    case Fp8Recipe::kOff:
    case Fp8Recipe::kTensorwise:
      break;
  }
  return WeightProduct::kLinear;
}

}  // namespace hone
