// Converts error codes of CUDA and its libraries to Error(kDeviceFailed).
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "core/base/error.h"

namespace hone::cuda {

/// `doing` completes "CUDA failed while …".
inline void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  throw Error(ExitCode::kDeviceFailed, std::string("CUDA failed while ") + doing + ": " + cudaGetErrorString(status),
              "", "a run with checkpoints resumes with `hone train --resume`");
}

/// Checks after a kernel launch whether it was queued.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

}  // namespace hone::cuda
