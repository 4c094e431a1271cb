#include "ops/adamw/adamw.h"

#include "ops/optimizer_bench.h"

namespace hone {

namespace {

/// The formats of a step, and the bytes per element that it reads and writes.
struct Formats {
  const char* name;
  DType parameter, gradient, m, v;

  double bytes(bool copies) const {
    const auto size = [](DType dtype) {
      return static_cast<double>(size_of(dtype)) + (size_of(dtype) == 1 ? 4.0 / 256 : 0.0);
    };
    return 2 * (size(parameter) + size(m) + size(v)) + size(gradient) + (copies ? 2 : 0);
  }
};

constexpr Formats kFormats[] = {
    {"adamw", DType::kF32, DType::kF32, DType::kF32, DType::kF32},
    {"adamw all bf16", DType::kBF16, DType::kBF16, DType::kBF16, DType::kBF16},
    {"adamw 8-bit moments", DType::kF32, DType::kF32, DType::kI8, DType::kU8},
    {"adamw bf16, 8-bit moments", DType::kBF16, DType::kBF16, DType::kI8, DType::kU8},
};

OpCase step(BenchData& data, const Formats& formats) {
  const int64_t count = int64_t{1} << (data.sizes.device == DeviceKind::kCuda ? 28 : 24);
  const bool copies = data.sizes.dtype != DType::kF32 && formats.parameter == DType::kF32;
  const auto moment = [&](DType dtype) {
    return Moment{data.take({count}, dtype), size_of(dtype) == 1 ? data.take({count / 256}, DType::kF32) : Tensor{}};
  };
  AdamwTensor tensor;
  tensor.parameter = data.random({count}, formats.parameter, 0.02f);
  if (copies) tensor.working_copy = data.take({count}, data.sizes.dtype);
  tensor.m = moment(formats.m);
  tensor.v = moment(formats.v);
  tensor.gradient = data.random({count}, formats.gradient, 1e-3f);
  const AdamwArgs args{.tensors = {tensor}, .scalars = idle_step(data)};
  OpCase result;
  result.parts = {
      {formats.name, fmt::format("[{}]", count), "adamw", "", static_cast<double>(count) * formats.bytes(copies)}};
  result.backward = false;
  result.record = [args](Tape& tape) {
    const ProfileScope scope(tape.context(), OpGroup::kOptimizer, "adamw");
    adamw(tape.context(), args);
    return Var{};
  };
  return result;
}

}  // namespace

void adamw_cases(OpCases& cases) {
  for (const Formats& formats : kFormats) {
    cases.add(OpGroup::kOptimizer, {formats.name}, [=](BenchData& data) { return step(data, formats); });
  }
}

}  // namespace hone
