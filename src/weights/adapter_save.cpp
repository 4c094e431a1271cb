// Writes the files of adapters.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <list>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "core/json.h"
#include "core/transfer.h"
#include "params/parameter_store.h"
#include "weights/adapter.h"
#include "weights/adapter_config.h"
#include "weights/adapter_layout.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"
#include "weights/shard_writer.h"
#include "weights/tensor_pieces.h"

namespace hone {

// Prefetched host copies of parameters.

/// Float32 values of parameters in host memory. Parameters on a device or on several ranks are read as a whole, since
/// an adapter of many experts has many small tensors. Copies of the most recent ones are kept, and their memory is
/// reused.
class HostParameters {
 public:
  /// `reader` reads sharded values; null if there are none.
  explicit HostParameters(StateReader* reader = nullptr) : reader_(reader) {}

  /// The exact values in the parameter's shape; valid until kKept other parameters have been requested.
  const float* operator[](const Parameter& parameter);
  /// Starts reading a parameter that will be requested next, concurrently with the caller.
  void prefetch(const Parameter& parameter);

 private:
  static constexpr size_t kKept = 8;
  struct Copy {
    const Parameter* parameter = nullptr;
    std::vector<float> values;
    std::future<void> read;  // pending read of a prefetched copy
  };
  /// Starts reading a parameter unless it was started before, and moves its copy to the front.
  Copy& copy_of(const Parameter& parameter);

  StateReader* reader_;
  std::list<Copy> copies_;  // most recently used first
};

namespace {

bool is_whole_on_host(const Parameter& parameter) {
  return !parameter.shards_values() && parameter.master().device.kind == DeviceKind::kCpu;
}

}  // namespace

const float* HostParameters::operator[](const Parameter& parameter) {
  if (is_whole_on_host(parameter)) return parameter.master().as<float>();
  Copy& copy = copy_of(parameter);
  if (copy.read.valid()) copy.read.get();
  return copy.values.data();
}

void HostParameters::prefetch(const Parameter& parameter) {
  if (!is_whole_on_host(parameter)) copy_of(parameter);
}

HostParameters::Copy& HostParameters::copy_of(const Parameter& parameter) {
  const auto found =
      std::find_if(copies_.begin(), copies_.end(), [&](const Copy& copy) { return copy.parameter == &parameter; });
  if (found != copies_.end()) {
    copies_.splice(copies_.begin(), copies_, found);
    return copies_.front();
  }
  if (copies_.size() < kKept) copies_.emplace_back();
  copies_.splice(copies_.begin(), copies_, std::prev(copies_.end()));
  Copy& copy = copies_.front();
  if (copy.read.valid()) copy.read.get();
  copy.parameter = &parameter;
  copy.values.resize(static_cast<size_t>(parameter.shape().numel()));
  float* to = copy.values.data();
  if (parameter.shards_values()) {  // collectives need the same order on all ranks
    HONE_ASSERT(reader_ != nullptr, parameter.name());
    reader_->read(parameter, StatePart::kValue, 0, parameter.shape().numel(),
                  [&](const std::byte* elements, int64_t count) {
                    std::memcpy(to, elements, static_cast<size_t>(count) * sizeof(float));
                    to += count;
                  });
    return copy;
  }
  const Tensor& values = parameter.master();
  values.as<float>();  // checks the dtype
  copy.read = std::async(std::launch::async, [values, to] { copy_to_host(to, values); });
  return copy;
}

namespace {

/// Parameters in the order in which the tensors first read them.
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

/// Computes each tensor just before it is written, and prefetches the parameters of the next ones: the values of many
/// experts may exceed host memory.
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
    std::filesystem::remove(directory / kKtFile);  // of an adapter that was here before
  }
  const Json config = adapter_config(store, files, options.lora, options.base_model);
  write_text_file(directory / "adapter_config.json", config.dump(2) + "\n");
}

}  // namespace hone
