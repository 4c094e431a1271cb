#include "app/bench/op_case.h"

#include <fmt/format.h>

#include "core/profiler.h"
#include "formats/int8_weights.h"
#include "formats/tiled_weights.h"
#include "ops/cast/cast.h"
#include "ops/linear/linear.h"
#include "ops/random_fill/random_fill.h"

namespace hone {

namespace {

class BenchWeight : public Weight {
 public:
  BenchWeight(WeightView view, Tensor gradient) : view_(view), gradient_(gradient) {}
  const Shape& shape() const override { return view_.payload.shape; }
  WeightView view() const override { return view_; }
  bool wants_grad() const override { return gradient_.defined(); }
  GradDest grad() override { return {gradient_, 0.0f}; }

 private:
  WeightView view_;
  Tensor gradient_;
};

}  // namespace

Tensor BenchData::take(Shape shape, DType dtype) {
  buffers_.emplace_back(stream_.device(), std::max<size_t>(static_cast<size_t>(shape.numel()) * size_of(dtype), 1));
  return buffers_.back().tensor(shape, dtype);
}

Tensor BenchData::random(Shape shape, DType dtype, float deviation) {
  const Tensor tensor = take(shape, dtype);
  Arena scratch(stream_.device(), "random");
  scratch.reserve(0);
  random_fill(Context(stream_, scratch), {.dst = tensor, .scale = deviation, .key = ++key_});
  return tensor;
}

Weight& BenchData::weight(Shape shape, DType dtype, bool trained) {
  const Tensor value = random(shape, dtype, 0.02f);
  return *weights_.emplace_back(
      std::make_unique<BenchWeight>(WeightView{value}, trained ? take(shape, DType::kF32) : Tensor{}));
}

Weight& BenchData::frozen_weight(Shape shape, DType dtype) {
  if (!gains_from_tiles(stream_.device(), dtype, shape)) return weight(shape, dtype, false);
  // Random numbers are as random in any order.
  const WeightView view{random(shape, dtype, 0.02f), &tile_format()};
  return *weights_.emplace_back(std::make_unique<BenchWeight>(view, Tensor{}));
}

Weight& BenchData::int8_weight(Shape shape) {
  const WeightView view{take(shape, DType::kI8), &int8_format(), take({shape[0], shape[1]}, DType::kF32)};
  const Tensor expert = random({shape[1], shape[2]}, DType::kF32, 0.02f);
  stream_.enqueue([=](ThreadPool& pool) {
    const int64_t together = view.format->rows_together(), panels = shape[1] / together;
    pool.parallel_for(shape[0] * panels, [&](int64_t i, int) {
      view.format->fill({shape, view.payload, view.scales}, i * together, together,
                        expert.as<float>() + i % panels * together * shape[2]);
    });
  });
  return *weights_.emplace_back(std::make_unique<BenchWeight>(view, Tensor{}));
}

OpCase linear_case(BenchData& data, const std::string& name, const OpSizes& sizes, int64_t in, int64_t out,
                   bool trained) {
  const int64_t tokens = sizes.tokens;
  const auto size = static_cast<double>(size_of(sizes.dtype));
  const double x_bytes = size * static_cast<double>(tokens * in), y_bytes = size * static_cast<double>(tokens * out);
  const auto weights = static_cast<double>(in * out);
  const double flops = 2 * weights * static_cast<double>(tokens);
  const std::string shape = fmt::format("[{}, {}] → {}", tokens, in, out);
  const Tensor x = data.random({tokens, in}, sizes.dtype), dx = data.take({tokens, in}, sizes.dtype);
  const Shape weight_shape{out, in};
  Weight& w = trained ? data.weight(weight_shape, sizes.dtype, true) : data.frozen_weight(weight_shape, sizes.dtype);
  OpCase result;
  if (trained) {
    result.parts.push_back({name, shape, "linear", "forward", flops, x_bytes + y_bytes + size * weights});
    result.parts.push_back(
        {name + " grad dx dW", shape, "linear", "backward", 2 * flops, 2 * (x_bytes + y_bytes) + (size + 4) * weights});
  } else {
    result.parts.push_back({name + " grad dx", shape, "linear", "backward", flops, x_bytes + y_bytes + size * weights});
  }
  result.record = [x, dx, &w](Tape& tape) { return linear(tape, tape.input(x, dx), w); };
  result.gradient = data.random({tokens, out}, sizes.dtype);
  return result;
}

OpCase copy_case(BenchData& data, int64_t bytes) {
  const int64_t count = bytes / 4;
  const Tensor from = data.random({count}, DType::kF32), to = data.take({count}, DType::kF32);
  OpCase result;
  result.parts.push_back(
      {"copy", fmt::format("{} MB", bytes / 1000000), "copy", "", 0, 2 * static_cast<double>(bytes)});
  result.backward = false;
  result.record = [from, to](Tape& tape) {
    const ProfileScope scope(tape.context(), ProfileKind::kOp, "copy");
    copy(tape.context(), from, to);
    return Var{};
  };
  return result;
}

}  // namespace hone
