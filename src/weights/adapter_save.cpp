// Writes the files of adapters.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/text/json.h"
#include "params/parameter_store.h"
#include "weights/adapter.h"
#include "weights/adapter_config.h"
#include "weights/adapter_layout.h"
#include "weights/checkpoint.h"
#include "weights/tensor_file.h"

namespace hone {

namespace {

constexpr const char* kMainFile = "adapter_model.safetensors";

/// A tensor that is gathered from blocks of parameters, which are in host memory as a whole meanwhile.
class BlocksSource : public TensorSource {
 public:
  BlocksSource(AdapterTensor tensor, DType dtype, bool finite)
      : tensor_(std::move(tensor)), dtype_(dtype), finite_(finite) {}

  int64_t unit() const override { return tensor_.numel(); }
  std::vector<StateRange> state_of(Slice) const override {
    std::vector<StateRange> state;
    for (const AdapterBlock& block : tensor_.blocks) {
      const bool known = std::any_of(state.begin(), state.end(),
                                     [&](const StateRange& range) { return range.parameter == block.parameter; });
      if (!known) state.push_back({block.parameter, StatePart::kValue, {0, block.parameter->shape().numel()}});
    }
    return state;
  }
  void make(Slice elements, StateReader& reader, const PutBytes& put) const override {
    std::map<const Parameter*, std::vector<float>> whole;
    for (const StateRange& range : state_of(elements)) {
      std::vector<float>& values = whole[range.parameter];
      values.reserve(static_cast<size_t>(range.elements.count));
      const DType dtype = state_tensor(*range.parameter, range.part).dtype;
      const PutBytes append = [&](std::span<const std::byte> bytes) {
        const size_t before = values.size();
        values.resize(before + bytes.size() / sizeof(float));
        std::memcpy(values.data() + before, bytes.data(), bytes.size());
      };
      reader.read(*range.parameter, range.part, 0, range.elements.count, [&](const std::byte* read, int64_t count) {
        put_converted(DType::kF32, read, dtype, count, append);
      });
    }
    std::vector<float> scratch;
    const std::span<const float> made = gather(
        tensor_, [&](const Parameter& parameter) { return whole.at(&parameter).data(); }, scratch);
    if (finite_) require_finite(tensor_.key, DType::kF32, std::as_bytes(made).data(), tensor_.numel());
    put_converted(dtype_, std::as_bytes(made).data(), DType::kF32, tensor_.numel(), put);
  }

 private:
  AdapterTensor tensor_;
  DType dtype_;
  bool finite_;
};

TensorFile file_of(const char* name, const std::vector<AdapterTensor>& tensors, DType dtype, bool finite) {
  TensorFile file{name, {}};
  for (const AdapterTensor& tensor : tensors) {
    SafetensorsWriter::Announced announced{tensor.key, dtype, tensor.dims};
    if (tensor.is_run()) {
      const Slice run{tensor.blocks.front().in_parameter.begin, tensor.numel()};
      file.tensors.push_back(
          run_of(std::move(announced), {&tensor.parameter(), StatePart::kValue, run}, finite ? tensor.key : ""));
    } else {
      file.tensors.push_back({std::move(announced), std::make_shared<const BlocksSource>(tensor, dtype, finite)});
    }
  }
  return file;
}

}  // namespace

std::vector<TensorFile> adapter_files(const ParameterStore& store, const AdapterSaveOptions& options) {
  require_layout(store, options.layout);
  const AdapterFiles layout(store, options.lora, options.layout);
  std::vector<TensorFile> files = {file_of(kMainFile, layout.main(), DType::kF32, options.finite)};
  if (const std::vector<AdapterTensor> experts = layout.experts(); !experts.empty()) {
    files.push_back(file_of(kKtFile, experts, DType::kBF16, options.finite));  // KTransformers reads no other dtype
  }
  return files;
}

void write_adapter_config(const std::filesystem::path& directory, const ParameterStore& store,
                          const AdapterSaveOptions& options) {
  const AdapterFiles layout(store, options.lora, options.layout);
  if (layout.experts().empty()) std::filesystem::remove(directory / kKtFile);  // an earlier adapter left it here
  const Json config = adapter_config(store, layout, options.lora, options.base_model);
  write_text_file(directory / "adapter_config.json", config.dump(2) + "\n");
}

void save_adapter(const std::filesystem::path& directory, const ParameterStore& store,
                  const AdapterSaveOptions& options) {
  write_files(directory, adapter_files(store, options), options.checksums);
  write_adapter_config(directory, store, options);
}

}  // namespace hone
