// Unpacks 4- and 8-bit matrices: bound by memory, 2.5 bytes an element from nf4 to bfloat16.
#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/unpack_weights/unpack_weights.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kElements = 16;

template <class T, size_t kSize>
struct Table {
  T values[kSize];
};
template <size_t kSize>
constexpr Table<float, kSize> table_of(const std::array<float, kSize>& values) {
  Table<float, kSize> table{};
  for (size_t i = 0; i < kSize; ++i) table.values[i] = values[i];
  return table;
}
__device__ const Table<float, 256> kScaleMap = table_of(kNf4ScaleValues);
__device__ const Table<float, 16> kNf4Map = table_of(kNf4Values);
__device__ const Table<float, 16> kE2m1Map = table_of(kE2m1Values);

template <PackedCode kCode>
constexpr bool kNf4Codes = kCode == PackedCode::kNf4 || kCode == PackedCode::kNf4FloatScales;
template <PackedCode kCode>
constexpr bool kHalves = kNf4Codes<kCode> || kCode == PackedCode::kInt4 || kCode == PackedCode::kMxfp4;

/// The layout with the constants of its code: a division by a block is a shift then.
template <PackedCode kCode>
__device__ PackedLayout constant(PackedLayout layout) {
  layout.code = kCode;
  if constexpr (kNf4Codes<kCode>) layout.block = kNf4Block;
  if constexpr (kCode == PackedCode::kMxfp4) layout.block = kMxfp4Block;
  if constexpr (kCode == PackedCode::kFp8) layout.block = kFp8Block;
  return layout;
}

template <PackedCode kCode>
__device__ float scale_of(const PackedLayout& layout, const uint8_t* chunk, int64_t element) {
  const int64_t block = constant<kCode>(layout).block_of(element);
  const uint8_t* scales = chunk + layout.scales;
  if constexpr (kCode == PackedCode::kNf4) {
    const float nested = reinterpret_cast<const float*>(chunk + layout.nested)[block / kNf4NestedBlock];
    const float mean = *reinterpret_cast<const float*>(chunk + layout.mean);
    return __fadd_rn(__fmul_rn(kScaleMap.values[scales[block]], nested), mean);
  } else if constexpr (kCode == PackedCode::kInt4) {
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(scales)[block]);
  } else if constexpr (kCode == PackedCode::kMxfp4) {
    return e8m0_value(scales[block]);
  } else {
    return reinterpret_cast<const float*>(scales)[block];
  }
}

/// The value of a code: a half of a byte, in the lower bits, or a byte.
template <PackedCode kCode>
__device__ float value_of(uint32_t code, const float* table) {
  if constexpr (kCode == PackedCode::kInt8) return static_cast<float>(static_cast<int8_t>(code));
  if constexpr (kCode == PackedCode::kFp8 || kCode == PackedCode::kFp8Rows || kCode == PackedCode::kFp8Matrix)
    return e4m3_value(code);
  if constexpr (kCode == PackedCode::kInt4) return static_cast<float>(static_cast<int>(code) - 8);
  return table[code];
}

/// Code i of a word of eight halves or four bytes; i is a constant.
template <PackedCode kCode>
__device__ uint32_t code_in(uint32_t word, int i) {
  if constexpr (!kHalves<kCode>) return word >> 8 * i & 0xffu;
  const int half = kNf4Codes<kCode> ? i ^ 1 : i;  // the upper half of a byte comes first in nf4
  return word >> 4 * half & 0xfu;
}

/// kElements neighbours of one block for each thread: rows are multiples of kElements. A row of the grid for each
/// matrix.
template <PackedCode kCode, class T>
__global__ void __launch_bounds__(kThreads) unpack_kernel(PackedLayout layout, const uint8_t* chunks, T* dst) {
  __shared__ float table[16];
  if (threadIdx.x < 16) table[threadIdx.x] = (kNf4Codes<kCode> ? kNf4Map : kE2m1Map).values[threadIdx.x];
  __syncthreads();
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElements;
  if (first >= layout.elements()) return;
  const uint8_t* chunk = chunks + blockIdx.y * layout.bytes;
  const float scale = scale_of<kCode>(layout, chunk, first);
  constexpr int kWords = kHalves<kCode> ? 2 : 4, kOfWord = kElements / kWords;
  uint32_t words[kWords];
  if constexpr (kHalves<kCode>) {
    const uint2 loaded = *reinterpret_cast<const uint2*>(chunk + first / 2);
    words[0] = loaded.x, words[1] = loaded.y;
  } else {
    const uint4 loaded = *reinterpret_cast<const uint4*>(chunk + first);
    words[0] = loaded.x, words[1] = loaded.y, words[2] = loaded.z, words[3] = loaded.w;
  }
  float values[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    values[i] = __fmul_rn(value_of<kCode>(code_in<kCode>(words[i / kOfWord], i % kOfWord), table), scale);
  }
  store_floats(dst + blockIdx.y * layout.elements() + first, values);
}

/// An element for each thread, of rows of any length.
template <PackedCode kCode, class T>
__global__ void __launch_bounds__(kThreads) unpack_any_kernel(PackedLayout layout, const uint8_t* chunks, T* dst) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= layout.elements()) return;
  const uint8_t* chunk = chunks + blockIdx.y * layout.bytes;
  const uint32_t byte = chunk[kHalves<kCode> ? i / 2 : i];
  const uint32_t code = kHalves<kCode> ? code_in<kCode>(byte, static_cast<int>(i % 2)) : byte;
  const float* table = (kNf4Codes<kCode> ? kNf4Map : kE2m1Map).values;
  const float scale = scale_of<kCode>(layout, chunk, i);
  dst[blockIdx.y * layout.elements() + i] = from_float<T>(__fmul_rn(value_of<kCode>(code, table), scale));
}

template <PackedCode kCode>
void unpack(const Context& context, const UnpackWeightsArgs& args) {
  constexpr int64_t kMostMatrices = 65535;  // rows of a grid
  const bool vectors = args.layout.columns % kElements == 0 && allows_vectors(args.dst, 0, kElements) &&
                       !context.stream().general_kernels();
  const int64_t elements_of_matrix = args.layout.elements();
  cuda::dispatch_float(args.dst.dtype, [&](auto element) {
    using T = decltype(element);
    const auto kernel = vectors ? &unpack_kernel<kCode, T> : &unpack_any_kernel<kCode, T>;
    for (int64_t first = 0; first < args.codes.shape[0]; first += kMostMatrices) {
      const dim3 grid(blocks_for(elements_of_matrix, kThreads * (vectors ? kElements : 1)),
                      static_cast<unsigned>(std::min(kMostMatrices, args.codes.shape[0] - first)));
      kernel<<<grid, kThreads, 0, stream_of(context)>>>(args.layout,
                                                        elements<uint8_t>(args.codes) + first * args.layout.bytes,
                                                        elements<T>(args.dst) + first * elements_of_matrix);
    }
  });
  check_launch("unpacking weights");
}

}  // namespace

void unpack_weights(const Context& context, const UnpackWeightsArgs& args) {
  if (context.dry() || args.dst.numel() == 0) return;
  switch (args.layout.code) {
    case PackedCode::kNf4:
      return unpack<PackedCode::kNf4>(context, args);
    case PackedCode::kNf4FloatScales:
      return unpack<PackedCode::kNf4FloatScales>(context, args);
    case PackedCode::kInt8:
      return unpack<PackedCode::kInt8>(context, args);
    case PackedCode::kInt4:
      return unpack<PackedCode::kInt4>(context, args);
    case PackedCode::kFp8:
      return unpack<PackedCode::kFp8>(context, args);
    case PackedCode::kFp8Rows:
      return unpack<PackedCode::kFp8Rows>(context, args);
    case PackedCode::kFp8Matrix:
      return unpack<PackedCode::kFp8Matrix>(context, args);
    case PackedCode::kMxfp4:
      return unpack<PackedCode::kMxfp4>(context, args);
  }
}

}  // namespace hone::cuda
