#include "weights/other_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "weights/gguf_file.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr const char* kDownload = "hone download ORG/NAME";

/// The first file of the folder, by name, that ends so; "" if there is none.
std::string file_ending(const fs::path& directory, const std::vector<std::string_view>& ends) {
  std::string first;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    const bool fits = std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
    if (fits && (first.empty() || name < first)) first = name;
  }
  return first;
}

}  // namespace

void refuse_gguf_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error) || !GgufFile::is_one(path)) return;
  throw UserError(
      "GGUF files are not read here, only by hone convert", path.string(),
      fmt::format("hone convert {} FOLDER makes a folder of it; better, because not quantised, is that of the "
                  "model's safetensors ({})",
                  path.filename().string(), kDownload));
}

std::string advice_without_safetensors(const fs::path& directory) {
  if (const std::string gguf = file_ending(directory, {".gguf"}); !gguf.empty()) {
    return fmt::format(
        "{} is not read (GGUF): download the model's safetensors ({}), or hone convert makes a folder of it", gguf,
        kDownload);
  }
  if (const std::string pickle = file_ending(directory, {".bin", ".pt", ".pth"}); !pickle.empty()) {
    return fmt::format(
        "{} is not read (a pickle): download the model's safetensors, or save them with transformers "
        "(save_pretrained)",
        pickle);
  }
  return fmt::format("download them ({}), or give a folder with model.safetensors, or with shards and their index",
                     kDownload);
}

}  // namespace hone
