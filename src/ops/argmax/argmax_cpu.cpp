#include <limits>

#include "core/cpu/thread_pool.h"
#include "ops/argmax/argmax.h"

namespace hone::cpu {

namespace {

template <class T>
int32_t argmax_of(const T* row, int64_t columns) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float largest = -kInfinity;
  int32_t index = -1;
  bool finite = true;
  for (int64_t i = 0; i < columns; ++i) {
    const auto value = static_cast<float>(row[i]);
    finite &= value < kInfinity;  // false for NaN
    if (value > largest) {
      largest = value;
      index = static_cast<int32_t>(i);
    }
  }
  return finite ? index : -1;
}

}  // namespace

void argmax(const Context& context, const ArgmaxArgs& args) {
  dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    context.launch([args](ThreadPool& pool) {
      const int64_t columns = args.x.shape[1];
      pool.parallel_for(args.x.shape[0], [&](int64_t row, int) {
        args.ids.as<int32_t>()[row] = argmax_of(args.x.as<T>() + row * columns, columns);
      });
    });
  });
}

}  // namespace hone::cpu
