// Stand-ins for CUDA ops that are still to be written; each line goes when its op arrives.
#include "ops/router/router.h"
#define PENDING(name, Args) void name(const Context&, const Args&) { HONE_ASSERT(false, "no CUDA yet: " #name); }
namespace hone::cuda {
PENDING(router, RouterArgs)
PENDING(router_grad, RouterGradArgs)
}  // namespace hone::cuda
