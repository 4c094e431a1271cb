// Functions of the CUDA driver, found at run time: the program does not link libcuda, so that it starts without a
// driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>
#include <type_traits>

#include "core/cuda/cuda_check.h"

namespace hone::cuda {

/// Sets `function` to the driver's function `name` as of CUDA 12.0. Throws Error(kDeviceFailed) if there is none.
template <class Function>
void find_driver_function(Function& function, const char* name) {
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion(name, &symbol, 12000, cudaEnableDefault, &result), name);
  if (result != cudaDriverEntryPointSuccess) throw Error(ExitCode::kDeviceFailed, name, "", "update the driver");
  function = reinterpret_cast<std::decay_t<Function>>(symbol);
}

inline std::string text_of(CUresult result) {
  static const auto error_string = [] {
    decltype(&cuGetErrorString) function = nullptr;
    find_driver_function(function, "cuGetErrorString");
    return function;
  }();
  const char* text = nullptr;
  error_string(result, &text);
  return text != nullptr ? text : "error " + std::to_string(static_cast<int>(result));
}

/// `doing` completes "CUDA failed while …".
inline void check_driver(CUresult result, const char* doing) {
  if (result == CUDA_SUCCESS) return;
  throw Error(ExitCode::kDeviceFailed, std::string("CUDA failed while ") + doing + ": " + text_of(result), "",
              "a run with checkpoints resumes with `hone train --resume`");
}

}  // namespace hone::cuda
