#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "kernels/cpu/row_math/soft_cap_block.h"
#include "ops/soft_cap/soft_cap.h"

namespace hone::cpu {

void soft_cap(const Context& context, const SoftCapArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    parallel_blocks(pool, args.x.numel(), [&](int64_t begin, int64_t n) {
      float buffer[kRowBlock], y[kRowBlock];
      math.scale(1.0f, load_block(math, args.x, begin, buffer, n), y, n);
      soft_cap_block(math, args.cap, y, n);
      store_block(math, static_cast<const float*>(y), args.y, begin, n);
    });
  });
}

}  // namespace hone::cpu
