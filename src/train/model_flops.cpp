#include "train/model_flops.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>

#include "core/cpu_peaks.h"
#include "session/device_facts.h"

namespace hone {

namespace {

struct NamedRate {
  std::string_view model;
  GpuRate rate;
};

/// From NVIDIA's data sheets.
constexpr NamedRate kGpuRates[] = {
    {"A10", {125, 31.2}},        {"A30", {165, 10.3}},          {"A40", {149.7, 37.4}},
    {"A100", {312, 19.5}},       {"A100 PCIe", {312, 19.5}},    {"A800", {312, 19.5}},
    {"A800 PCIe", {312, 19.5}},  {"B200", {2250, 75}},          {"GH200", {989.4, 66.9}},
    {"H20", {148, 44}},          {"H100", {989.4, 66.9}},       {"H100 NVL", {835, 60}},
    {"H100 PCIe", {756, 51}},    {"H200", {989.4, 66.9}},       {"H200 NVL", {835.5, 60}},
    {"H800", {989.4, 66.9}},     {"L4", {121, 30.3}},           {"L40", {181, 90.5}},
    {"L40S", {362, 91.6}},       {"RTX A6000", {154.8, 38.7}},  {"RTX 3090", {71, 35.6}},
    {"RTX 3090 Ti", {80, 40}},   {"RTX 4080", {97.5, 48.7}},    {"RTX 4080 SUPER", {104.4, 52.2}},
    {"RTX 4090", {165.2, 82.6}}, {"RTX 4090 D", {147.1, 73.5}}, {"RTX 5090", {209.5, 104.8}}};

/// Whether a word of a driver's name is not part of the model: maker, brand, socket or memory ("NVIDIA", "SXM4",
/// "80GB", "HBM3").
bool tells_no_model(std::string_view word) {
  const size_t digits = word.find_first_not_of("0123456789");
  const bool gigabytes =
      digits != 0 && digits != std::string_view::npos && (word.substr(digits) == "GB" || word.substr(digits) == "G");
  return word == "NVIDIA" || word == "GeForce" || word.starts_with("SXM") || word.starts_with("HBM") || gigabytes;
}

/// "NVIDIA A100-PCIE-40GB" -> "A100 PCIe"
std::string model_of(std::string name) {
  std::replace(name.begin(), name.end(), '-', ' ');
  std::istringstream words(name);
  std::string model;
  for (std::string word; words >> word;) {
    if (tells_no_model(word)) continue;
    model += (model.empty() ? "" : " ") + (word == "PCIE" ? "PCIe" : word);
  }
  return model;
}

}  // namespace

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
  const std::optional<GpuRate> rate = rate_of_gpu(device_name(device));
  if (!rate) return std::nullopt;
  return 1e12 * (dtype == DType::kF32 ? rate->float32 : rate->bf16);
}

std::optional<GpuRate> rate_of_gpu(const std::string& name) {
  const std::string model = model_of(name);
  for (const NamedRate& gpu : kGpuRates) {
    if (gpu.model == model) return gpu.rate;
  }
  return std::nullopt;
}

}  // namespace hone
