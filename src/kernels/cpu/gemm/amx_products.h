// Products on AMX: how their blocks (amx_blocks.h) are cut into tasks.
#pragma once

#include <span>

#include "kernels/cpu/gemm/gemm.h"

namespace hone {
class ThreadPool;
}

namespace hone::amx {

/// Whether the product's operands are bfloat16 or may be rounded to it. A matter of dtypes alone, not of sizes: bits
/// would depend on them.
bool takes(const GemmArgs& args);

/// The product on the calling thread.
void product(const GemmArgs& args);

/// All of them on the threads of the pool.
void products(ThreadPool& pool, std::span<const GemmArgs> groups);

}  // namespace hone::amx
