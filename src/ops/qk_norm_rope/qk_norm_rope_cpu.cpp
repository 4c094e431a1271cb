#include <array>

#include "core/cpu/cpu_features.h"
#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/chunk_sums.h"
#include "ops/qk_norm_rope/head_kernel.h"
#include "ops/qk_norm_rope/qk_norm_rope.h"

namespace hone::cpu {

namespace {

/// Tokens whose weight gradients are summed together; fixed, so that sums do not depend on the threads.
constexpr int64_t kChunkTokens = 32;

const HeadKernels& head_kernels() {
  switch (active_isa()) {
#if defined(__x86_64__)
    case Isa::kAmx:
    case Isa::kAvx512:
      return kHeadKernelsAvx512;
    case Isa::kAvx2:
      return kHeadKernelsAvx2;
#endif
    default:
      return kHeadKernelsBaseline;
  }
}

/// The factor of heads, if there is a weight.
class NormWeight {
 public:
  NormWeight(const Tensor& norm, NormWeighting weighting) : present_(norm.defined()) {
    if (!present_) return;
    dispatch_float(norm.dtype,
                   [&](auto element) { std::copy_n(norm.as<decltype(element)>(), norm.numel(), values_.begin()); });
    if (weighting != NormWeighting::kFromOne) return;
    for (int64_t i = 0; i < norm.numel(); ++i) values_[static_cast<size_t>(i)] += 1.0f;
  }
  const float* data() const { return present_ ? values_.data() : nullptr; }

 private:
  bool present_;
  std::array<float, kMaxHeadDim> values_;
};

HeadRow row_of(const QkNormRopeArgs& args, int64_t width, const NormWeight& norm, int64_t token) {
  const int64_t position = args.positions.as<int32_t>()[token], half = args.table.cos.shape[1];
  HONE_ASSERT(position >= 0 && position < args.table.cos.shape[0],
              "position " + std::to_string(position) + " is beyond the table of rotary embeddings");
  return {.heads = width / args.head_dim,
          .head_dim = args.head_dim,
          .norm = norm.data(),
          .rounds_first = args.weighting == NormWeighting::kPlain,
          .eps = args.eps,
          .cos = args.table.cos.as<float>() + position * half,
          .sin = args.table.sin.as<float>() + position * half,
          .half = half,
          .offset = args.layout.offset,
          .interleaved = args.layout.interleaved};
}

/// Row `token` as passed to the kernel: float, or the bits of bfloat16; null for an undefined tensor.
template <class T>
T* row_data(const Tensor& tensor, int64_t token) {
  return tensor.defined() ? reinterpret_cast<T*>(tensor.data) + token * tensor.shape[1] : nullptr;
}

/// Calls f with the kernel for a dtype and a value of its element type.
template <class F>
void with_kernel(DType dtype, const F& f) {
  if (dtype == DType::kBF16) {
    f(head_kernels().bf16, uint16_t{});
  } else {
    HONE_ASSERT(dtype == DType::kF32);
    f(head_kernels().f32, float{});
  }
}

}  // namespace

void qk_norm_rope(const Context& context, const QkNormRopeArgs& args) {
  HONE_ASSERT(args.head_dim <= kMaxHeadDim);
  context.launch([args](ThreadPool& pool) {
    const NormWeight norm(args.norm, args.weighting);
    with_kernel(args.x.dtype, [&](const auto& kernel, auto element) {
      using T = decltype(element);
      pool.parallel_ranges(args.x.shape[0], kChunkTokens, [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) {
          kernel.forward(row_of(args, args.x.shape[1], norm, token), row_data<T>(args.x, token),
                         row_data<T>(args.y, token));
        }
      });
    });
  });
}

void qk_norm_rope_pair(const Context& context, const QkNormRopePairArgs& args) {
  cpu::qk_norm_rope(context, args.q);
  cpu::qk_norm_rope(context, args.k);
}

void qk_norm_rope_backward(const Context& context, const QkNormRopeBackwardArgs& args) {
  HONE_ASSERT(args.forward.head_dim <= kMaxHeadDim);
  const int64_t tokens = args.dy.shape[0], dim = args.forward.head_dim;
  ArenaScope scratch(context.scratch());
  Tensor partials;
  if (args.dnorm.wanted()) partials = scratch.take({(tokens + kChunkTokens - 1) / kChunkTokens, dim}, DType::kF32);
  context.launch([args, partials, tokens](ThreadPool& pool) {
    const NormWeight norm(args.forward.norm, args.forward.weighting);
    with_kernel(args.dy.dtype, [&](const auto& kernel, auto element) {
      using T = decltype(element);
      add_rows_by_chunk(pool, tokens, kChunkTokens, partials, [&](int64_t token, float* dw) {
        kernel.backward(row_of(args.forward, args.dy.shape[1], norm, token), row_data<T>(args.forward.x, token),
                        row_data<T>(args.dy, token), row_data<T>(args.dx.dst, token), args.dx.beta, dw);
      });
    });
    if (partials.defined()) sum_chunks(pool, partials, args.dnorm);
  });
}

}  // namespace hone::cpu
