#include <cstring>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/cast/cast.h"

namespace hone::cpu {

namespace {

constexpr int64_t kBytesPerTask = int64_t{1} << 18;

}  // namespace

void cast(const Context& context, const CastArgs& args) {
  context.launch([args](ThreadPool& pool) { convert_elements(pool, args.src, args.dst); });
}

void copy(const Context& context, const CastArgs& args) {
  context.launch([args](ThreadPool& pool) {
    pool.parallel_ranges(static_cast<int64_t>(args.dst.bytes()), kBytesPerTask, [&](int64_t begin, int64_t end) {
      std::memcpy(args.dst.data + begin, args.src.data + begin, static_cast<size_t>(end - begin));
    });
  });
}

void fill_zero(const Context& context, const Tensor& tensor) {
  context.launch([tensor](ThreadPool& pool) {
    pool.parallel_ranges(static_cast<int64_t>(tensor.bytes()), kBytesPerTask, [&](int64_t begin, int64_t end) {
      std::memset(tensor.data + begin, 0, static_cast<size_t>(end - begin));
    });
  });
}

}  // namespace hone::cpu
