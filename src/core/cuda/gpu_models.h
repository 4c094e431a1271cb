// GPUs by name: what their data sheets say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hone {

/// A model of GPU with one size of memory.
struct GpuModel {
  std::string name;                        ///< the model, without maker, brand, socket and memory: "A100", "RTX 4090"
  double bf16_tflops = 0, f32_tflops = 0;  ///< dense; float32 without tensor cores
  double memory_gbs = 0;                   ///< GB/s of its memory
  double link_gbs = 0;                     ///< GB/s of the link to the host, in each direction
  int compute_capability = 0;              ///< 10 · major + minor
  int64_t memory = 0;                      ///< bytes, as the driver counts them
  size_t shared_memory = 0;                ///< maximum bytes per CTA

  /// "a100-80gb", or "rtx-4090" where a model has one size of memory.
  std::string option() const;
};

/// The model with the driver's name for a GPU, of any size of memory. Words for maker, brand, socket and memory are
/// ignored; the rest must match. Returns nothing for other names, including laptop versions, parts of a GPU (MIG) and
/// virtual GPUs.
std::optional<GpuModel> gpu_model_of(const std::string& driver_name);

/// The option() of every model that is known.
std::vector<std::string> gpu_model_options();

/// The model of an option() name. UserError, naming `where` and listing the known names, for another.
GpuModel parse_gpu_model(const std::string& option, const std::string& where);

}  // namespace hone
