// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of matmul_cuda.cu.
#include "kernels/cuda/matmul/matmul_cuda.h"

namespace hone::cuda {

namespace {

void take_operand(ArenaScope& scratch, const Tensor& tensor, int64_t pitch, DType dtype) {
  const int64_t columns = tensor.shape[1], stored = pitch != 0 ? pitch : columns;
  if (tensor.dtype == dtype && stored == aligned_pitch(stored, dtype)) return;
  scratch.take({tensor.shape[0], aligned_pitch(columns, dtype)}, dtype);
}

}  // namespace

void copy_matrix(const Context& context, const Tensor&, int64_t, const Tensor&, int64_t) {
  HONE_ASSERT(context.dry(), "built without CUDA");
}

void matmul(const Context& context, const MatmulArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  const int64_t depth = args.a.shape[args.a_transposed ? 0 : 1];
  if (args.c.shape[0] == 0 || args.c.shape[1] == 0 || depth == 0) return;
  ArenaScope scratch(context.scratch());
  take_operand(scratch, args.a, args.a_pitch, args.operands);
  take_operand(scratch, args.b, args.b_pitch, args.operands);
  if (args.bias.defined() && args.bias.dtype != args.c.dtype) scratch.take(args.bias.shape, args.c.dtype);
}

void fp8_matmul(const Context& context, const Fp8MatmulArgs&) { HONE_ASSERT(context.dry(), "built without CUDA"); }

}  // namespace hone::cuda
