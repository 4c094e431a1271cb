// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of permutation_cuda.cu; the other kernels
// of experts take none.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/tiers.h"
#include "ops/moe_experts/cuda/biased_rows_cuda.h"
#include "ops/moe_experts/cuda/expert_masks_cuda.h"
#include "ops/moe_experts/cuda/expert_rows_cuda.h"
#include "ops/moe_experts/cuda/rank_products_cuda.h"
#include "ops/moe_experts/cuda/slice_copy_cuda.h"

namespace hone::cuda {

namespace {

void launch_nothing(const Context& context) { HONE_ASSERT(context.dry(), "built without CUDA"); }

}  // namespace

void moe_permutation(const Context& context, const ExpertRowsArgs& args) {
  launch_nothing(context);
  const int64_t choices = args.ids.numel(), experts = args.rows.offsets.numel() - 1;
  const int64_t of_chunk = std::max<int64_t>(128, (choices + 4095) / 4096);
  const int64_t chunks = std::max<int64_t>(1, (choices + of_chunk - 1) / of_chunk);
  ArenaScope scratch(context.scratch());
  scratch.take({experts, chunks}, DType::kI32);  // counts
  scratch.take({experts}, DType::kI32);          // totals
}

bool rank_products_fit(const Context& context, DType dtype, int64_t columns, size_t slices,
                       std::initializer_list<int64_t> widths) {
  const auto fits = [](int64_t width) { return width % 8 == 0 && width <= INT32_MAX / 2; };
  return std::all_of(widths.begin(), widths.end(), fits) && dtype == DType::kBF16 && columns <= kMaxRankColumns &&
         slices <= kMaxRankSlices && kernel_tiers(context).low_rank == Tier::kSm80;
}

void add_bias_rows(const Context& context, const ExpertRows&, const Tensor&, const Tensor&) { launch_nothing(context); }
void activate_biased_rows(const Context& context, const BiasedActivationArgs&) { launch_nothing(context); }
void biased_activation_grad(const Context& context, const BiasedActivationGradArgs&) { launch_nothing(context); }
void bias_rows_grad(const Context& context, const BiasRowsGradArgs&) { launch_nothing(context); }
void mask_rows(const Context& context, const MaskRowsArgs&) { launch_nothing(context); }
void draw_masks(const Context& context, const DrawMasksArgs&) { launch_nothing(context); }
void add_masked(const Context& context, const AddMaskedArgs&) { launch_nothing(context); }
void combine_rows(const Context& context, const CombineArgs&) { launch_nothing(context); }
void clear(const Context& context, const Tensor&) { launch_nothing(context); }
void store_gradient(const Context& context, const Tensor&, const GradDest&) { launch_nothing(context); }
void rank_rows(const Context& context, const RankRowsArgs&) { launch_nothing(context); }
void rank_gradient(const Context& context, const RankGradientArgs&) { launch_nothing(context); }
void add_rank_sum(const Context& context, const RankSumArgs&) { launch_nothing(context); }
void copy_slice(const Context& context, const SliceCopy&, const Tensor&, int64_t, const Tensor&, int64_t) {
  launch_nothing(context);
}

}  // namespace hone::cuda
