// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of grouped_*_cuda.cu and
// gated_rows_cuda.cu.
#include "kernels/cuda/grouped_gemm/gated_rows_cuda.h"
#include "kernels/cuda/grouped_gemm/grouped_gemm.h"
#include "kernels/cuda/tiers.h"

namespace hone::cuda {

namespace {

/// Whether the tensor cores' kernels support a tensor (grouped_tensor_cores_cuda.h).
bool takes_rows(const Tensor& tensor) {
  return !tensor.defined() || (tensor.dtype == DType::kBF16 && tensor.shape[-1] > 0 && tensor.shape[-1] % 8 == 0);
}

}  // namespace

bool takes_fp8_groups(const Context& context, int64_t rows, int64_t columns, int64_t groups) {
  constexpr int64_t kMostGroups = 1024;
  return kernel_tiers(context).grouped_gemm == Tier::kSm90 && groups <= kMostGroups && rows % 128 == 0 &&
         columns % 128 == 0;
}

void grouped_gemm(const Context& context, const GroupedGemmArgs&) { HONE_ASSERT(context.dry(), "built without CUDA"); }

void grouped_dswiglu(const Context& context, const GroupedDswigluArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  constexpr int64_t kHopperGroups = 1024;
  constexpr int64_t kHopperColumns = 128;  // columns of a tile, which adds one row of dots
  constexpr int64_t kSm80Columns = 256,
                    kSm80Rows = 4;  // columns of a tile, and its rows of dots: one for each warp across
  const Tier tier = kernel_tiers(context).grouped_gemm;
  const int64_t rows = args.groups.rows, width = args.fp8.defined() ? args.fp8.rows : args.w.shape[2];
  bool fits = args.weights.dtype == DType::kBF16 && (tier != Tier::kSm90 || args.groups.groups() <= kHopperGroups);
  for (const Tensor& tensor : {args.dout, args.w, args.extra_a, args.extra_w, args.h, args.dh, args.scaled_act}) {
    fits = fits && takes_rows(tensor);
  }
  fits = fits || args.fp8.defined();
  ArenaScope scratch(context.scratch());
  if (!fits || tier == Tier::kGeneral) {
    scratch.take({rows, width}, DType::kF32);
  } else if (args.dweights.defined()) {
    const int64_t parts = tier == Tier::kSm90 ? (width + kHopperColumns - 1) / kHopperColumns
                                              : (width + kSm80Columns - 1) / kSm80Columns * kSm80Rows;
    scratch.take({parts, rows}, DType::kF32);
  }
}

void grouped_wgrad(const Context& context, const GroupedWgradArgs&) {
  HONE_ASSERT(context.dry(), "built without CUDA");
}

void activate_rows(const Context& context, const Tensor&, const Tensor&) {
  HONE_ASSERT(context.dry(), "built without CUDA");
}

void gated_rows_grad(const Context& context, const GatedGradArgs&) { HONE_ASSERT(context.dry(), "built without CUDA"); }

}  // namespace hone::cuda
