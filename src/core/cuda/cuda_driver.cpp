#include <algorithm>

#include "core/cuda/cuda_device.h"

namespace hone::cuda {

std::string driver_problem(const std::string& driver, const std::string& driver_cuda, const std::string& runtime) {
  if (driver_cuda.empty()) return "no NVIDIA driver is installed";
  const std::string name = driver.empty() ? "the NVIDIA driver" : "the NVIDIA driver " + driver;
  return name + " is too old: it is for CUDA " + driver_cuda + ", and this program for CUDA " + runtime;
}

std::string driver_fix(const std::string& runtime) {
  std::string package = "cuda-compat-" + runtime;
  std::replace(package.begin(), package.end(), '.', '-');
  const std::string newer = runtime.starts_with("13.") ? "driver 580 or newer" : "a newer driver";
  return "install " + newer + "; on a data-centre GPU NVIDIA's package " + package + " is enough";
}

}  // namespace hone::cuda
