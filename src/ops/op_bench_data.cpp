#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "formats/int8_weights.h"
#include "formats/tiled_weights.h"
#include "kernels/op_bench.h"
#include "ops/random_fill/random_fill.h"

namespace hone {

namespace {

class BenchWeight : public Weight {
 public:
  explicit BenchWeight(WeightView view, Tensor gradient = {}, const Fp8Products& fp8 = {})
      : view_(view), gradient_(gradient), fp8_(fp8) {}
  const Shape& shape() const override { return view_.payload.shape; }
  WeightView view() const override { return view_; }
  std::optional<PackedWeight> packed_view() const override { return view_.packed; }
  bool wants_grad() const override { return gradient_.defined(); }
  GradDest grad() override { return {gradient_, 0.0f}; }
  Fp8Products fp8() const override { return fp8_; }

 private:
  WeightView view_;
  Tensor gradient_;
  Fp8Products fp8_;
};

}  // namespace

std::string BenchSizes::shape(int64_t width) const { return fmt::format("[{}, {}]", tokens, width); }

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

std::function<Var(Tape&)> BenchData::input(int64_t width) {
  const Tensor x = activations(width), dx = take(x.shape, x.dtype);
  return [x, dx](Tape& tape) { return tape.input(x, dx); };
}

Tensor BenchData::random_ids(int64_t bound) {
  PhiloxSequence random(23);
  std::vector<int32_t> ids(static_cast<size_t>(sizes.tokens));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(static_cast<uint64_t>(bound)));
  return upload({sizes.tokens}, std::move(ids));
}

Weight& BenchData::weight(Shape shape, DType dtype, bool trained, const Fp8Products& fp8) {
  const Tensor value = random(shape, dtype, 0.02f), gradient = trained ? take(shape, DType::kF32) : Tensor{};
  return *weights_.emplace_back(std::make_unique<BenchWeight>(WeightView{value}, gradient, fp8));
}

Weight& BenchData::frozen_weight(Shape shape, DType dtype) {
  if (!gains_from_tiles(stream_.device(), dtype, shape)) return weight(shape, dtype, false);
  // The order of elements does not matter for random values.
  const WeightView view{random(shape, dtype, 0.02f), &tile_format()};
  return *weights_.emplace_back(std::make_unique<BenchWeight>(view));
}

Weight& BenchData::int8_weight(Shape shape) {
  const WeightView view{take(shape, DType::kI8), &int8_format(), take({shape[0], shape[1]}, DType::kF32)};
  const Tensor expert = random({shape[1], shape[2]}, DType::kF32, 0.02f);
  stream_.enqueue([=](ThreadPool& pool) {
    const int64_t together = view.format->rows_together(shape), panels = shape[1] / together;
    pool.parallel_for(shape[0] * panels, [&](int64_t i, int) {
      view.format->fill({shape, view.payload, view.scales}, i * together, together,
                        expert.as<float>() + i % panels * together * shape[2]);
    });
  });
  return *weights_.emplace_back(std::make_unique<BenchWeight>(view));
}

Weight& BenchData::packed_weight(Shape shape, const PackedFormat& format, int64_t parts) {
  const PackedLayout layout = format.layout(shape[1] / parts, shape[2]);
  const Tensor chunks = take({shape[0] * parts, layout.bytes}, DType::kU8);
  const Tensor matrix = random({layout.rows, layout.columns}, DType::kF32, 0.02f);
  stream_.enqueue([=, &format](ThreadPool& pool) {
    format.pack(layout, matrix.as<float>(), chunks.data);
    pool.parallel_for(chunks.shape[0] - 1, [&](int64_t i, int) {
      std::memcpy(chunks.data + (i + 1) * layout.bytes, chunks.data, static_cast<size_t>(layout.bytes));
    });
  });
  const WeightView view{.payload = {nullptr, sizes.dtype, shape, stream_.device()},
                        .format = &format,
                        .packed = PackedWeight{layout, chunks, sizes.dtype, &format}};
  return *weights_.emplace_back(std::make_unique<BenchWeight>(view));
}

}  // namespace hone
