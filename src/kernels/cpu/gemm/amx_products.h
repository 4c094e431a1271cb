// Products on AMX: distributes their blocks (amx_blocks.h) to tasks.
#pragma once

#include <span>

#include "kernels/cpu/gemm/gemm.h"

namespace hone {
class ThreadPool;
}

namespace hone::amx {

/// Whether the product's operands are bfloat16 or may be rounded to it. Depends only on dtypes, not on sizes, so that
/// results do not depend on sizes.
bool takes(const GemmArgs& args);

/// Runs one product on the calling thread.
void product(const GemmArgs& args);

/// Runs all products on the threads of the pool.
void products(ThreadPool& pool, std::span<const GemmArgs> groups);

}  // namespace hone::amx
