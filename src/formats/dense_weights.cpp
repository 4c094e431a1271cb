#include "core/base/error.h"
#include "formats/weight_format.h"

namespace hone {

namespace {

class DenseFormat : public WeightFormat {
 public:
  std::string_view name() const override { return "dense"; }
  bool fits(const Shape&) const override { return true; }
  std::string_view sizes() const override { return "any"; }
  bool dense() const override { return true; }
  FormatTensor payload(const Shape& shape, DType dtype) const override { return {shape, dtype}; }
  bool read_in_place(WeightProduct, Device) const override { return true; }

  void fill(const EncodedWeight& to, int64_t row, int64_t count, const float* values) const override {
    const int64_t columns = to.shape[-1], begin = row * columns;
    dispatch_float(to.payload.dtype, [&](auto element) {
      using T = decltype(element);
      for (int64_t i = 0; i < count * columns; ++i) to.payload.as<T>()[begin + i] = T(values[i]);
    });
  }
  void read(const EncodedWeight& from, int64_t row, int64_t count, float* values) const override {
    const int64_t columns = from.shape[-1], begin = row * columns;
    dispatch_float(from.payload.dtype, [&](auto element) {
      using T = decltype(element);
      for (int64_t i = 0; i < count * columns; ++i) values[i] = static_cast<float>(from.payload.as<T>()[begin + i]);
    });
  }
};

}  // namespace

const WeightFormat& dense_format() {
  static const DenseFormat format;
  return format;
}

}  // namespace hone
