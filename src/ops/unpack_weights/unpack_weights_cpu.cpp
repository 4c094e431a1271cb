#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/packed_rows.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/unpack_weights/unpack_weights.h"

namespace hone::cpu {

void unpack_weights(const Context& context, const UnpackWeightsArgs& args) {
  context.launch([args](ThreadPool& pool) {
    pool.parallel_ranges(args.dst.numel(), 8 * kRowBlock, [&](int64_t begin, int64_t end) {
      unpack_elements(args.layout, args.codes.data, begin, end - begin, args.dst, begin);
    });
  });
}

}  // namespace hone::cpu
