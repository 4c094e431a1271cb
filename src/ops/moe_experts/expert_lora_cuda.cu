#include "ops/moe_experts/expert_lora_cuda.h"

#include <algorithm>

#include "core/cuda_launch.h"
#include "ops/moe_experts/expert_masks_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;

/// Elements (e, x, y) of a stack of matrices at e · expert + x · row + y · column.
struct SliceStrides {
  int64_t expert, row, column;
};

/// dst(e, x, y) = scale · src(e, x, y) + beta · dst(e, x, y) for e < experts, x < rows, y < columns.
struct SliceCopy {
  int64_t experts, rows, columns;
  SliceStrides from, to;
  float scale = 1.0f;
  bool adds = false;
};

template <class S, class D>
__global__ void __launch_bounds__(kThreads) copy_slice_kernel(SliceCopy copy, const S* src, D* dst) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= copy.rows * copy.columns) return;
  const int64_t e = blockIdx.y, x = at / copy.columns, y = at % copy.columns;
  D& to = dst[e * copy.to.expert + x * copy.to.row + y * copy.to.column];
  const float value = copy.scale * to_float(src[e * copy.from.expert + x * copy.from.row + y * copy.from.column]);
  to = from_float<D>(copy.adds ? value + to_float(to) : value);
}

/// Copies from element `from_at` of src to element `to_at` of dst on.
void copy_slice(const Context& context, const SliceCopy& copy, const Tensor& src, int64_t from_at, const Tensor& dst,
                int64_t to_at) {
  if (context.dry() || copy.experts * copy.rows * copy.columns == 0) return;
  cuda::dispatch_float(src.dtype, [&](auto from) {
    cuda::dispatch_float(dst.dtype, [&](auto to) {
      using S = decltype(from);
      using D = decltype(to);
      const dim3 grid(blocks_for(copy.rows * copy.columns, kThreads), static_cast<unsigned>(copy.experts));
      copy_slice_kernel<S, D>
          <<<grid, kThreads, 0, stream_of(context)>>>(copy, elements<S>(src) + from_at, elements<D>(dst) + to_at);
    });
  });
  check_launch("arranging expert adapters");
}

void clear(const Context& context, const Tensor& tensor) {
  if (context.dry() || tensor.numel() == 0) return;
  check(cudaMemsetAsync(tensor.data, 0, tensor.bytes(), stream_of(context)), "clearing memory of expert adapters");
}

}  // namespace

ExpertLora::ExpertLora(const Context& context, ArenaScope& scratch, const Args& args)
    : context_(context), args_(args), groups_(groups_of(args.rows)) {
  int64_t ranks = 0;
  for (const ExpertAdapterView& adapter : args.adapters) {
    begins_.push_back(ranks);
    ranks += adapter.rank();
    drops_ |= adapter.dropout != 0.0f;
  }
  columns_ = expert_rank_columns(ranks);
  if (!any()) return;
  const int64_t experts = args.weight[0], out = args.weight[1], in = args.weight[2];
  a_ = scratch.take({experts, columns_, in}, args.dtype);
  b_ = scratch.take({experts, out, columns_}, args.dtype);
  if (ranks < columns_) clear(context, a_);
  clear(context, b_);
  for (size_t i = 0; i < args.adapters.size(); ++i) {
    const ExpertAdapterView& adapter = args.adapters[i];
    const int64_t rank = adapter.rank();
    copy_slice(
        context,
        {.experts = experts, .rows = rank, .columns = in, .from = {rank * in, in, 1}, .to = {columns_ * in, in, 1}},
        adapter.lora_a, 0, a_, begins_[i] * in);
    copy_slice(context,
               {.experts = experts,
                .rows = adapter.out_count,
                .columns = rank,
                .from = {adapter.out_count * rank, rank, 1},
                .to = {out * columns_, columns_, 1},
                .scale = adapter.input_scaling()},
               adapter.lora_b, 0, b_, adapter.out_begin * columns_ + begins_[i]);
  }
}

Tensor ExpertLora::take_rank_rows(ArenaScope& scratch) const {
  return any() ? scratch.take({groups_.rows, columns_}, args_.dtype) : Tensor{};
}

Tensor ExpertLora::a_transposed(ArenaScope& scratch) const {
  if (!any()) return {};
  const int64_t experts = args_.weight[0], in = args_.weight[2];
  const Tensor transposed = scratch.take({experts, in, columns_}, args_.dtype);
  copy_slice(context_,
             {.experts = experts,
              .rows = in,
              .columns = columns_,
              .from = {columns_ * in, 1, in},
              .to = {in * columns_, columns_, 1}},
             a_, 0, transposed, 0);
  return transposed;
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
  if (!drops()) {
    return grouped_gemm(context_, {.groups = groups_, .a = input.rows, .a_rows = input.index, .w = a_, .c = xa});
  }
  // Each adapter has a mask and so an input of its own; of its product with all of A only its columns count.
  ArenaScope scratch(context_.scratch());
  const Tensor rows = masked(scratch, input);
  const bool several = args_.adapters.size() > 1;
  const Tensor product = several ? take_rank_rows(scratch) : xa;
  if (several) clear(context_, xa);
  for (size_t i = 0; i < args_.adapters.size(); ++i) {
    mask(i, input, rows);
    grouped_gemm(context_, {.groups = groups_, .a = rows, .w = a_, .c = product});
    if (!several) continue;
    copy_slice(context_,
               {.experts = 1,
                .rows = groups_.rows,
                .columns = args_.adapters[i].rank(),
                .from = {0, columns_, 1},
                .to = {0, columns_, 1}},
               product, begins_[i], xa, begins_[i]);
  }
}

void ExpertLora::project_grad(const ExpertInput& dy, const Tensor& v) const {
  if (!any()) return;
  grouped_gemm(context_, {.groups = groups_, .a = dy.rows, .a_rows = dy.index, .w = b_, .w_transposed = true, .c = v});
}

void ExpertLora::add_masked_input_grad(const Tensor& v, const Tensor& da) const {
  if (!any()) return;
  add_masked(context_, {.rows = args_.rows,
                        .dropout = args_.dropout,
                        .adapters = args_.adapters,
                        .begins = begins_,
                        .v = v,
                        .a = a_,
                        .dst = da});
}

void ExpertLora::lora_a_grad(const Tensor& v, const ExpertInput& input,
                             const std::vector<ExpertAdapterGrad>& grads) const {
  if (!any() || !wants_lora_a(grads)) return;
  const int64_t experts = args_.weight[0], in = args_.weight[2];
  ArenaScope scratch(context_.scratch());
  const Tensor rows = drops() ? masked(scratch, input) : input.rows;
  const Tensor all = scratch.take({experts, columns_, in}, DType::kF32);
  const auto form_all = [&] {
    grouped_wgrad(context_,
                  {.groups = groups_, .a = v, .b = rows, .b_rows = drops() ? Tensor{} : input.index, .dw = all});
  };
  if (!drops()) form_all();
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].lora_a.wanted()) continue;
    if (drops()) {
      mask(i, input, rows);
      form_all();
    }
    const int64_t rank = args_.adapters[i].rank();
    copy_slice(context_,
               {.experts = experts,
                .rows = rank,
                .columns = in,
                .from = {columns_ * in, in, 1},
                .to = {rank * in, in, 1},
                .adds = grads[i].lora_a.beta != 0.0f},
               all, begins_[i] * in, grads[i].lora_a.dst, 0);
  }
}

void ExpertLora::lora_b_grad(const ExpertInput& dy, const Tensor& xa,
                             const std::vector<ExpertAdapterGrad>& grads) const {
  if (!any() || !wants_lora_b(grads)) return;
  const int64_t experts = args_.weight[0], out = args_.weight[1];
  ArenaScope scratch(context_.scratch());
  const Tensor all = scratch.take({experts, out, columns_}, DType::kF32);
  grouped_wgrad(context_, {.groups = groups_, .a = dy.rows, .a_rows = dy.index, .b = xa, .dw = all});
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].lora_b.wanted()) continue;
    const ExpertAdapterView& adapter = args_.adapters[i];
    const int64_t rank = adapter.rank();
    copy_slice(context_,
               {.experts = experts,
                .rows = adapter.out_count,
                .columns = rank,
                .from = {out * columns_, columns_, 1},
                .to = {adapter.out_count * rank, rank, 1},
                .scale = adapter.input_scaling(),
                .adds = grads[i].lora_b.beta != 0.0f},
               all, adapter.out_begin * columns_ + begins_[i], grads[i].lora_b.dst, 0);
  }
}

bool wants_lora_a(const std::vector<ExpertAdapterGrad>& grads) {
  return std::any_of(grads.begin(), grads.end(), [](const ExpertAdapterGrad& g) { return g.lora_a.wanted(); });
}
bool wants_lora_b(const std::vector<ExpertAdapterGrad>& grads) {
  return std::any_of(grads.begin(), grads.end(), [](const ExpertAdapterGrad& g) { return g.lora_b.wanted(); });
}

}  // namespace hone::cuda
