// Selects and calls the products of expert adapters: the tensor-core kernels of rank_products_cuda.h if they support
// ranks and rows, else grouped products with masked rows in scratch.
#include "ops/moe_experts/cuda/expert_lora_cuda.h"

#include <algorithm>
#include <utility>

#include "ops/moe_experts/cuda/expert_masks_cuda.h"
#include "ops/moe_experts/cuda/slice_copy_cuda.h"

namespace hone::cuda {

ExpertLora::ExpertLora(const Context& context, ArenaScope& scratch, const Args& args)
    : context_(context), args_(args), groups_(groups_of(args.rows)) {
  for (const ExpertAdapterView& adapter : args.adapters) {
    slices_.push_back({columns_, adapter.rank()});
    columns_ += expert_rank_columns(adapter.rank());
    fills_ &= adapter.rank() % 8 == 0;
    drops_ |= adapter.dropout != 0.0f;
  }
  unmasked_ = slices_;
  const int64_t out = args.weight[1], in = args.weight[2];
  fits_ = rank_products_fit(context, args.dtype, columns_, slices_.size(), {out, in});
  if (!fits_ || !drops_) return;
  for (size_t i = 0; i < slices_.size(); ++i) {
    slices_[i].mask = scratch.take({groups_.rows, mask_stride(in)}, DType::kU8);
    draw_masks(
        context,
        {.rows = args.rows, .dropout = args.dropout, .adapter = args.adapters[i], .n = in, .dst = slices_[i].mask});
  }
}

Tensor ExpertLora::take_rank_rows(ArenaScope& scratch) const {
  return any() ? scratch.take({groups_.rows, columns_}, args_.dtype) : Tensor{};
}

Tensor ExpertLora::factor(ArenaScope& scratch, Ranks ranks, int64_t width, bool fills,
                          const std::vector<FactorPiece>& pieces) const {
  const bool last = ranks == Ranks::kLast;
  const int64_t experts = args_.weight[0];
  const Tensor all =
      scratch.take(last ? Shape{experts, width, columns_} : Shape{experts, columns_, width}, args_.dtype);
  if (!fills) clear(context_, all);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const FactorPiece& piece = pieces[i];
    const auto [begin, rank] = std::pair(slices_[i].begin, slices_[i].rank);
    const int64_t expert = rank * piece.features;
    if (last) {
      copy_slice(context_,
                 {.experts = experts,
                  .rows = piece.features,
                  .columns = rank,
                  .from = {expert, piece.feature_stride, piece.rank_stride},
                  .to = {width * columns_, columns_, 1},
                  .scale = piece.scale},
                 piece.values, 0, all, piece.first_feature * columns_ + begin);
    } else {
      copy_slice(context_,
                 {.experts = experts,
                  .rows = rank,
                  .columns = piece.features,
                  .from = {expert, piece.rank_stride, piece.feature_stride},
                  .to = {width * columns_, width, 1},
                  .scale = piece.scale},
                 piece.values, 0, all, begin * width + piece.first_feature);
    }
  }
  return all;
}

Tensor ExpertLora::a(ArenaScope& scratch, Ranks ranks) const {
  if (!any()) return {};
  const int64_t in = args_.weight[2];
  std::vector<FactorPiece> pieces;
  for (const ExpertAdapterView& adapter : args_.adapters) {
    pieces.push_back({.values = adapter.lora_a, .features = in, .rank_stride = in});
  }
  return factor(scratch, ranks, in, fills_, pieces);
}

Tensor ExpertLora::b(ArenaScope& scratch, Ranks ranks) const {
  if (!any()) return {};
  std::vector<FactorPiece> pieces;
  for (const ExpertAdapterView& adapter : args_.adapters) {
    pieces.push_back({.values = adapter.lora_b,
                      .first_feature = adapter.out_begin,
                      .features = adapter.out_count,
                      .feature_stride = adapter.rank(),
                      .scale = adapter.input_scaling()});
  }
  return factor(scratch, ranks, args_.weight[1], false, pieces);
}

Tensor ExpertLora::masked(ArenaScope& scratch, const ExpertInput& input) const {
  return scratch.take({groups_.rows, input.rows.shape[1]}, args_.dtype);
}

void ExpertLora::mask(size_t adapter, const ExpertInput& input, const Tensor& masked) const {
  mask_rows(context_, {.rows = args_.rows,
                       .dropout = args_.dropout,
                       .adapter = args_.adapters[adapter],
                       .src = input.rows,
                       .index = input.index,
                       .dst = masked});
}

void ExpertLora::project(const ExpertInput& input, const Tensor& xa) const {
  if (!any()) return;
  ArenaScope scratch(context_.scratch());
  const Tensor factor = a(scratch, Ranks::kFirst);
  if (fits_) {
    rank_rows(
        context_,
        {.groups = groups_, .a = input.rows, .a_rows = input.index, .factor = factor, .slices = slices_, .c = xa});
  } else if (drops_) {
    project_masked(input, factor, xa);
  } else {
    grouped_gemm(context_, {.groups = groups_, .a = input.rows, .a_rows = input.index, .w = factor, .c = xa});
  }
}

/// Each adapter has its own mask and therefore its own input; of its product with all of A only its columns are used.
void ExpertLora::project_masked(const ExpertInput& input, const Tensor& factor, const Tensor& xa) const {
  ArenaScope scratch(context_.scratch());
  const Tensor rows = masked(scratch, input);
  const bool several = slices_.size() > 1;
  const Tensor product = several ? take_rank_rows(scratch) : xa;
  if (several) clear(context_, xa);
  for (size_t i = 0; i < slices_.size(); ++i) {
    mask(i, input, rows);
    grouped_gemm(context_, {.groups = groups_, .a = rows, .w = factor, .c = product});
    if (!several) continue;
    copy_slice(context_,
               {.experts = 1,
                .rows = groups_.rows,
                .columns = slices_[i].rank,
                .from = {0, columns_, 1},
                .to = {0, columns_, 1}},
               product, slices_[i].begin, xa, slices_[i].begin);
  }
}

void ExpertLora::project_grad(const ExpertInput& dy, const Tensor& v) const {
  if (!any()) return;
  ArenaScope scratch(context_.scratch());
  if (fits_) {
    rank_rows(context_, {.groups = groups_,
                         .a = dy.rows,
                         .a_rows = dy.index,
                         .factor = b(scratch, Ranks::kFirst),
                         .slices = unmasked_,
                         .c = v});
  } else {
    grouped_gemm(context_, {.groups = groups_,
                            .a = dy.rows,
                            .a_rows = dy.index,
                            .w = b(scratch, Ranks::kLast),
                            .w_transposed = true,
                            .c = v});
  }
}

void ExpertLora::add_masked_input_grad(const Tensor& v, const Tensor& da) const {
  if (!any()) return;
  ArenaScope scratch(context_.scratch());
  if (fits_) {
    add_rank_sum(context_,
                 {.groups = groups_, .thin = v, .factor = a(scratch, Ranks::kLast), .slices = slices_, .dst = da});
  } else {
    add_masked(context_, {.rows = args_.rows,
                          .dropout = args_.dropout,
                          .adapters = args_.adapters,
                          .slices = slices_,
                          .v = v,
                          .a = a(scratch, Ranks::kFirst),
                          .dst = da});
  }
}

void ExpertLora::lora_a_grad(const Tensor& v, const ExpertInput& input,
                             const std::vector<ExpertAdapterGrad>& grads) const {
  if (!any() || !wants_lora_a(grads)) return;
  const int64_t experts = args_.weight[0], in = args_.weight[2];
  ArenaScope scratch(context_.scratch());
  if (fits_) {
    std::vector<RankGradientDest> dests;
    for (const ExpertAdapterGrad& grad : grads) dests.push_back({.dest = grad.lora_a, .count = in});
    rank_gradient(
        context_,
        {.groups = groups_, .thin = v, .b = input.rows, .b_rows = input.index, .slices = slices_, .dests = dests});
    return;
  }
  const Tensor all = scratch.take({experts, columns_, in}, DType::kF32);
  if (!drops_) {
    grouped_wgrad(context_, {.groups = groups_, .a = v, .b = input.rows, .b_rows = input.index, .dw = {all}});
    for (size_t i = 0; i < grads.size(); ++i) store_lora_a(i, all, grads[i].lora_a);
    return;
  }
  const Tensor rows = masked(scratch, input);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].lora_a.wanted()) continue;
    mask(i, input, rows);
    grouped_wgrad(context_, {.groups = groups_, .a = v, .b = rows, .dw = {all}});
    store_lora_a(i, all, grads[i].lora_a);
  }
}

/// Stores an adapter's part of the gradient of all columns, [E, J, in].
void ExpertLora::store_lora_a(size_t adapter, const Tensor& all, const GradDest& dest) const {
  if (!dest.wanted()) return;
  const int64_t experts = args_.weight[0], in = args_.weight[2], rank = slices_[adapter].rank;
  copy_slice(context_,
             {.experts = experts,
              .rows = rank,
              .columns = in,
              .from = {columns_ * in, in, 1},
              .to = {rank * in, in, 1},
              .adds = dest.beta != 0.0f},
             all, slices_[adapter].begin * in, dest.dst, 0);
}

void ExpertLora::lora_b_grad(const ExpertInput& dy, const Tensor& xa,
                             const std::vector<ExpertAdapterGrad>& grads) const {
  if (!any() || !wants_lora_b(grads)) return;
  const int64_t experts = args_.weight[0], out = args_.weight[1];
  if (fits_) {
    std::vector<RankGradientDest> dests;
    for (size_t i = 0; i < grads.size(); ++i) {
      const ExpertAdapterView& adapter = args_.adapters[i];
      dests.push_back({grads[i].lora_b, adapter.input_scaling(), adapter.out_begin, adapter.out_count});
    }
    rank_gradient(context_, {.groups = groups_,
                             .thin = xa,
                             .b = dy.rows,
                             .b_rows = dy.index,
                             .slices = unmasked_,
                             .dests = dests,
                             .ranks_last = true});
    return;
  }
  ArenaScope scratch(context_.scratch());
  const Tensor all = scratch.take({experts, out, columns_}, DType::kF32);
  grouped_wgrad(context_, {.groups = groups_, .a = dy.rows, .a_rows = dy.index, .b = xa, .dw = {all}});
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].lora_b.wanted()) continue;
    const ExpertAdapterView& adapter = args_.adapters[i];
    const int64_t rank = slices_[i].rank;
    copy_slice(context_,
               {.experts = experts,
                .rows = adapter.out_count,
                .columns = rank,
                .from = {out * columns_, columns_, 1},
                .to = {adapter.out_count * rank, rank, 1},
                .scale = adapter.input_scaling(),
                .adds = grads[i].lora_b.beta != 0.0f},
               all, adapter.out_begin * columns_ + slices_[i].begin, grads[i].lora_b.dst, 0);
  }
}

bool wants_lora_a(const std::vector<ExpertAdapterGrad>& grads) {
  return std::any_of(grads.begin(), grads.end(), [](const ExpertAdapterGrad& g) { return g.lora_a.wanted(); });
}
bool wants_lora_b(const std::vector<ExpertAdapterGrad>& grads) {
  return std::any_of(grads.begin(), grads.end(), [](const ExpertAdapterGrad& g) { return g.lora_b.wanted(); });
}

}  // namespace hone::cuda
