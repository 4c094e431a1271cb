// AdamW over many tensors in one launch. Memory-bound: a thread accesses vectors of four elements, and 8-bit moments
// are decoded and encoded in registers, with the tables of dynamic_code_cuda.h in shared memory.
//
// One H200, 2026-11-21, `hone bench ops`, 268 M elements of 30 bytes (float32 masters, gradients and moments, bfloat16
// weights): 2.02 ms, 3,985 GB/s of 4,237 GB/s in a copy (94 %), raw bench/results/h200-ops.json. With 8-bit moments,
// 30.5 G parameters in bfloat16, 2026-11-23: 336 ms per step, 501 ms before the codes took fewer instructions
// (bench/results/measurements.md, raw bench/results/h200-offload-2026-11-23.jsonl).
#include <algorithm>

#include "kernels/cuda/rows/rounded_vectors_cuda.h"
#include "kernels/cuda/rows/tensor_table_cuda.h"
#include "ops/adamw/adamw.h"
#include "ops/adamw/dynamic_code_cuda.h"

namespace hone::cuda {

namespace {

/// A warp updates a block of elements that share the scales of 8-bit moments; a lane has kUnroll times kWidth
/// consecutive elements.
constexpr int kThreads = 256, kWarps = kThreads / 32, kWidth = kPlaceWidth, kUnroll = 2;
static_assert(32 * kWidth * kUnroll == kMomentBlock);
constexpr int64_t kChunk = kWarps * kMomentBlock * 4;

/// float, or __nv_bfloat16 with stochastic rounding; moments may also be 8-bit codes.
template <class Parameter, class Gradient, class M, class V>
struct Entry {
  Parameter* parameter;
  __nv_bfloat16* working_copy;  // or null
  M* m;
  V* v;
  float* m_scales;  // null except for codes
  float* v_scales;
  const Gradient* gradient;
  int64_t elements;
  float weight_decay;
  uint32_t stream_id;
  int64_t first_element;

  __device__ bool is_aligned() const {
    return starts_aligned(parameter) && starts_aligned(working_copy) && starts_aligned(m) && starts_aligned(v) &&
           starts_aligned(gradient);
  }
};

struct Constants {
  double beta1, beta2, eps, rate_factor;
  bool vectors;
};

/// Values shared by all elements of a tensor: computed in float64 and rounded once, as in torch.
struct Step {
  uint64_t key;  // key of the random numbers
  float gradient_scale, decay, one_minus_beta1, beta2, one_minus_beta2, eps, step_size;
  Divisor sqrt_bias_correction2;

  /// Every rounding is explicit: the compiler would fuse products with sums in some copies of this code and not in
  /// others, so that the last elements of a tensor would differ from the first.
  __device__ void update(float& p, float& m, float& v, float gradient) const {
    const float g = __fmul_rn(gradient, gradient_scale);
    m = __fmaf_rn(__fsub_rn(g, m), one_minus_beta1, m);
    v = __fmaf_rn(g, __fmul_rn(one_minus_beta2, g), __fmul_rn(v, beta2));
    const float root = sqrtf(v);
    const float corrected = root < INFINITY ? sqrt_bias_correction2.under(root) : root;
    p = __fsub_rn(__fmul_rn(p, decay), __fdiv_rn(__fmul_rn(step_size, m), __fadd_rn(corrected, eps)));
  }
};

__device__ Step step_of(const StepScalars& scalars, const Constants& constants, double weight_decay,
                        uint32_t stream_id) {
  const double lr = static_cast<double>(scalars.learning_rate) * constants.rate_factor;
  return {.key = mix_key(scalars.seed, stream_id),
          .gradient_scale = scalars.clip_coefficient,
          .decay = static_cast<float>(1.0 - lr * weight_decay),
          .one_minus_beta1 = static_cast<float>(1.0 - constants.beta1),
          .beta2 = static_cast<float>(constants.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - constants.beta2),
          .eps = static_cast<float>(constants.eps),
          .step_size = static_cast<float>(lr / static_cast<double>(scalars.bias_correction1)),
          .sqrt_bias_correction2 = Divisor(static_cast<float>(sqrt(static_cast<double>(scalars.bias_correction2))))};
}

__device__ uint32_t load_codes(const void* from, Place at) {
  const auto* codes = static_cast<const uint8_t*>(from) + at.first;
  if (at.vector) return *reinterpret_cast<const uint32_t*>(codes);
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) word |= i < at.count ? uint32_t{codes[i]} << 8 * i : 0;
  return word;
}

/// A moment of a warp's block. Codes are looked up in shared memory.
template <class T, bool kSigned>
struct MomentBlock {
  static constexpr bool kCodes = sizeof(T) == 1;
  static constexpr int kShift = kSigned ? 0 : 16;

  T* data;
  float* scale;  // scale of the block
  const DynamicTables<kSigned>& tables;

  __device__ void load_all(const Place (&places)[kUnroll], float (&x)[kUnroll][kWidth]) const {
    if constexpr (kCodes) {
      uint32_t codes[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) codes[u] = load_codes(data, places[u]);
      const float scale_before = *scale;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) x[u][i] = tables.values[codes[u] >> 8 * i & 0xffu] * scale_before;
      }
    } else {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) load(data, places[u], x[u]);
    }
  }

  __device__ void store_all(const Place (&places)[kUnroll], const float (&x)[kUnroll][kWidth],
                            const std::array<uint32_t, kWidth> (&words)[kUnroll], int lane) const {
    if constexpr (!kCodes) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) store_rounded(data, places[u], x[u], words[u], kShift);
    } else {
      uint32_t largest = 0;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) largest = max(largest, i < places[u].count ? magnitude_key(x[u][i]) : 0u);
      }
      const float scale_after = to_scale(__reduce_max_sync(0xffffffffu, largest));
      if (lane == 0) *scale = scale_after;
      const Divisor divisor(scale_after);  // one branch for all elements
      divisor.fast() ? store_codes<true>(places, x, divisor, words) : store_codes<false>(places, x, divisor, words);
    }
  }

  template <bool kFast>
  __device__ void store_codes(const Place (&places)[kUnroll], const float (&x)[kUnroll][kWidth], const Divisor& divisor,
                              const std::array<uint32_t, kWidth> (&words)[kUnroll]) const {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      uint32_t codes = 0;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        codes |= tables.template code<kFast>(x[u][i], divisor, words[u][i] >> kShift) << 8 * i;
      }
      store(codes, places[u]);
    }
  }

  __device__ void store(uint32_t codes, Place at) const {
    auto* const to = reinterpret_cast<uint8_t*>(data) + at.first;
    if (at.vector) {
      *reinterpret_cast<uint32_t*>(to) = codes;
      return;
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (i < at.count) to[i] = static_cast<uint8_t>(codes >> 8 * i);
    }
  }
};

__device__ constexpr DynamicTables<true> kSignedTables = DynamicTables<true>::make();
__device__ constexpr DynamicTables<false> kUnsignedTables = DynamicTables<false>::make();

/// Copies the tables to shared memory with all threads of a CTA; does nothing if M is not a code.
template <class M, class Tables>
__device__ void fill_tables(Tables& to, const Tables& from) {
  if constexpr (sizeof(M) == 1) {
    static_assert(sizeof(Tables) % sizeof(float) == 0);
    auto* const words = reinterpret_cast<float*>(&to);
    for (size_t i = threadIdx.x; i < sizeof(Tables) / sizeof(float); i += kThreads) {
      words[i] = reinterpret_cast<const float*>(&from)[i];
    }
  }
}

template <class Parameter, class Gradient, class M, class V>
struct BlockUpdate {
  const Entry<Parameter, Gradient, M, V>& entry;
  const Step& step;
  const DynamicTables<true>& signed_tables;
  const DynamicTables<false>& unsigned_tables;
  bool vectors;

  __device__ void run(int64_t block, int lane) const {
    // Two copies of the code: without bounds checks for all blocks except a tensor's last.
    vectors && (block + 1) * kMomentBlock <= entry.elements ? run<true>(block, lane) : run<false>(block, lane);
  }

  template <bool kWhole>
  __device__ void run(int64_t block, int lane) const {
    Place places[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t first = block * kMomentBlock + (u * 32 + lane) * kWidth, rest = entry.elements - first;
      const int count = kWhole || rest >= kWidth ? kWidth : rest < 0 ? 0 : static_cast<int>(rest);
      places[u] = {first, count, kWhole};
    }
    const MomentBlock<M, true> m_block{entry.m, entry.m_scales + block, signed_tables};
    const MomentBlock<V, false> v_block{entry.v, entry.v_scales + block, unsigned_tables};
    float p[kUnroll][kWidth], m[kUnroll][kWidth], v[kUnroll][kWidth], g[kUnroll][kWidth];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      load(entry.parameter, places[u], p[u]);
      load(entry.gradient, places[u], g[u]);
    }
    m_block.load_all(places, m);
    v_block.load_all(places, v);
    std::array<uint32_t, kWidth> words[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) step.update(p[u][i], m[u][i], v[u][i], g[u][i]);
      if constexpr (sizeof(Parameter) == 2) {
        words[u] = rounding_words(step.key, entry.first_element + places[u].first, RoundingUse::kParameter);
      }
      store_rounded(entry.parameter, places[u], p[u], words[u], 0);
      if (entry.working_copy != nullptr) store(entry.working_copy, places[u], p[u]);
      if constexpr (sizeof(M) < 4 || sizeof(V) < 4) {
        words[u] = rounding_words(step.key, entry.first_element + places[u].first, RoundingUse::kMoments);
      }
    }
    m_block.store_all(places, m, words, lane);
    v_block.store_all(places, v, words, lane);
  }
};

/// A CTA updates a chunk of a tensor.
template <class Table>
__global__ void __launch_bounds__(kThreads, 3)
    adamw_kernel(const __grid_constant__ Table table, const Constants constants, const StepScalars* scalars) {
  if (scalars->nonfinite != 0) return;
  const int index = table.find(blockIdx.x);
  const auto& entry = table.entries[index];
  __shared__ Step step;
  __shared__ DynamicTables<true> signed_tables;
  __shared__ DynamicTables<false> unsigned_tables;
  if (threadIdx.x == 0) {
    step = step_of(*scalars, constants, static_cast<double>(entry.weight_decay), entry.stream_id);
  }
  fill_tables<std::remove_pointer_t<decltype(entry.m)>>(signed_tables, kSignedTables);
  fill_tables<std::remove_pointer_t<decltype(entry.v)>>(unsigned_tables, kUnsignedTables);
  __syncthreads();
  const Step own = step;
  const BlockUpdate update{entry, own, signed_tables, unsigned_tables, constants.vectors && entry.is_aligned()};
  const int64_t begin = table.begin(index, blockIdx.x), end = min(entry.elements, begin + kChunk);
  for (int64_t first = begin + threadIdx.x / 32 * kMomentBlock; first < end; first += kWarps * kMomentBlock) {
    update.run(first / kMomentBlock, threadIdx.x % 32);
  }
}

/// Properties that all tensors of one launch must share.
struct Formats {
  DType parameter, gradient, m, v;
  bool operator==(const Formats&) const = default;
};

Formats formats_of(const AdamwTensor& tensor) {
  return {tensor.parameter.dtype, tensor.gradient.dtype, tensor.m.values.dtype, tensor.v.values.dtype};
}

/// Updates the tensors with these formats.
template <class Parameter, class Gradient, class M, class V>
void update(const Context& context, const AdamwArgs& args, const Formats& formats) {
  const Constants constants{.beta1 = args.beta1,
                            .beta2 = args.beta2,
                            .eps = args.eps,
                            .rate_factor = args.rate_factor,
                            .vectors = !context.stream().general_kernels()};
  using Table = TensorTable<Entry<Parameter, Gradient, M, V>, 48, kChunk>;
  Table table;
  const auto launch = [&] {
    if (table.chunks == 0) return;
    adamw_kernel<Table><<<table.chunks, kThreads, 0, stream_of(context)>>>(table, constants, args.scalars);
    check_launch("updating parameters");
    table = {};
  };
  for (const AdamwTensor& tensor : args.tensors) {
    if (formats_of(tensor) != formats) continue;
    if (table.full()) launch();
    table.add({.parameter = elements<Parameter>(tensor.parameter),
               .working_copy = elements<__nv_bfloat16>(tensor.working_copy),
               .m = elements<M>(tensor.m.values),
               .v = elements<V>(tensor.v.values),
               .m_scales = elements<float>(tensor.m.scales),
               .v_scales = elements<float>(tensor.v.scales),
               .gradient = elements<Gradient>(tensor.gradient),
               .elements = tensor.parameter.numel(),
               .weight_decay = static_cast<float>(tensor.weight_decay),
               .stream_id = tensor.stream_id,
               .first_element = tensor.first_element},
              tensor.parameter.numel());
  }
  launch();
}

template <class Codes, class F>
void dispatch_moment(DType dtype, F&& f) {
  if (size_of(dtype) == 1) return f(Codes{});
  cuda::dispatch_float(dtype, f);
}

}  // namespace

void adamw(const Context& context, const AdamwArgs& args) {
  if (context.dry()) return;
  std::vector<Formats> done;
  for (const AdamwTensor& tensor : args.tensors) {
    const Formats formats = formats_of(tensor);
    if (std::find(done.begin(), done.end(), formats) != done.end()) continue;
    done.push_back(formats);
    cuda::dispatch_float(formats.parameter, [&](auto p) {
      cuda::dispatch_float(formats.gradient, [&](auto g) {
        dispatch_moment<int8_t>(formats.m, [&](auto m) {
          dispatch_moment<uint8_t>(formats.v, [&](auto v) {
            update<decltype(p), decltype(g), decltype(m), decltype(v)>(context, args, formats);
          });
        });
      });
    });
  }
}

}  // namespace hone::cuda
