// Writes the files of a checkpoint: weights in their original layout, and accompanying files.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "weights/checkpoint.h"
#include "weights/kt_manifest.h"
#include "weights/manifest.h"
#include "weights/promised_layers.h"
#include "weights/shard_writer.h"
#include "weights/stored_tensor.h"
#include "weights/tensor_dims.h"
#include "weights/tensor_file.h"

namespace hone {

namespace {

/// The dtype in files: float32 for float64 weights, and bfloat16 for quantised ones.
DType file_dtype(const Checkpoint* source, const FileTensor& tensor, const Parameter& parameter) {
  std::vector<std::string> missing;
  const auto stored = source ? StoredTensor::find(*source, tensor, missing) : std::nullopt;
  const DType dtype = stored ? stored->dtype() : parameter.value().dtype();
  return dtype == DType::kF64 ? DType::kF32 : dtype;
}

constexpr int64_t kSavedPiece = int64_t{1} << 20;

/// A stack of matrices that the file holds in another order than the parameter. Host memory holds a matrix at a time.
class ReorderedSource : public TensorSource {
 public:
  ReorderedSource(const SavedSlice& slice, bool finite)
      : parameter_(slice.parameter),
        first_(slice.slice.offset),
        order_(slice.slice.order, slice.slice.shape),
        dtype_(slice.announced.dtype),
        finite_(finite) {}

  int64_t unit() const override { return order_.numel(); }
  std::vector<StateRange> state_of(Slice elements) const override {
    return {{parameter_, StatePart::kValue, {first_ + elements.begin, elements.count}}};
  }
  void make(Slice elements, StateReader& reader, const PutBytes& put) const override {
    const DType dtype = state_tensor(*parameter_, StatePart::kValue).dtype;
    const size_t element = size_of(dtype), bytes = static_cast<size_t>(order_.numel()) * element;
    std::vector<std::byte> matrix(bytes), in_file_order(bytes);
    for (int64_t begin = 0; begin < elements.count; begin += order_.numel()) {
      size_t done = 0;
      reader.read(*parameter_, StatePart::kValue, first_ + elements.begin + begin, order_.numel(),
                  [&](const std::byte* values, int64_t count) {
                    if (finite_) require_finite(parameter_->name(), dtype, values, count);
                    std::memcpy(matrix.data() + done, values, static_cast<size_t>(count) * element);
                    done += static_cast<size_t>(count) * element;
                  });
      dispatch_float(dtype, [&](auto type) {
        using T = decltype(type);
        order_.to_file(reinterpret_cast<const T*>(matrix.data()), reinterpret_cast<T*>(in_file_order.data()));
      });
      put_converted(dtype_, in_file_order.data(), dtype, order_.numel(), put);
    }
  }

 private:
  const Parameter* parameter_;
  int64_t first_;
  MatrixOrder order_;
  DType dtype_;
  bool finite_;
};

SourcedTensor sourced(const SavedSlice& slice, bool finite) {
  finite &= slice.parameter->trainable();
  if (slice.slice.order != FileOrder::kSame) {
    return {slice.announced, std::make_shared<const ReorderedSource>(slice, finite)};
  }
  return run_of(slice.announced, {slice.parameter, StatePart::kValue, {slice.slice.offset, slice.announced.numel()}},
                finite ? slice.parameter->name() : "");
}

/// A tensor that saving copies from the checkpoint that the run has read.
class CarriedSource : public TensorSource {
 public:
  explicit CarriedSource(StoredTensor stored) : stored_(std::move(stored)) {}

  std::vector<StateRange> state_of(Slice) const override { return {}; }
  void make(Slice elements, StateReader&, const PutBytes& put) const override {
    put_stored(stored_, stored_.dtype(), elements, put);
  }

 private:
  StoredTensor stored_;
};

}  // namespace

std::vector<SavedSlice> saved_slices(const ParameterStore& store, const Checkpoint* source, const CheckpointMap* map,
                                     std::optional<DType> dtype) {
  std::vector<SavedSlice> slices;
  for (const Parameter& parameter : store.all()) {
    if (parameter.spec().kind == ParameterKind::kLora) continue;
    HONE_ASSERT(parameter.value().format().dense(), "weights in a packed format are never saved: " + parameter.name());
    const FileLayout layout = map ? map->layouts.at(&parameter) : parameter.spec().all_layouts().front();
    const bool converted = dtype && parameter.spec().kind != ParameterKind::kBuffer;
    for (const FileTensor& tensor : layout) {
      const DType in_file = converted ? *dtype : file_dtype(source, tensor, parameter);
      slices.push_back({{tensor.name, in_file, dims_of(file_shape(tensor.order, tensor.shape))}, &parameter, tensor});
    }
  }
  return slices;
}

std::vector<CarriedTensor> carried_slices(const Checkpoint& source, const CheckpointMap& map) {
  std::set<std::string> scales;  // scales of carried tensors, which are written dequantised
  std::vector<StoredTensor> carried;
  for (const std::string& name : map.carried) {
    carried.push_back(StoredTensor::carried(source, name));
    const std::vector<std::string> names = carried.back().names();
    scales.insert(names.begin() + 1, names.end());
  }
  std::vector<CarriedTensor> tensors;
  for (size_t i = 0; i < carried.size(); ++i) {
    if (scales.contains(map.carried[i])) continue;
    tensors.push_back({{carried[i].name(), carried[i].dtype(), carried[i].shape()}, carried[i]});
  }
  return tensors;
}

void put_stored(const StoredTensor& stored, DType dtype, Slice elements, const PutBytes& put) {
  ReadScratch scratch;
  std::vector<std::byte> bytes(static_cast<size_t>(kSavedPiece) * size_of(dtype));
  for (int64_t begin = elements.begin; begin < elements.end(); begin += kSavedPiece) {
    const int64_t count = std::min(kSavedPiece, elements.end() - begin);
    stored.read(scratch, begin, count, dtype, bytes.data());
    put(std::span(bytes).first(static_cast<size_t>(count) * size_of(dtype)));
  }
}

std::vector<PlannedTensor> carried_tensors(const Checkpoint& source, const CheckpointMap& map) {
  std::vector<PlannedTensor> tensors;
  for (const CarriedTensor& carried : carried_slices(source, map)) {
    tensors.push_back({carried.announced, [carried](SafetensorsWriter& writer) {
                         write_stored(writer, carried.stored, carried.stored.dtype(), carried.announced.numel());
                       }});
  }
  return tensors;
}

std::vector<TensorFile> parameter_files(const ParameterStore& store, const Checkpoint* source, const CheckpointMap* map,
                                        const SaveOptions& options) {
  std::vector<SourcedTensor> tensors;
  for (const SavedSlice& slice : saved_slices(store, source, map, options.dtype)) {
    tensors.push_back(sourced(slice, options.finite));
  }
  if (map) {
    for (CarriedTensor& carried : carried_slices(*source, *map)) {
      auto made = std::make_shared<const CarriedSource>(std::move(carried.stored));
      tensors.push_back({std::move(carried.announced), std::move(made)});
    }
  }
  std::vector<SafetensorsWriter::Announced> announced;
  for (const SourcedTensor& tensor : tensors) announced.push_back(tensor.announced);
  std::vector<TensorFile> files;
  for (const ShardRange& shard : plan_shards(announced, options.max_shard_size)) {
    const auto at = [&](size_t i) { return tensors.begin() + static_cast<std::ptrdiff_t>(i); };
    files.push_back({shard.name, {at(shard.begin), at(shard.end)}});
  }
  return files;
}

void save_parameters(const std::filesystem::path& directory, const ParameterStore& store, const Checkpoint* source,
                     const CheckpointMap* map, const SaveOptions& options) {
  const std::vector<TensorFile> files = parameter_files(store, source, map, options);
  write_files(directory, files, options.checksums);
  write_index(directory, files);
}

namespace {

/// `config` without promises that the weights of `folder` do not keep.
Json true_config(const std::filesystem::path& folder, Json config) {
  if (!promises_layers(config)) return config;
  try {
    const Checkpoint weights = Checkpoint::open(folder);
    return with_true_promises(std::move(config), weights);
  } catch (const UserError&) {  // no weights here: what is written beside them says whether they have the layers
    return config;
  }
}

}  // namespace

void copy_model_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  constexpr uintmax_t kLargest = 256u << 20;  // a tokenizer has tens of megabytes; larger files are weights
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::filesystem::path& path = entry.path();
    const std::string name = path.filename().string(), extension = path.extension().string();
    const bool text = extension == ".json" || extension == ".jinja" || extension == ".txt" || extension == ".model" ||
                      extension == ".py" || name == "LICENSE";
    static const std::set<std::string> kOfRuns = {"trainer_state.json", "adapter_config.json", "training_state.json",
                                                  "training_info.json", "mlflow_run.json",     kManifestName,
                                                  kKtManifestName};
    const bool ours = name.ends_with(".index.json") || kOfRuns.contains(name);
    if (!text || ours || !entry.is_regular_file() || entry.file_size() > kLargest) continue;
    copy_durably(path, to / name);
  }
  const std::optional<Json> config = read_json_if_there(from / "config.json");
  if (!config || !config->is_object()) return;
  const Json saved = true_config(from, read_quantization(from) ? unquantized_config(*config) : *config);
  if (saved != *config) write_text_file(to / "config.json", saved.dump(2) + "\n");
}

void write_config_dtype(const std::filesystem::path& directory, DType dtype) {
  Json json = read_json(directory / "config.json");
  json.erase("torch_dtype");
  json["dtype"] = std::string(name_of(dtype));
  write_text_file(directory / "config.json", json.dump(2) + "\n");
}

void write_text_file(const std::filesystem::path& path, const std::string& text) { write_durably(path, text); }

}  // namespace hone
