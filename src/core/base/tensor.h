// Tensor: a plain view of typed memory, which an arena or a Buffer owns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/base/device.h"
#include "core/base/dtype.h"
#include "core/base/error.h"

namespace hone {

/// Up to four dimensions, row-major, the last one fastest.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    HONE_ASSERT(dims.size() <= kMaxRank);
    for (int64_t dim : dims) push_back(dim);
  }

  void push_back(int64_t dim) {
    HONE_ASSERT(rank_ < kMaxRank && dim >= 0);
    dims_[static_cast<size_t>(rank_++)] = dim;
  }
  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i < 0 ? rank_ + i : i)]; }
  /// Product of the dimensions; 1 for a scalar.
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<size_t>(i)];
    return n;
  }
  bool operator==(const Shape& other) const = default;
  /// "[2, 3]"
  std::string to_string() const;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

/// A contiguous row-major view. Copying copies the view.
struct Tensor {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Device device;

  bool defined() const { return data != nullptr; }
  int64_t numel() const { return shape.numel(); }
  size_t bytes() const { return static_cast<size_t>(numel()) * size_of(dtype); }

  /// The elements as T, which must match the dtype.
  template <class T>
  T* as() const {
    HONE_ASSERT(DTypeOf<T>::value == dtype, "tensor is " + std::string(name_of(dtype)));
    return reinterpret_cast<T*>(data);
  }

  /// Rows [begin, begin + count) of the first dimension.
  Tensor rows(int64_t begin, int64_t count) const;
  /// The same elements with another shape of equal size.
  Tensor reshaped(Shape other) const;
};

}  // namespace hone
