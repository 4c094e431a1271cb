#include "core/base/error.h"
#include "core/cuda/cublaslt_library.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/vendor_library.h"

#define HONE_TEXT_OF(value) #value
#define HONE_VALUE_TEXT(value) HONE_TEXT_OF(value)
#define HONE_CUBLAS_MAJOR HONE_VALUE_TEXT(CUBLAS_VER_MAJOR)

namespace hone::cuda {

namespace {

constexpr VendorLibraryName kCublasLt = {
    "cuBLAS " HONE_CUBLAS_MAJOR ", which multiplies dense matrices on a GPU,", "libcublasLt.so." HONE_CUBLAS_MAJOR,
    "nvidia/cu" HONE_CUBLAS_MAJOR "/lib",
    "pip install 'nvidia-cublas==" HONE_CUBLAS_MAJOR
    ".*' in the environment of this program, or install the CUDA toolkit " HONE_CUBLAS_MAJOR};

CublasLtLibrary load() {
  const VendorLibrary found(kCublasLt);
  CublasLtLibrary library;
  library.path = found.path();
  found.find(library.get_version, "cublasLtGetVersion");
  found.find(library.create, "cublasLtCreate");
  found.find(library.destroy, "cublasLtDestroy");
  found.find(library.status_string, "cublasLtGetStatusString");
  found.find(library.layout_init, "cublasLtMatrixLayoutInit_internal");
  found.find(library.product_init, "cublasLtMatmulDescInit_internal");
  found.find(library.product_set, "cublasLtMatmulDescSetAttribute");
  found.find(library.preference_init, "cublasLtMatmulPreferenceInit_internal");
  found.find(library.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  found.find(library.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  found.find(library.algorithm_attribute, "cublasLtMatmulAlgoConfigGetAttribute");
  found.find(library.multiply, "cublasLtMatmul");
  return library;
}

}  // namespace

const CublasLtLibrary& cublaslt_library() {
  static const CublasLtLibrary library = load();
  return library;
}

ProductsLibrary products_library() {
  try {
    const CublasLtLibrary& library = cublaslt_library();
    return {vendor_version_text(library.get_version(), library.path), "", ""};
  } catch (const UserError& error) {
    return {"", error.message(), error.fix()};
  }
}

}  // namespace hone::cuda
