#include "train/plan/model_flops.h"

#include "core/cpu/cpu_peaks.h"
#include "core/cuda/gpu_models.h"
#include "session/device_facts.h"

namespace hone {

ForwardWork work_of(const StepData& data) {
  ForwardWork work;
  work.tokens = static_cast<double>(data.tokens());
  work.supervised = static_cast<double>(data.supervised());
  for (const MicroBatch& batch : data.micro_batches) {
    for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
      work.documents.push_back(batch.cu_seqlens[i + 1] - batch.cu_seqlens[i]);
    }
  }
  return work;
}

std::optional<double> peak_flops(Device device, DType dtype, ThreadPool& pool) {
  if (device.kind == DeviceKind::kCpu) return measured_peak_flops(dtype, pool);
  const std::optional<GpuModel> gpu = gpu_model_of(device_name(device));
  if (!gpu) return std::nullopt;
  return 1e12 * (dtype == DType::kF32 ? gpu->f32_tflops : gpu->bf16_tflops);
}

}  // namespace hone
