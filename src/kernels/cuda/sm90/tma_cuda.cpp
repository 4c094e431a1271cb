#include "kernels/cuda/sm90/tma_cuda.h"

#include <algorithm>

#include "core/cuda/cuda_check.h"

namespace hone::cuda::sm90 {

namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/// Looked up at run time, so that the program also starts without a driver.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
        "looking for cuTensorMapEncodeTiled");
  HONE_ASSERT(found == cudaDriverEntryPointSuccess);
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap tensor_map(const Tensor& tensor, const std::array<int64_t, 3>& sizes, const std::array<int64_t, 2>& strides,
                       const std::array<int, 2>& box) {
  static const Encode encode = find_encode();
  // A tensor without elements is described as if it had some; its boxes are never copied.
  const auto some = [](int64_t n) { return static_cast<cuuint64_t>(std::max<int64_t>(n, 1)); };
  const std::array<cuuint64_t, 3> map_sizes{some(sizes[0]), some(sizes[1]), some(sizes[2])};
  const std::array<cuuint64_t, 2> stride_bytes{some(strides[0]) * 2, some(strides[1]) * 2};
  const std::array<cuuint32_t, 3> map_box{64, static_cast<cuuint32_t>(box[0]), static_cast<cuuint32_t>(box[1])};
  const std::array<cuuint32_t, 3> steps{1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, tensor.data, map_sizes.data(), stride_bytes.data(),
             map_box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HONE_ASSERT(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled refused " + tensor.shape.to_string());
  return map;
}

}  // namespace hone::cuda::sm90
