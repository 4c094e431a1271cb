// What the kernels of grouped_gemm.h on tensor cores share, whatever their tier: which tensors they support, the
// arguments of their epilogues, the formulas of the gated activation, and the choice of an epilogue. Included by
// *_cuda.cu only.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/stream/cuda_launch.h"
#include "kernels/cuda/grouped_gemm/grouped_gemm.h"
#include "kernels/cuda/ptx_cuda.h"
#include "kernels/cuda/tiers.h"

namespace hone::cuda {

/// Whether a tensor is undefined, or bfloat16 with rows suitable for TMA and 16-byte copies.
inline bool takes_rows(const Tensor& tensor) {
  return !tensor.defined() || (tensor.dtype == DType::kBF16 && tensor.shape[-1] > 0 && tensor.shape[-1] % 8 == 0 &&
                               reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0);
}

inline bool takes_rows(const GroupedGemmArgs& args) {
  const int64_t n = args.w.shape[args.w_transposed ? 2 : 1];
  return takes_rows(args.a) && takes_rows(args.w) && takes_rows(args.c) && takes_rows(args.activation) &&
         takes_rows(args.extra_a) && takes_rows(args.extra_w) &&
         !(args.activation.defined() && (args.w_transposed || n % 16 != 0));
}

inline bool takes_rows(const GroupedDswigluArgs& args) {
  return takes_rows(args.dout) && takes_rows(args.w) && takes_rows(args.extra_a) && takes_rows(args.extra_w) &&
         takes_rows(args.h) && takes_rows(args.dh) && takes_rows(args.scaled_act) && args.weights.dtype == DType::kBF16;
}

struct StoreArgs {
  __nv_bfloat16* c = nullptr;           // [R, N]
  __nv_bfloat16* activation = nullptr;  // [R, N / 2]
};

inline StoreArgs store_args(const GroupedGemmArgs& args) {
  return {elements<__nv_bfloat16>(args.c), elements<__nv_bfloat16>(args.activation)};
}

struct DswigluArgs {
  const int32_t* assignment = nullptr;     // [R]
  const __nv_bfloat16* weights = nullptr;  // [T, k]
  const __nv_bfloat16* h = nullptr;        // [R, 2I]
  __nv_bfloat16* dh = nullptr;             // [R, 2I]
  __nv_bfloat16* scaled_act = nullptr;     // [R, I] or null
  float* partial_dots = nullptr;           // [P, R] or null: a row for each of the columns' parts
  int64_t rows = 0;
};

inline DswigluArgs dswiglu_args(const GroupedDswigluArgs& args, const Tensor& partial_dots) {
  return {.assignment = args.assignment.as<int32_t>(),
          .weights = elements<__nv_bfloat16>(args.weights),
          .h = elements<__nv_bfloat16>(args.h),
          .dh = elements<__nv_bfloat16>(args.dh),
          .scaled_act = elements<__nv_bfloat16>(args.scaled_act),
          .partial_dots = elements<float>(partial_dots),
          .rows = args.groups.rows};
}

/// Calls f with whether W is MN-major, as a constant, and the epilogue, as std::type_identity.
template <class StoreSums, class StoreActivated, class F>
void with_epilogue(const GroupedGemmArgs& args, const F& f) {
  if (args.activation.defined()) {
    f(std::false_type(), std::type_identity<StoreActivated>());
  } else if (args.w_transposed) {
    f(std::true_type(), std::type_identity<StoreSums>());
  } else {
    f(std::false_type(), std::type_identity<StoreSums>());
  }
}

__device__ inline float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

/// silu(gate) · up of a pair of bfloat16.
__device__ inline uint32_t activate_pair(uint32_t gate, uint32_t up) {
  const float2 g = unpack_bf16(gate), u = unpack_bf16(up);
  return pack_bf16(silu(g.x) * u.x, silu(g.y) * u.y);
}

/// An element of the results of grouped_dswiglu.
struct DswigluElement {
  float dgate, dup, scaled_act;
};
/// Also adds the element's part of the gradient of its row's weight to `dot`.
__device__ inline DswigluElement differentiate(float dact, float gate, float up, float scale, float& dot) {
  const float sigmoid = __fdividef(1.0f, 1.0f + __expf(-gate));
  const float silu = gate * sigmoid;
  const float act = silu * up;
  dot += dact * act;
  const float d = scale * dact;
  return {d * up * (sigmoid + silu * (1.0f - sigmoid)), d * silu, scale * act};
}

}  // namespace hone::cuda
