// Writes the files of a checkpoint: weights in their original layout, and accompanying files.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>

#include "core/durable_file.h"
#include "core/error.h"
#include "core/untrusted_json.h"
#include "weights/checkpoint.h"
#include "weights/manifest.h"
#include "weights/shard_writer.h"
#include "weights/stored_tensor.h"
#include "weights/tensor_dims.h"
#include "weights/tensor_pieces.h"

namespace hone {

namespace {

/// The dtype in files: float32 for float64 weights, and bfloat16 for quantised ones.
DType file_dtype(const Checkpoint* source, const FileTensor& tensor, const Parameter& parameter) {
  std::vector<std::string> missing;
  const auto stored = source ? StoredTensor::find(*source, tensor, missing) : std::nullopt;
  const DType dtype = stored ? stored->dtype() : parameter.dtype();
  return dtype == DType::kF64 ? DType::kF32 : dtype;
}

constexpr int64_t kPiece = int64_t{1} << 20;

/// Appends elements of a parameter to a tensor of the file.
void write_elements(SafetensorsWriter& writer, DType dtype, const std::byte* elements, DType from, int64_t all) {
  if (dtype == from) return writer.write(elements, static_cast<uint64_t>(all) * size_of(dtype));
  std::vector<float> values;
  for (int64_t begin = 0; begin < all; begin += kPiece) {
    const int64_t count = std::min(kPiece, all - begin);
    if (from == DType::kF32) {
      writer.write_floats(dtype, reinterpret_cast<const float*>(elements) + begin, count);
      continue;
    }
    const auto* rounded = reinterpret_cast<const BFloat16*>(elements) + begin;
    values.assign(rounded, rounded + count);
    writer.write_floats(dtype, values.data(), count);
  }
}

void write_slice(SafetensorsWriter& writer, StateReader& reader, const SavedSlice& output, bool finite) {
  const Parameter& parameter = *output.parameter;
  const DType dtype = state_tensor(parameter, StatePart::kValue).dtype;
  const FileTensor& slice = output.slice;
  const auto read = [&](int64_t first, int64_t count, const StateReader::Use& use) {
    reader.read(parameter, StatePart::kValue, first, count, [&](const std::byte* elements, int64_t n) {
      if (finite && parameter.trainable()) require_finite(parameter.name(), dtype, elements, n);
      use(elements, n);
    });
  };
  if (slice.order == FileOrder::kSame) {
    return read(slice.offset, output.announced.numel(), [&](const std::byte* elements, int64_t count) {
      write_elements(writer, output.announced.dtype, elements, dtype, count);
    });
  }
  // Host memory holds one matrix at a time.
  const MatrixOrder order(slice.order, slice.shape);
  const size_t element = size_of(dtype), bytes = static_cast<size_t>(order.numel()) * element;
  std::vector<std::byte> matrix(bytes), in_file_order(bytes);
  for (int64_t begin = 0; begin < output.announced.numel(); begin += order.numel()) {
    size_t done = 0;
    read(slice.offset + begin, order.numel(), [&](const std::byte* elements, int64_t count) {
      std::memcpy(matrix.data() + done, elements, static_cast<size_t>(count) * element);
      done += static_cast<size_t>(count) * element;
    });
    dispatch_float(dtype, [&](auto type) {
      using T = decltype(type);
      order.to_file(reinterpret_cast<const T*>(matrix.data()), reinterpret_cast<T*>(in_file_order.data()));
    });
    write_elements(writer, output.announced.dtype, in_file_order.data(), dtype, order.numel());
  }
}

}  // namespace

std::vector<SavedSlice> saved_slices(const ParameterStore& store, const Checkpoint* source, const CheckpointMap* map,
                                     std::optional<DType> dtype) {
  std::vector<SavedSlice> slices;
  for (const Parameter& parameter : store.all()) {
    if (parameter.kind() == ParameterKind::kLora) continue;
    HONE_ASSERT(parameter.format().dense(), "weights in a packed format are never saved: " + parameter.name());
    const FileLayout layout = map ? map->layouts.at(&parameter) : parameter.layouts().front();
    const bool converted = dtype && parameter.kind() != ParameterKind::kBuffer;
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
    const std::string& name = map.carried[i];
    if (scales.contains(name)) continue;
    tensors.push_back({{name, carried[i].dtype(), carried[i].shape()}, carried[i]});
  }
  return tensors;
}

void write_stored(SafetensorsWriter& writer, const StoredTensor& stored, DType dtype, int64_t numel) {
  ReadScratch scratch;
  std::vector<std::byte> bytes(static_cast<size_t>(kPiece) * size_of(dtype));
  for (int64_t begin = 0; begin < numel; begin += kPiece) {
    const int64_t count = std::min(kPiece, numel - begin);
    stored.read(scratch, begin, count, dtype, bytes.data());
    writer.write(bytes.data(), static_cast<uint64_t>(count) * size_of(dtype));
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

void save_parameters(const std::filesystem::path& directory, const ParameterStore& store, const Checkpoint* source,
                     const CheckpointMap* map, const SaveOptions& options) {
  WholeStateReader whole;
  StateReader& reader = options.reader != nullptr ? *options.reader : whole;
  std::vector<PlannedTensor> tensors;
  for (SavedSlice& output : saved_slices(store, source, map, options.dtype)) {
    SafetensorsWriter::Announced announced = output.announced;
    tensors.push_back({std::move(announced),
                       [&reader, output = std::move(output), finite = options.finite](SafetensorsWriter& writer) {
                         write_slice(writer, reader, output, finite);
                       }});
  }
  if (map) {
    for (PlannedTensor& carried : carried_tensors(*source, *map)) tensors.push_back(std::move(carried));
  }
  write_shards(directory, tensors, options.max_shard_size, options.checksums);
}

void copy_model_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  constexpr uintmax_t kLargest = 256u << 20;  // a tokenizer has tens of megabytes; larger files are weights
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::filesystem::path& path = entry.path();
    const std::string name = path.filename().string(), extension = path.extension().string();
    const bool text = extension == ".json" || extension == ".jinja" || extension == ".txt" || extension == ".model" ||
                      extension == ".py" || name == "LICENSE";
    static const std::set<std::string> kOfRuns = {"trainer_state.json", "adapter_config.json", "training_state.json",
                                                  "training_info.json", "mlflow_run.json",     kManifestName};
    const bool ours = name.ends_with(".index.json") || kOfRuns.contains(name);
    if (!text || ours || !entry.is_regular_file() || entry.file_size() > kLargest) continue;
    copy_durably(path, to / name);
  }
  if (!read_quantization(from)) return;
  std::ifstream config(from / "config.json");
  write_text_file(to / "config.json", unquantized_config(parse_json(config)).dump(2) + "\n");
}

void write_config_dtype(const std::filesystem::path& directory, const Json& config, DType dtype) {
  Json json = unquantized_config(config);
  json.erase("torch_dtype");
  json["dtype"] = std::string(name_of(dtype));
  write_text_file(directory / "config.json", json.dump(2) + "\n");
}

void write_text_file(const std::filesystem::path& path, const std::string& text) { write_durably(path, text); }

}  // namespace hone
