#include <algorithm>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/kept_rows/kept_rows.h"

namespace hone::cpu {

void restore_rows(const Context& context, const RestoreRowsArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const int64_t rows = args.x.shape[0], k = args.x.shape[1];
    const auto* codes = args.from.codes.as<uint8_t>();
    const auto* scales = args.from.scales.as<float>();
    pool.parallel_ranges(rows, 1, [&](int64_t begin, int64_t end) {
      float values[kFp8Block];
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t at = 0; at < k; at += kFp8Block) {
          const int64_t count = std::min(kFp8Block, k - at), first = row * k + at;
          math.scale_e4m3(scales[at / kFp8Block * rows + row], codes + first, values, count);
          store_block(math, static_cast<const float*>(values), args.x, first, count);
        }
      }
    });
  });
}

}  // namespace hone::cpu
