#include "core/cuda/gpu_models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "core/base/error.h"

namespace hone {

namespace {

struct DataSheet {
  const char* model;
  double bf16_tflops, f32_tflops, memory_gbs, link_gbs;
  int compute_capability;
  std::vector<int> mebibytes;  ///< as nvidia-smi shows them
};

/// From NVIDIA's data sheets.
const std::vector<DataSheet>& data_sheets() {
  static const std::vector<DataSheet> sheets = {
      {"A10", 125, 31.2, 600, 32, 86, {23028}},
      {"A30", 165, 10.3, 933, 32, 80, {24576}},
      {"A40", 149.7, 37.4, 696, 32, 86, {46068}},
      {"A100", 312, 19.5, 2039, 32, 80, {40960, 81920}},
      {"A100 PCIe", 312, 19.5, 1935, 32, 80, {40960, 81920}},
      {"A800", 312, 19.5, 2039, 32, 80, {81920}},
      {"A800 PCIe", 312, 19.5, 1935, 32, 80, {81920}},
      {"B200", 2250, 75, 8000, 64, 100, {183359}},
      {"GH200", 989.4, 66.9, 4000, 450, 90, {97871}},
      {"H20", 148, 44, 4000, 64, 90, {97871}},
      {"H100", 989.4, 66.9, 3350, 64, 90, {81559}},
      {"H100 NVL", 835, 60, 3938, 64, 90, {95830}},
      {"H100 PCIe", 756, 51, 2039, 64, 90, {81559}},
      {"H200", 989.4, 66.9, 4800, 64, 90, {143771}},
      {"H200 NVL", 835.5, 60, 4800, 64, 90, {143771}},
      {"H800", 989.4, 66.9, 3350, 64, 90, {81559}},
      {"L4", 121, 30.3, 300, 32, 89, {23034}},
      {"L40", 181, 90.5, 864, 32, 89, {46068}},
      {"L40S", 362, 91.6, 864, 32, 89, {46068}},
      {"RTX A6000", 154.8, 38.7, 768, 32, 86, {49140}},
      {"RTX 3090", 71, 35.6, 936, 32, 86, {24576}},
      {"RTX 3090 Ti", 80, 40, 1008, 32, 86, {24564}},
      {"RTX 4080", 97.5, 48.7, 717, 32, 89, {16376}},
      {"RTX 4080 SUPER", 104.4, 52.2, 736, 32, 89, {16376}},
      {"RTX 4090", 165.2, 82.6, 1008, 32, 89, {24564}},
      {"RTX 4090 D", 147.1, 73.5, 1008, 32, 89, {24564}},
      {"RTX 5090", 209.5, 104.8, 1792, 64, 120, {32607}},
  };
  return sheets;
}

/// Maximum bytes of shared memory per CTA: CUDA C++ Programming Guide, compute capabilities.
size_t shared_memory_of(int compute_capability) {
  const int kibibytes = compute_capability == 80                                ? 163
                        : compute_capability == 90 || compute_capability == 100 ? 227
                                                                                : 99;
  return static_cast<size_t>(kibibytes) << 10;
}

GpuModel model_of(const DataSheet& sheet, int mebibytes) {
  return {.name = sheet.model,
          .bf16_tflops = sheet.bf16_tflops,
          .f32_tflops = sheet.f32_tflops,
          .memory_gbs = sheet.memory_gbs,
          .link_gbs = sheet.link_gbs,
          .compute_capability = sheet.compute_capability,
          .memory = int64_t{mebibytes} << 20,
          .shared_memory = shared_memory_of(sheet.compute_capability)};
}

/// Whether a word of a driver's name is not part of the model: maker, brand, socket or memory ("NVIDIA", "SXM4",
/// "80GB", "HBM3").
bool tells_no_model(std::string_view word) {
  const size_t digits = word.find_first_not_of("0123456789");
  const bool gigabytes =
      digits != 0 && digits != std::string_view::npos && (word.substr(digits) == "GB" || word.substr(digits) == "G");
  return word == "NVIDIA" || word == "GeForce" || word.starts_with("SXM") || word.starts_with("HBM") || gigabytes;
}

/// "NVIDIA A100-PCIE-40GB" -> "A100 PCIe"
std::string model_name(std::string name) {
  std::replace(name.begin(), name.end(), '-', ' ');
  std::istringstream words(name);
  std::string model;
  for (std::string word; words >> word;) {
    if (tells_no_model(word)) continue;
    model += (model.empty() ? "" : " ") + (word == "PCIE" ? "PCIe" : word);
  }
  return model;
}

const DataSheet* sheet_of(const std::string& model) {
  const auto& sheets = data_sheets();
  const auto found = std::find_if(sheets.begin(), sheets.end(), [&](const DataSheet& s) { return s.model == model; });
  return found == sheets.end() ? nullptr : &*found;
}

}  // namespace

std::string GpuModel::option() const {
  std::string text = name;
  for (char& c : text) c = c == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (sheet_of(name)->mebibytes.size() > 1) text += fmt::format("-{}gb", memory >> 30);
  return text;
}

std::optional<GpuModel> gpu_model_of(const std::string& driver_name) {
  const DataSheet* sheet = sheet_of(model_name(driver_name));
  if (sheet == nullptr) return std::nullopt;
  return model_of(*sheet, sheet->mebibytes.front());
}

std::vector<std::string> gpu_model_options() {
  std::vector<std::string> names;
  for (const DataSheet& sheet : data_sheets()) {
    for (const int mebibytes : sheet.mebibytes) names.push_back(model_of(sheet, mebibytes).option());
  }
  return names;
}

GpuModel parse_gpu_model(const std::string& option, const std::string& where) {
  for (const DataSheet& sheet : data_sheets()) {
    for (const int mebibytes : sheet.mebibytes) {
      const GpuModel model = model_of(sheet, mebibytes);
      if (model.option() == option) return model;
    }
  }
  const std::vector<std::string> names = gpu_model_options();
  for (const char* old : {"p100", "v100", "t4", "titan", "gtx", "rtx-20", "quadro"}) {  // before compute capability 8.0
    if (!option.starts_with(old)) continue;
    throw UserError(fmt::format("'{}' has no bfloat16 arithmetic, which Hone needs", option), where,
                    fmt::format("use one of {}", fmt::join(names, ", ")));
  }
  throw UserError(fmt::format("'{}' is not a GPU that is known.{}", option, did_you_mean(option, names)), where,
                  fmt::format("use one of {}, or --memory and its size", fmt::join(names, ", ")));
}

}  // namespace hone
