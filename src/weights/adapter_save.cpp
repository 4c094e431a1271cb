// Writing the files of adapters.
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "core/json.h"
#include "weights/adapter.h"
#include "weights/adapter_config.h"
#include "weights/adapter_layout.h"
#include "weights/checkpoint.h"
#include "weights/finite.h"
#include "weights/host_parameters.h"
#include "weights/safetensors.h"

namespace hone {

namespace {

/// Parameters in the order in which the tensors read them first.
std::vector<const Parameter*> order_of_reading(const std::vector<AdapterTensor>& tensors) {
  std::vector<const Parameter*> order;
  std::set<const Parameter*> known;
  for (const AdapterTensor& tensor : tensors) {
    for (const AdapterBlock& block : tensor.blocks) {
      if (known.insert(block.parameter).second) order.push_back(block.parameter);
    }
  }
  return order;
}

/// Forms each tensor when its turn to be written comes, while the parameters of the next ones are read: the values of
/// many experts are more than a host should hold at once.
void write_tensors(SafetensorsWriter& writer, const std::vector<AdapterTensor>& tensors,
                   const AdapterSaveOptions& options) {
  constexpr size_t kAhead = 2;  // the next A and B
  const std::vector<const Parameter*> order = order_of_reading(tensors);
  std::map<const Parameter*, size_t> place;
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  HostParameters parameters(options.reader);
  const ParameterValues values = [&](const Parameter& parameter) { return parameters[parameter]; };
  std::vector<float> scratch;
  size_t asked_for = 0;
  for (const AdapterTensor& tensor : tensors) {
    const std::span<const float> made = gather(tensor, values, scratch);
    if (options.finite) require_finite(tensor.key, DType::kF32, std::as_bytes(made).data(), tensor.numel());
    const size_t most =
        tensor.blocks.empty() ? 0 : std::min(order.size(), place[tensor.blocks.back().parameter] + 1 + kAhead);
    for (; asked_for < most; ++asked_for) parameters.prefetch(*order[asked_for]);
    writer.write(made.data(), made.size_bytes());
  }
}

void write_file(const std::filesystem::path& path, const std::vector<AdapterTensor>& tensors,
                const AdapterSaveOptions& options) {
  std::vector<SafetensorsWriter::Announced> announced;
  for (const AdapterTensor& tensor : tensors) announced.push_back({tensor.key, DType::kF32, tensor.dims});
  SafetensorsWriter writer(path, std::move(announced));
  write_tensors(writer, tensors, options);
  const FileChecksum checksum = writer.finish();
  if (options.checksums) (*options.checksums)[path.filename().string()] = checksum;
}

}  // namespace

void save_adapter(const std::filesystem::path& directory, const ParameterStore& store,
                  const AdapterSaveOptions& options) {
  require_layout(store, options.layout);
  const AdapterFiles files(store, options.lora, options.layout);
  write_file(directory / "adapter_model.safetensors", files.main(), options);
  if (const std::vector<AdapterTensor> experts = files.experts(); !experts.empty()) {
    write_file(directory / kKtFile, experts, options);
  } else {
    std::filesystem::remove(directory / kKtFile);  // of an adapter that stood here before
  }
  const Json config = adapter_config(store, files, options.lora, options.base_model);
  write_text_file(directory / "adapter_config.json", config.dump(2) + "\n");
}

}  // namespace hone
