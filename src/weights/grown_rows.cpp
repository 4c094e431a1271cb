#include "weights/grown_rows.h"

#include <algorithm>
#include <cstring>

#include "core/base/error.h"

namespace hone {

const std::vector<float>& GrownRows::mean() const {
  std::call_once(once_, [&] {
    const int64_t rows = entry_.shape[0], columns = entry_.shape[1];
    const int64_t at_once = std::max<int64_t>(1, (int64_t{1} << 20) / std::max<int64_t>(columns, 1));
    std::vector<double> sums(static_cast<size_t>(columns), 0.0);
    std::vector<float> values(static_cast<size_t>(at_once * columns));
    for (int64_t row = 0; row < rows; row += at_once) {
      const int64_t count = std::min(at_once, rows - row);
      file_.read_floats(entry_, row * columns, values.data(), count * columns);
      for (auto value = values.cbegin(); value != values.cbegin() + count * columns; value += columns) {
        for (int64_t i = 0; i < columns; ++i) sums[static_cast<size_t>(i)] += static_cast<double>(value[i]);
      }
    }
    mean_.reserve(sums.size());
    for (const double sum : sums) mean_.push_back(static_cast<float>(sum / static_cast<double>(rows)));
  });
  return mean_;
}

void GrownRows::write(int64_t first, int64_t count, DType dtype, std::byte* destination) const {
  const std::vector<float>& row = mean();
  const auto fill = [&](auto element) {
    using T = decltype(element);
    for (int64_t i = 0; i < count; ++i) {
      const T value(row[static_cast<size_t>((first + i) % entry_.shape[1])]);
      std::memcpy(destination + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
    }
  };
  dtype == DType::kF16 ? fill(Float16{}) : dispatch_float(dtype, fill);
}

}  // namespace hone
