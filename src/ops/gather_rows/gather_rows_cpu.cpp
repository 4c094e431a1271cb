#include <cstring>

#include "core/cpu/thread_pool.h"
#include "ops/gather_rows/gather_rows.h"

namespace hone::cpu {

void gather_rows(const Context& context, const GatherRowsArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const size_t row_bytes = static_cast<size_t>(args.x.shape[1]) * size_of(args.x.dtype);
    const int32_t* rows = args.rows.as<int32_t>();
    pool.parallel_ranges(args.rows.numel(), 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(args.y.data + static_cast<size_t>(i) * row_bytes,
                    args.x.data + static_cast<size_t>(rows[i]) * row_bytes, row_bytes);
      }
    });
  });
}

}  // namespace hone::cpu
