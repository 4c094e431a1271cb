#include "weights/sharded_conversion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "core/base/error.h"
#include "params/expert_parts.h"
#include "weights/shard_writer.h"
#include "weights/stored_tensor.h"
#include "weights/tensor_dims.h"

namespace hone {

namespace {

using SourceTensor = ShardedCheckpoint::Tensor;

constexpr std::string_view kPeftPrefix = "base_model.model.";

/// A tensor of the checkpoint and the positions of its matrices in a parameter, `stride` elements apart.
struct ConvertedPiece {
  const SourceTensor* tensor = nullptr;
  Shape shape;  ///< in memory order
  int64_t offset = 0;
  FileOrder order = FileOrder::kSame;
  int64_t stride = 0;
};

using Pieces = std::vector<ConvertedPiece>;

DType file_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF32 : dtype; }

/// Finds the tensors of a checkpoint that make up each parameter.
class SourceFinder {
 public:
  explicit SourceFinder(const ShardedCheckpoint& checkpoint) : checkpoint_(checkpoint) {
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      tensors_[name.starts_with(kPeftPrefix) ? name.substr(kPeftPrefix.size()) : name] = &tensor;
    }
  }

  /// Empty if the checkpoint does not have the parameter.
  Pieces find(const Parameter& parameter) {
    for (const FileLayout& layout : parameter.spec().all_layouts()) {
      if (Pieces pieces = of_layout(layout); !pieces.empty()) return pieces;
    }
    return of_scatter_moe(parameter);
  }
  const SourceTensor* take(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return nullptr;
    used_.insert(name);
    return found->second;
  }
  std::vector<std::string> unused() const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) {
      // Ignores rotation frequencies, which old versions of transformers saved: they follow from the configuration.
      if (!used_.contains(name) && !name.ends_with(".rotary_emb.inv_freq")) names.push_back(name);
    }
    return names;
  }
  std::string where() const { return checkpoint_.directory().string(); }

 private:
  Pieces of_layout(const FileLayout& layout) {
    const auto has = [&](const FileTensor& tensor) { return tensors_.contains(tensor.name); };
    if (layout.empty() || !std::all_of(layout.begin(), layout.end(), has)) return {};
    Pieces pieces;
    for (const FileTensor& tensor : layout) {
      const MatrixOrder order(tensor.order, tensor.shape);
      pieces.push_back(checked(tensor.name, {nullptr, tensor.shape, tensor.offset, tensor.order, order.numel()}));
    }
    return pieces;
  }

  Pieces of_scatter_moe(const Parameter& parameter) {
    if (parameter.spec().kind == ParameterKind::kRouter) {
      for (const std::string& name : parameter.spec().all_names()) {
        const size_t leaf = name.rfind('.'), module = leaf == std::string::npos ? leaf : name.rfind('.', leaf - 1);
        if (module == std::string::npos) continue;
        const std::string router = name.substr(0, module) + ".router" + name.substr(leaf);
        if (tensors_.contains(router)) {
          return {checked(router, {nullptr, parameter.shape(), 0, FileOrder::kSame, parameter.shape().numel()})};
        }
      }
    }
    if (!is_experts(parameter)) return {};
    for (const std::string& name : parameter.spec().all_names()) {
      const size_t experts = name.find(".experts.");
      if (experts == std::string::npos) continue;
      if (Pieces pieces = of_stacked(parameter, name.substr(0, experts)); !pieces.empty()) return pieces;
    }
    return {};
  }

  Pieces of_stacked(const Parameter& parameter, const std::string& module) {
    const Shape& shape = parameter.shape();
    Pieces pieces;
    for (const ExpertPart& part : parts_of(parameter)) {
      const char* leaf = part.name == "gate_proj" ? ".w1.weight" : part.name == "up_proj" ? ".w3.weight" : ".w2.weight";
      if (!tensors_.contains(module + leaf)) return {};
      pieces.push_back(checked(module + leaf, {nullptr,
                                               {shape[0], part.out_count, shape[2]},
                                               part.out_begin * shape[2],
                                               FileOrder::kTransposed,
                                               shape[1] * shape[2]}));
    }
    return pieces;
  }

  ConvertedPiece checked(const std::string& name, ConvertedPiece piece) {
    piece.tensor = take(name);
    const std::vector<int64_t> expected = dims_of(file_shape(piece.order, piece.shape));
    if (piece.tensor->shape != expected) {
      throw UserError(fmt::format("'{}' has the shape {}, the model needs [{}]", name, piece.tensor->shape_text(),
                                  fmt::join(expected, ", ")),
                      where(), "give the pretrained model that the training began with");
    }
    return piece;
  }

  const ShardedCheckpoint& checkpoint_;
  std::map<std::string, const SourceTensor*> tensors_;
  std::set<std::string> used_;
};

/// Copies a piece's elements into the parameter; T only has to have their size.
template <class T>
void place(const ConvertedPiece& piece, const std::byte* from, std::byte* parameter) {
  const MatrixOrder order(piece.order, piece.shape);
  const auto* file = reinterpret_cast<const T*>(from);
  auto* memory = reinterpret_cast<T*>(parameter) + piece.offset;
  for (int64_t begin = 0; begin < piece.shape.numel(); begin += order.numel(), memory += piece.stride) {
    order.rows_from_file(file + begin, 0, order.out, memory);
  }
}

/// Reads a parameter of the checkpoint when the first of its tensors is written, and keeps it until the next parameter.
class ParameterReader {
 public:
  ParameterReader(const ShardedCheckpoint& checkpoint) : checkpoint_(checkpoint) {}

  const std::byte* values(const Parameter& parameter, const Pieces& pieces) {
    if (current_ == &parameter) return values_.data();
    current_ = nullptr;
    const DType dtype = pieces.front().tensor->dtype;
    values_ = {};
    values_.resize(static_cast<size_t>(parameter.shape().numel()) * size_of(dtype));
    for (const ConvertedPiece& piece : pieces) {
      if (piece.tensor->dtype != dtype) {
        throw UserError(fmt::format("the tensors of '{}' are {} and {}", parameter.name(), name_of(dtype),
                                    name_of(piece.tensor->dtype)),
                        checkpoint_.directory().string(), "save them in one format");
      }
      const std::vector<std::byte> bytes = checkpoint_.read(*piece.tensor);
      switch (size_of(dtype)) {
        case 2:
          place<uint16_t>(piece, bytes.data(), values_.data());
          break;
        case 4:
          place<uint32_t>(piece, bytes.data(), values_.data());
          break;
        default:
          place<uint64_t>(piece, bytes.data(), values_.data());
      }
    }
    current_ = &parameter;
    return values_.data();
  }

 private:
  const ShardedCheckpoint& checkpoint_;
  const Parameter* current_ = nullptr;
  std::vector<std::byte> values_;
};

template <class T>
void write_converted(SafetensorsWriter& writer, DType to, const std::byte* values, int64_t count) {
  constexpr int64_t kCopiedPiece = int64_t{1} << 20;
  std::vector<float> floats;
  for (int64_t begin = 0; begin < count; begin += kCopiedPiece) {
    floats.clear();
    for (int64_t i = begin; i < std::min(count, begin + kCopiedPiece); ++i) {
      T value;
      std::memcpy(&value, values + static_cast<size_t>(i) * sizeof(T), sizeof(T));
      floats.push_back(static_cast<float>(value));
    }
    writer.write_floats(to, floats.data(), static_cast<int64_t>(floats.size()));
  }
}

void write_values_as(SafetensorsWriter& writer, DType to, const std::byte* values, DType from, int64_t count) {
  if (to == from) return writer.write(values, static_cast<uint64_t>(count) * size_of(from));
  switch (from) {
    case DType::kBF16:
      return write_converted<BFloat16>(writer, to, values, count);
    case DType::kF16:
      return write_converted<Float16>(writer, to, values, count);
    case DType::kF64:
      return write_converted<double>(writer, to, values, count);
    default:
      return write_converted<float>(writer, to, values, count);
  }
}

/// Copies the matrices of a file's tensor from a parameter in memory order.
template <class T>
std::vector<std::byte> in_file_order(const FileTensor& tensor, const std::byte* parameter) {
  const MatrixOrder order(tensor.order, tensor.shape);
  std::vector<std::byte> result(static_cast<size_t>(tensor.shape.numel()) * sizeof(T));
  const auto* memory = reinterpret_cast<const T*>(parameter) + tensor.offset;
  for (int64_t begin = 0; begin < tensor.shape.numel(); begin += order.numel()) {
    order.to_file(memory + begin, reinterpret_cast<T*>(result.data()) + begin);
  }
  return result;
}

void write_file_tensor(SafetensorsWriter& writer, const FileTensor& tensor, const std::byte* parameter, DType from,
                       DType to) {
  const int64_t count = tensor.shape.numel();
  if (tensor.order == FileOrder::kSame) {
    return write_values_as(writer, to, parameter + static_cast<size_t>(tensor.offset) * size_of(from), from, count);
  }
  const std::vector<std::byte> values = size_of(from) == 2   ? in_file_order<uint16_t>(tensor, parameter)
                                        : size_of(from) == 4 ? in_file_order<uint32_t>(tensor, parameter)
                                                             : in_file_order<uint64_t>(tensor, parameter);
  write_values_as(writer, to, values.data(), from, count);
}

void refuse(const char* what, const std::vector<std::string>& names, const std::string& where, const char* fix) {
  if (names.empty()) return;
  const size_t shown = std::min<size_t>(names.size(), 5);
  throw UserError(fmt::format("{} {}: '{}'{}", names.size(), what,
                              fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), "', '"),
                              names.size() > shown ? ", …" : ""),
                  where, fix);
}

/// A tied head that is present nevertheless must equal the embedding.
void check_tied_head(const ShardedCheckpoint& checkpoint, SourceFinder& finder, const SourceTensor* embedding) {
  const SourceTensor* head = finder.take("lm_head.weight");
  if (head == nullptr || embedding == nullptr) return;
  if (head->shape == embedding->shape && head->dtype == embedding->dtype &&
      checkpoint.read(*head) == checkpoint.read(*embedding)) {
    return;
  }
  throw UserError("'lm_head.weight' differs from the embedding, though config.json ties them", finder.where(),
                  "set tie_word_embeddings: false in the pretrained model's config.json");
}

bool is_lora(const std::string& name) {
  return name.find(".lora_A.") != std::string::npos || name.find(".lora_B.") != std::string::npos;
}

/// PEFT's key of a trained tensor; "" for a tensor of the frozen base.
std::string adapter_key(std::string name) {
  constexpr std::string_view kSaved = ".modules_to_save.";
  const size_t saved = name.find(kSaved);
  if (!is_lora(name) && saved == std::string::npos) return "";
  const size_t label = saved == std::string::npos ? name.find('.', name.find(".lora_") + 1) : saved + kSaved.size() - 1;
  // The adapter's name is before the last part: lora_A.default.weight.
  const size_t end = name.find('.', label + 1);
  if (end != std::string::npos) name.erase(label, end - label);
  if (saved != std::string::npos) name.erase(saved, kSaved.size() - 1);
  return name.starts_with(kPeftPrefix) ? name : std::string(kPeftPrefix) + name;
}

}  // namespace

bool holds_adapter(const ShardedCheckpoint& checkpoint) {
  const auto& tensors = checkpoint.tensors();
  return std::any_of(tensors.begin(), tensors.end(), [](const auto& pair) { return is_lora(pair.first); });
}

std::optional<int64_t> write_adapter(const ShardedCheckpoint& checkpoint, const std::filesystem::path& directory) {
  std::set<int64_t> ranks;
  std::vector<SafetensorsWriter::Announced> announced;
  std::vector<const SourceTensor*> sources;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const std::string key = adapter_key(name);
    if (key.empty()) continue;
    // Tensors of experts may be stacked.
    const bool dense = tensor.shape.size() == 2 && key.find(".experts") == std::string::npos;
    if (dense && key.ends_with(".lora_A.weight")) ranks.insert(tensor.shape[0]);
    announced.push_back({key, file_dtype(tensor.dtype), tensor.shape});
    sources.push_back(&tensor);
  }
  SafetensorsWriter writer(directory / "adapter_model.safetensors", announced);
  for (size_t i = 0; i < sources.size(); ++i) {
    write_values_as(writer, announced[i].dtype, checkpoint.read(*sources[i]).data(), sources[i]->dtype,
                    announced[i].numel());
  }
  writer.finish();
  return ranks.size() == 1 ? std::optional(*ranks.begin()) : std::nullopt;
}

void write_model(const ShardedCheckpoint& checkpoint, const ParameterStore& store, const Checkpoint& base,
                 const CheckpointMap& map, const std::filesystem::path& directory, const SaveOptions& options) {
  SourceFinder finder(checkpoint);
  ParameterReader reader(checkpoint);
  std::vector<PlannedTensor> tensors;
  std::vector<std::string> missing;
  const Parameter* head = nullptr;
  const SourceTensor* embedding = nullptr;
  for (const Parameter& parameter : store.all()) {
    const auto pieces = std::make_shared<const Pieces>(finder.find(parameter));
    if (pieces->empty()) {
      missing.push_back(parameter.name());
      continue;
    }
    if (parameter.spec().kind == ParameterKind::kHead) head = &parameter;
    if (parameter.spec().kind == ParameterKind::kEmbedding) embedding = pieces->front().tensor;
    const DType from = pieces->front().tensor->dtype;
    const bool converted = options.dtype && parameter.spec().kind != ParameterKind::kBuffer;
    const DType to = converted ? *options.dtype : file_dtype(from);
    for (const FileTensor& tensor : map.layouts.at(&parameter)) {
      tensors.push_back({{tensor.name, to, dims_of(file_shape(tensor.order, tensor.shape))},
                         [&reader, &parameter, pieces, tensor, from, to](SafetensorsWriter& writer) {
                           write_file_tensor(writer, tensor, reader.values(parameter, *pieces), from, to);
                         }});
    }
  }
  refuse("parameters of the model are not in the checkpoint", missing, finder.where(),
         "give the pretrained model that the training began with, and the whole checkpoint");
  for (PlannedTensor& carried : carried_tensors(base, map)) {
    if (const SourceTensor* own = finder.take(carried.announced.name)) {
      carried = {
          {carried.announced.name, file_dtype(own->dtype), own->shape}, [&checkpoint, own](SafetensorsWriter& writer) {
            write_values_as(writer, file_dtype(own->dtype), checkpoint.read(*own).data(), own->dtype, own->numel());
          }};
    }
    tensors.push_back(std::move(carried));
  }
  if (head == nullptr) check_tied_head(checkpoint, finder, embedding);
  refuse("tensors of the checkpoint belong to no parameter of the model", finder.unused(), finder.where(),
         "give the pretrained model that the training began with");
  write_shards(directory, tensors, options.max_shard_size, options.checksums);
}

}  // namespace hone
