#include "ops/random_fill/random_fill.h"

#include "kernels/device_dispatch.h"

namespace hone {

void random_fill(const Context& context, const RandomFillArgs& args) {
  dispatch(context, args, &cpu::random_fill, HONE_CUDA_OP(random_fill));
}

}  // namespace hone
