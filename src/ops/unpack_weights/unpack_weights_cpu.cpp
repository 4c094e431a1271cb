#include <algorithm>

#include "core/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/unpack_weights/unpack_weights.h"

namespace hone::cpu {

void unpack_weights(const Context& context, const UnpackWeightsArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const int64_t elements = args.layout.elements();
    parallel_blocks(pool, args.dst.numel(), [&](int64_t begin, int64_t n) {
      float buffer[kRowBlock];
      for (int64_t i = begin; i < begin + n;) {  // a block may cross the end of a matrix
        const int64_t matrix = i / elements, run = std::min((matrix + 1) * elements, begin + n) - i;
        unpack(args.layout, args.codes.data + matrix * args.layout.bytes, i - matrix * elements, run,
               buffer + (i - begin));
        i += run;
      }
      store_block(math, buffer, args.dst, begin, n);
    });
  });
}

}  // namespace hone::cpu
