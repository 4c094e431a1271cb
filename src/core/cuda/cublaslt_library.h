// cuBLASLt's functions, loaded at the first dense product on a GPU. Compiled only with CUDA.
#pragma once

#include <cublasLt.h>

#include <string>

namespace hone::cuda {

/// Pointers to the functions of the library. Those that end in `init` take the size of the structure that they fill,
/// which belongs to the major version that the program was compiled with: no other is loaded.
struct CublasLtLibrary {
  std::string path;  ///< where its file is
  decltype(&cublasLtGetVersion) get_version = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  decltype(&cublasLtMatrixLayoutInit_internal) layout_init = nullptr;
  decltype(&cublasLtMatmulDescInit_internal) product_init = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) product_set = nullptr;
  decltype(&cublasLtMatmulPreferenceInit_internal) preference_init = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_attribute = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
};

/// Loads the library at the first call. Throws UserError with the places where it was looked for, and how to install
/// it.
const CublasLtLibrary& cublaslt_library();

}  // namespace hone::cuda
