#include "core/cuda_device.h"

namespace hone::cuda {

std::string driver_problem(const std::string& driver_cuda, const std::string& runtime) {
  if (driver_cuda.empty()) return "no NVIDIA driver is installed";
  return "the NVIDIA driver is too old: it is for CUDA " + driver_cuda + ", and this program for CUDA " + runtime;
}

}  // namespace hone::cuda
