#include "ops/kept_rows/kept_rows.h"

#include "kernels/device_dispatch.h"

namespace hone {

namespace {

int64_t groups_of(const Shape& shape) { return (shape[1] + kFp8Block - 1) / kFp8Block; }

/// Codes and, behind them, scales in `packed`.
Fp8Operand operand_in(const Tensor& packed, const Shape& shape) {
  Tensor codes = packed, scales = packed;
  codes.shape = shape;
  scales.data = packed.data + codes.bytes();
  scales.dtype = DType::kF32;
  scales.shape = {groups_of(shape), shape[0]};
  return {.codes = codes, .scales = scales};
}

class Fp8ValueFormat : public ValueFormat {
 public:
  int64_t bytes(const Shape& shape) const override {
    HONE_ASSERT(shape.rank() == 2 && shape[1] % kFp8Unit == 0, shape.to_string());
    return shape.numel() + groups_of(shape) * shape[0] * int64_t{sizeof(float)};
  }

  void pack(const Context& context, const Tensor& value, const Tensor& packed) const override {
    fp8_rows(context, {.recipe = Fp8Recipe::kBlockwise, .x = value, .to = operand_in(packed, value.shape)});
  }

  void unpack(const Context& context, const Tensor& packed, const Tensor& value) const override {
    restore_rows(context, {.from = operand_in(packed, value.shape), .x = value});
  }
};

}  // namespace

const ValueFormat& fp8_value_format() {
  static const Fp8ValueFormat format;
  return format;
}

void restore_rows(const Context& context, const RestoreRowsArgs& args) {
  HONE_ASSERT(args.from.codes.shape == args.x.shape && args.from.code == Fp8Code::kE4m3);
  HONE_ASSERT(args.from.scales.shape == Shape({groups_of(args.x.shape), args.x.shape[0]}));
  HONE_ASSERT(args.x.shape[1] % kFp8Unit == 0);
  dispatch(context, args, &cpu::restore_rows, HONE_CUDA_OP(restore_rows));
}

}  // namespace hone
