// Entry points of the grouped products: select the best tier that supports the arguments, else float32 FMA tiles
// (grouped_tiles_cuda.h), which are also the reference of the other tiers in tests.
#include "core/stream/cuda_launch.h"
#include "kernels/cuda/grouped_gemm/gated_rows_cuda.h"
#include "kernels/cuda/grouped_gemm/grouped_few_rows.h"
#include "kernels/cuda/grouped_gemm/grouped_gemm_hopper.h"
#include "kernels/cuda/grouped_gemm/grouped_gemm_sm80.h"
#include "kernels/cuda/grouped_gemm/grouped_tiles_cuda.h"
#include "kernels/cuda/tiers.h"

namespace hone::cuda {

namespace {

/// c[r, n] = Σ_k a(r)[k] · w(e)[n, k] + Σ_j extra_a[r, j] · extra_w(e)[n, j]; c has type C.
template <class T, class C>
struct RowsProduct {
  const int64_t* offsets;
  int groups;
  const T* a;
  const int32_t* a_rows;
  const T* w;
  bool w_transposed;
  const T* extra_a;
  const T* extra_w;
  C* c;
  int64_t n, k, extra_k;
};

template <class T, class C>
__global__ void __launch_bounds__(kTileThreads) rows_product_kernel(RowsProduct<T, C> p) {
  __shared__ TileMemory memory;
  const GroupTile tile = find_group_tile<kTile>(p.offsets, p.groups, blockIdx.x);
  if (tile.group < 0) return;
  const int64_t rows = tile.end - tile.begin, column = int64_t{blockIdx.y} * kTile;
  const int64_t columns = p.n - column < kTile ? p.n - column : kTile;
  const T* w = p.w + tile.group * p.n * p.k;
  TileSums sums;
  const bool gathers = p.a_rows != nullptr;
  add_product<T>({.data = gathers ? p.a : p.a + tile.begin * p.k,
                  .stride = p.k,
                  .depth_stride = 1,
                  .index = gathers ? p.a_rows + tile.begin : nullptr,
                  .count = rows},
                 {.data = p.w_transposed ? w + column : w + column * p.k,
                  .stride = p.w_transposed ? 1 : p.k,
                  .depth_stride = p.w_transposed ? p.n : 1,
                  .count = columns},
                 p.k, memory, sums);
  if (p.extra_a != nullptr) {
    add_product<T>({.data = p.extra_a + tile.begin * p.extra_k, .stride = p.extra_k, .depth_stride = 1, .count = rows},
                   {.data = p.extra_w + (tile.group * p.n + column) * p.extra_k,
                    .stride = p.extra_k,
                    .depth_stride = 1,
                    .count = columns},
                   p.extra_k, memory, sums);
  }
  C* c = p.c + tile.begin * p.n + column;
  for_each_sum(sums, rows, columns, [&](int i, int j, float sum) { c[i * p.n + j] = from_float<C>(sum); });
}

/// `c` has the operands' dtype or float32.
void rows_product(const Context& context, const GroupedGemmArgs& args) {
  const int64_t rows = args.groups.rows, groups = args.groups.groups(), n = args.c.shape[1];
  if (rows == 0 || n == 0) return;
  cuda::dispatch_float(args.a.dtype, [&](auto a) {
    cuda::dispatch_float(args.c.dtype, [&](auto c) {
      using T = decltype(a);
      using C = decltype(c);
      const RowsProduct<T, C> product{args.groups.offsets.as<int64_t>(),
                                      static_cast<int>(groups),
                                      elements<T>(args.a),
                                      elements<int32_t>(args.a_rows),
                                      elements<T>(args.w),
                                      args.w_transposed,
                                      elements<T>(args.extra_a),
                                      elements<T>(args.extra_w),
                                      elements<C>(args.c),
                                      n,
                                      args.a.shape[1],
                                      args.extra_a.defined() ? args.extra_a.shape[1] : 0};
      const dim3 grid(static_cast<unsigned>(max_group_tiles(rows, groups, kTile)), blocks_for(n, kTile));
      rows_product_kernel<T, C><<<grid, kTileThreads, 0, stream_of(context)>>>(product);
    });
  });
  check_launch("multiplying rows by the weights of their groups");
}

/// dw[e, m, n] = Σ_r a(r)[m] · b(r)[n] + beta · dw[e, m, n].
template <class T, class D>
struct WeightProduct {
  const int64_t* offsets;
  const T* a;
  const int32_t* a_rows;
  const T* b;
  const int32_t* b_rows;
  D* dw;
  int64_t m, n;
  bool adds;
};

template <class T, class D>
__global__ void __launch_bounds__(kTileThreads) weight_product_kernel(WeightProduct<T, D> p) {
  __shared__ TileMemory memory;
  const int64_t group = blockIdx.z, begin = p.offsets[group], end = p.offsets[group + 1];
  const int64_t row = int64_t{blockIdx.x} * kTile, column = int64_t{blockIdx.y} * kTile;
  const int64_t rows = p.m - row < kTile ? p.m - row : kTile, columns = p.n - column < kTile ? p.n - column : kTile;
  TileSums sums;
  add_product<T>({.data = (p.a_rows != nullptr ? p.a : p.a + begin * p.m) + row,
                  .stride = 1,
                  .depth_stride = p.m,
                  .depth_index = p.a_rows != nullptr ? p.a_rows + begin : nullptr,
                  .count = rows},
                 {.data = (p.b_rows != nullptr ? p.b : p.b + begin * p.n) + column,
                  .stride = 1,
                  .depth_stride = p.n,
                  .depth_index = p.b_rows != nullptr ? p.b_rows + begin : nullptr,
                  .count = columns},
                 end - begin, memory, sums);
  D* dw = p.dw + (group * p.m + row) * p.n + column;
  for_each_sum(sums, rows, columns, [&](int i, int j, float sum) {
    D& to = dw[i * p.n + j];
    to = from_float<D>(p.adds ? sum + to_float(to) : sum);
  });
}

/// Notes and returns the tier of a product.
template <class Args>
Tier tier_for(const Context& context, const Args& args) {
  if constexpr (requires { args.fp8; }) {
    if (args.fp8.defined()) {
      context.note_kernel("experts", "sm90, FP8");
      return Tier::kSm90;
    }
  }
  const Tier tier = hopper_can_run(context, args) ? Tier::kSm90
                    : sm80_can_run(context, args) ? Tier::kSm80
                                                  : Tier::kGeneral;
  context.note_kernel("experts", tier == Tier::kSm90 ? "sm90" : tier == Tier::kSm80 ? "sm80" : "general (slow)");
  return tier;
}

}  // namespace

void grouped_gemm(const Context& context, const GroupedGemmArgs& args) {
  if (few_rows_can_run(context, args)) {
    context.note_kernel("experts", "few rows");
    return grouped_few_rows(context, args);
  }
  const Tier tier = tier_for(context, args);
  if (tier == Tier::kSm90) return grouped_gemm_hopper(context, args);
  if (tier == Tier::kSm80) return grouped_gemm_sm80(context, args);
  if (context.dry()) return;
  rows_product(context, args);
  if (args.activation.defined()) activate_rows(context, args.c, args.activation);
}

void grouped_dswiglu(const Context& context, const GroupedDswigluArgs& args) {
  const Tier tier = tier_for(context, args);
  if (tier == Tier::kSm90) return grouped_dswiglu_hopper(context, args);
  if (tier == Tier::kSm80) return grouped_dswiglu_sm80(context, args);
  ArenaScope scratch(context.scratch());
  const Tensor dact = scratch.take({args.groups.rows, args.w.shape[2]}, DType::kF32);
  if (context.dry()) return;
  rows_product(context, {.groups = args.groups,
                         .a = args.dout,
                         .a_rows = args.token,
                         .w = args.w,
                         .w_transposed = true,
                         .extra_a = args.extra_a,
                         .extra_w = args.extra_w,
                         .c = dact});
  gated_rows_grad(context, {.offsets = args.groups.offsets,
                            .assignment = args.assignment,
                            .h = args.h,
                            .weights = args.weights,
                            .dact = dact,
                            .dh = args.dh,
                            .scaled_act = args.scaled_act,
                            .dweights = args.dweights});
}

void grouped_wgrad(const Context& context, const GroupedWgradArgs& args) {
  const Tensor& dw = args.dw.dst;
  HONE_ASSERT(args.dw.beta == 0.0f || (args.dw.beta == 1.0f && dw.dtype == DType::kF32));
  const Tier tier = tier_for(context, args);
  if (tier == Tier::kSm90) return grouped_wgrad_hopper(context, args);
  if (tier == Tier::kSm80) return grouped_wgrad_sm80(context, args);
  const int64_t m = dw.shape[1], n = dw.shape[2];
  if (context.dry() || dw.numel() == 0) return;
  cuda::dispatch_float(args.a.dtype, [&](auto element) {
    cuda::dispatch_float(dw.dtype, [&](auto to) {
      using T = decltype(element);
      using D = decltype(to);
      const WeightProduct<T, D> product{args.groups.offsets.as<int64_t>(),
                                        elements<T>(args.a),
                                        elements<int32_t>(args.a_rows),
                                        elements<T>(args.b),
                                        elements<int32_t>(args.b_rows),
                                        elements<D>(dw),
                                        m,
                                        n,
                                        args.dw.beta != 0.0f};
      const dim3 grid(blocks_for(m, kTile), blocks_for(n, kTile), static_cast<unsigned>(args.groups.groups()));
      weight_product_kernel<<<grid, kTileThreads, 0, stream_of(context)>>>(product);
    });
  });
  check_launch("summing the weight gradients of groups");
}

}  // namespace hone::cuda
