#include "weights/sharded_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "weights/pickle.h"
#include "weights/saved_tensor.h"

namespace hone {

namespace {

using Kind = PickleValue::Kind;

constexpr uint64_t kMostMetadataBytes = uint64_t{1} << 30;
constexpr int64_t kMostTorchElements = int64_t{1} << 48;
constexpr size_t kMostChunks = 16384;  // per tensor: one per rank
constexpr size_t kMostTorchDimensions = 64;
constexpr uint64_t kBytesOfChunk = 16;  // minimum metadata of a chunk: two sizes, an index, a position

const std::set<std::string>& metadata_names() {
  static const std::set<std::string> names = {
      "torch.distributed.checkpoint.metadata.Metadata",
      "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
      "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
      "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
      "torch.distributed.checkpoint.metadata.TensorProperties",
      "torch.distributed.checkpoint.metadata.MetadataIndex",
      "torch.distributed.checkpoint.metadata.StorageMeta",
      "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
      "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
      "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
      "torch.distributed.checkpoint.filesystem._StorageInfo",
      "torch.distributed.checkpoint.filesystem._StoragePrefix",
      "torch.serialization._get_layout",
      "torch.Size",
      "torch.float32",
      "torch.bfloat16",
      "torch.float16",
      "torch.float64",
      "torch.int64",
      "torch.int32",
      "torch.int16",
      "torch.int8",
      "torch.uint8",
      "torch.bool",
      "collections.OrderedDict",
      "collections.defaultdict",
      "builtins.dict",
      "builtins.set",
      "pathlib.Path",
      "pathlib.PosixPath",
      "pathlib.PurePosixPath",
      "pathlib._local.PosixPath",
  };
  return names;
}

constexpr std::array<std::pair<std::string_view, DType>, 4> kTorchDTypes = {{{"torch.float32", DType::kF32},
                                                                             {"torch.bfloat16", DType::kBF16},
                                                                             {"torch.float16", DType::kF16},
                                                                             {"torch.float64", DType::kF64}}};

/// Reads the objects of `.metadata`.
class MetadataReader {
 public:
  MetadataReader(std::string path) : path_(std::move(path)) {}

  [[noreturn]] void broken(const std::string& what) const {
    throw UserError("broken metadata of a sharded checkpoint: " + what, path_,
                    "the file is damaged, or of a version of PyTorch that is not read");
  }

  const PickleValue& field(const PickleValue& object, std::string_view name) const {
    const PickleValue* value = object.find(name);
    if (value == nullptr) broken(fmt::format("an entry lacks '{}'", name));
    return *value;
  }
  const PickleValue& dictionary(const PickleValue& object, std::string_view name) const {
    const PickleValue& value = field(object, name);
    const PickleValue* items = value.is(Kind::kObject) ? value.state : &value;
    if (items == nullptr || !items->is(Kind::kDictionary)) broken(fmt::format("'{}' is not a dictionary", name));
    return *items;
  }
  /// Names are copied for each entry, so their length is limited.
  std::string name_of(const PickleValue& value) const {
    constexpr size_t kLongest = 4096;
    if (value.text.size() > kLongest) broken(fmt::format("a name has {} bytes", value.text.size()));
    return std::string(value.text);
  }
  std::string text(const PickleValue& object, std::string_view name) const {
    const PickleValue& value = field(object, name);
    if (!value.is(Kind::kText)) broken(fmt::format("'{}' is not text", name));
    return name_of(value);
  }
  uint64_t size(const PickleValue& object, std::string_view name) const {
    const PickleValue& value = field(object, name);
    if (!value.is(Kind::kInteger) || value.integer < 0) broken(fmt::format("'{}' is not a size", name));
    return static_cast<uint64_t>(value.integer);
  }
  /// Reads a torch.Size.
  std::vector<int64_t> size_of_tensor(const PickleValue& value, std::string_view name) const {
    if (!value.is_object("torch.Size") || value.arguments->items.size() != 1) {
      broken(fmt::format("'{}' is not a torch.Size", name));
    }
    const std::vector<const PickleValue*>& items = value.arguments->items[0]->items;
    if (items.size() > kMostTorchDimensions) broken(fmt::format("'{}' has {} dimensions", name, items.size()));
    std::vector<int64_t> sizes;
    for (const PickleValue* item : items) {
      if (!item->is(Kind::kInteger) || item->integer < 0 || item->integer > kMostTorchElements) {
        broken(fmt::format("'{}' has an invalid size", name));
      }
      sizes.push_back(item->integer);
    }
    return sizes;
  }
  std::vector<int64_t> sizes(const PickleValue& object, std::string_view name) const {
    return size_of_tensor(field(object, name), name);
  }

  /// Empty if the dtype is not floating-point.
  std::optional<DType> dtype(const PickleValue& tensor) const {
    const PickleValue* state = field(tensor, "properties").state;
    if (state == nullptr || !state->is(Kind::kTuple) || state->items.empty()) broken("a tensor has no properties");
    for (const auto& [name, dtype] : kTorchDTypes) {
      if (state->items[0]->text == name) return dtype;
    }
    return std::nullopt;
  }

 private:
  std::string path_;
};

void erase_all(std::string& name, std::string_view part) {
  for (size_t at = name.find(part); at != std::string::npos; at = name.find(part)) name.erase(at, part.size());
}

std::string without_wrappers(std::string name) {
  for (const char* part : {"_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod."}) erase_all(name, part);
  while (name.starts_with("module.")) name.erase(0, 7);
  return name;
}

/// Names of keys before dictionaries were flattened: the last part of their paths. If a dictionary has a "model" next
/// to other entries (an optimizer's state), only the model's keys.
class KeyNames {
 public:
  KeyNames(const MetadataReader& reader, const PickleValue& metadata) {
    const PickleValue* planner = metadata.find("planner_data");
    if (planner == nullptr || !planner->is(Kind::kDictionary)) return;
    for (size_t i = 0; i < planner->items.size(); i += 2) {
      const PickleValue &key = *planner->items[i], &path = *planner->items[i + 1];
      if (!key.is(Kind::kText) || !path.is(Kind::kTuple) || path.items.empty()) reader.broken("a path is not a list");
      // Lists in a state dict have numbers as keys; no weight is in one.
      const std::string name = reader.name_of(key);
      if (path.items.back()->is(Kind::kText)) names_[name] = reader.name_of(*path.items.back());
      if (path.items.size() > 1 && path.items[0]->text == "model") of_model_.insert(name);
    }
  }

  /// Empty for keys that do not belong to the model.
  std::optional<std::string> find(const std::string& key) const {
    if (!of_model_.empty() && !of_model_.contains(key)) return std::nullopt;
    const auto named = names_.find(key);
    return without_wrappers(named == names_.end() ? key : named->second);
  }

 private:
  std::map<std::string, std::string> names_;
  std::set<std::string> of_model_;
};

/// Storage positions of chunks, by key and offsets.
using Places = std::map<std::pair<std::string, std::vector<int64_t>>, const PickleValue*>;

Places places_of(const MetadataReader& reader, const PickleValue& metadata) {
  Places places;
  const PickleValue& storage = reader.dictionary(metadata, "storage_data");
  for (size_t i = 0; i < storage.items.size(); i += 2) {
    const PickleValue& index = *storage.items[i];
    const PickleValue* offset = index.find("offset");
    if (offset == nullptr || offset->is(Kind::kNone)) continue;  // not a tensor
    places[{reader.text(index, "fqn"), reader.size_of_tensor(*offset, "offset")}] = storage.items[i + 1];
  }
  return places;
}

using Chunks = std::vector<const ShardedCheckpoint::Chunk*>;

bool overlap(const ShardedCheckpoint::Chunk& a, const ShardedCheckpoint::Chunk& b) {
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.offsets[d] + a.sizes[d] <= b.offsets[d] || b.offsets[d] + b.sizes[d] <= a.offsets[d]) return false;
  }
  return true;
}

/// Checks that chunks do not overlap. Ranks cut a tensor along its dimensions, so chunks are divided recursively at
/// positions that no chunk crosses, along alternating dimensions, until few are left for pairwise comparison.
class ApartChecker {
 public:
  explicit ApartChecker(const MetadataReader& reader, const std::string& key) : reader_(reader), key_(key) {}

  void check(Chunks chunks) {
    constexpr size_t kFew = 8;
    if (chunks.size() > kFew) {
      for (size_t d = 0; d < chunks.front()->sizes.size(); ++d) {
        std::vector<Chunks> parts = parted(chunks, d);
        if (parts.size() == 1) continue;
        for (Chunks& part : parts) check(std::move(part));
        return;
      }
    }
    for (size_t i = 0; i < chunks.size(); ++i) {
      work(i);
      for (size_t j = 0; j < i; ++j) {
        if (overlap(*chunks[i], *chunks[j])) reader_.broken(fmt::format("two chunks of '{}' overlap", key_));
      }
    }
  }

 private:
  /// Divides chunks at the positions of dimension `d` that no chunk crosses.
  std::vector<Chunks> parted(Chunks& chunks, size_t d) {
    work(chunks.size());
    std::sort(chunks.begin(), chunks.end(),
              [&](const auto* a, const auto* b) { return a->offsets[d] < b->offsets[d]; });
    std::vector<Chunks> parts(1);
    int64_t end = 0;
    for (const ShardedCheckpoint::Chunk* chunk : chunks) {
      if (chunk->offsets[d] >= end && !parts.back().empty()) parts.emplace_back();
      end = std::max(end, chunk->offsets[d] + chunk->sizes[d]);
      parts.back().push_back(chunk);
    }
    return parts;
  }
  /// Limits the work: no mesh of ranks cuts a tensor into chunks that need more.
  void work(uint64_t comparisons) {
    constexpr uint64_t kMost = 50'000'000;
    work_ += comparisons;
    if (work_ > kMost) reader_.broken(fmt::format("'{}' is cut into chunks that are not a grid", key_));
  }

  const MetadataReader& reader_;
  const std::string& key_;
  uint64_t work_ = 0;
};

/// Checks that chunks are inside the tensor, do not overlap, and cover it.
void check_cover(const MetadataReader& reader, const ShardedCheckpoint::Tensor& tensor) {
  int64_t covered = 0;
  Chunks filled;
  for (const ShardedCheckpoint::Chunk& chunk : tensor.chunks) {
    if (chunk.sizes.size() != tensor.shape.size() || chunk.offsets.size() != tensor.shape.size()) {
      reader.broken(fmt::format("a chunk of '{}' has other dimensions than the tensor", tensor.key));
    }
    int64_t elements = 1;
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      if (chunk.offsets[d] > tensor.shape[d] || chunk.sizes[d] > tensor.shape[d] - chunk.offsets[d]) {
        reader.broken(fmt::format("a chunk of '{}' lies outside of {}", tensor.key, tensor.shape_text()));
      }
      elements *= chunk.sizes[d];
    }
    // At most the elements of the whole tensor, so that this does not overflow.
    if (elements > tensor.numel() - covered) reader.broken(fmt::format("two chunks of '{}' overlap", tensor.key));
    if (static_cast<uint64_t>(elements) * size_of(tensor.dtype) > chunk.length) {
      reader.broken(fmt::format("a chunk of '{}' has {} elements in {} bytes", tensor.key, elements, chunk.length));
    }
    covered += elements;
    if (elements > 0) filled.push_back(&chunk);
  }
  ApartChecker(reader, tensor.key).check(std::move(filled));
  if (covered != tensor.numel()) {
    reader.broken(fmt::format("the chunks of '{}' cover {} of its {} elements", tensor.key, covered, tensor.numel()));
  }
}

/// Rejects a shape with more elements than any file.
void check_numel(const MetadataReader& reader, const ShardedCheckpoint::Tensor& tensor) {
  int64_t numel = 1;
  for (const int64_t size : tensor.shape) {
    if (size != 0 && numel > kMostTorchElements / size) reader.broken("the size of '" + tensor.key + "' is too large");
    numel *= size;
  }
}

}  // namespace

int64_t ShardedCheckpoint::Tensor::numel() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

std::string ShardedCheckpoint::Tensor::shape_text() const { return fmt::format("[{}]", fmt::join(shape, ", ")); }

bool ShardedCheckpoint::is_one(const std::filesystem::path& directory) {
  return std::filesystem::exists(directory / ".metadata");
}

ShardedCheckpoint ShardedCheckpoint::open(const std::filesystem::path& directory) {
  ShardedCheckpoint checkpoint;
  checkpoint.directory_ = directory;
  const FileBytes file(directory / ".metadata");
  const MetadataReader reader(file.path().string());
  if (file.size() > kMostMetadataBytes) reader.broken(fmt::format("it has {} bytes", file.size()));
  const Pickle pickle = Pickle::parse(file.read(0, file.size()), metadata_names(), file.path().string());
  const PickleValue& metadata = pickle.root();
  if (!metadata.is_object("torch.distributed.checkpoint.metadata.Metadata"))
    reader.broken("it does not contain torch.distributed.checkpoint metadata");
  const Places places = places_of(reader, metadata);
  const KeyNames names(reader, metadata);

  const auto open_file = [&](const std::string& name) {
    // File names only: PyTorch never writes a path out of the folder.
    if (name.empty() || name.find('/') != std::string::npos || name == "..")
      reader.broken("invalid file name: " + name);
    auto found = checkpoint.files_.find(name);
    if (found == checkpoint.files_.end()) found = checkpoint.files_.emplace(name, FileBytes(directory / name)).first;
    return &found->second;
  };
  const PickleValue& tensors = reader.dictionary(metadata, "state_dict_metadata");
  uint64_t num_chunks = 0;
  for (size_t i = 0; i < tensors.items.size(); i += 2) {
    if (!tensors.items[i]->is(Kind::kText)) reader.broken("a tensor has no name");
    Tensor tensor{reader.name_of(*tensors.items[i]), {}, {}, {}};
    const std::optional<std::string> named = names.find(tensor.key);
    if (!named) continue;
    const std::string& name = *named;
    const PickleValue& entry = *tensors.items[i + 1];
    const bool is_tensor = entry.is_object("torch.distributed.checkpoint.metadata.TensorStorageMetadata");
    const std::optional<DType> dtype = is_tensor ? reader.dtype(entry) : std::nullopt;
    if (!dtype) continue;
    tensor.dtype = *dtype;
    tensor.shape = reader.sizes(entry, "size");
    check_numel(reader, tensor);
    const PickleValue& chunks = reader.field(entry, "chunks");
    if (!chunks.is(Kind::kList) || chunks.items.size() > kMostChunks) reader.broken("'chunks' is not a short list");
    num_chunks += chunks.items.size();
    if (num_chunks > file.size() / kBytesOfChunk) reader.broken("it has more chunks than a file of its size describes");
    for (const PickleValue* item : chunks.items) {
      Chunk chunk{reader.sizes(*item, "offsets"), reader.sizes(*item, "sizes")};
      const auto place = places.find({tensor.key, chunk.offsets});
      if (place == places.end()) reader.broken(fmt::format("a chunk of '{}' has no storage entry", tensor.key));
      const PickleValue& info = *place->second;
      if (const PickleValue* packed = info.find("transform_descriptors"); packed && !packed->is(Kind::kNone)) {
        throw UserError(fmt::format("'{}' is stored compressed, which is not supported", tensor.key),
                        file.path().string(), "save the checkpoint without transforms");
      }
      chunk.file = open_file(reader.text(info, "relative_path"));
      chunk.offset = reader.size(info, "offset");
      chunk.length = reader.size(info, "length");
      if (chunk.offset > chunk.file->size() || chunk.length > chunk.file->size() - chunk.offset) {
        throw UserError(
            fmt::format("a chunk of '{}' has {} bytes from byte {} on: it should end at byte {} of {}", tensor.key,
                        chunk.length, chunk.offset, chunk.offset + chunk.length, chunk.file->size()),
            chunk.file->path().string(), "the file is damaged or incomplete: copy it again");
      }
      tensor.chunks.push_back(std::move(chunk));
    }
    check_cover(reader, tensor);
    if (!checkpoint.tensors_.emplace(name, std::move(tensor)).second) reader.broken("'" + name + "' appears twice");
  }
  return checkpoint;
}

namespace {

/// Copies a box, row by row, to its position in the whole tensor.
void place(const ShardedCheckpoint::Tensor& tensor, const ShardedCheckpoint::Chunk& chunk, const std::byte* from,
           std::byte* whole) {
  const size_t element = size_of(tensor.dtype), rank = tensor.shape.size();
  const int64_t run = rank == 0 ? 1 : chunk.sizes.back();
  int64_t runs = 1;
  for (size_t d = 0; d + 1 < rank; ++d) runs *= chunk.sizes[d];
  if (run == 0) return;
  std::vector<int64_t> index(rank, 0);
  for (int64_t i = 0; i < runs; ++i) {
    int64_t to = 0;
    for (size_t d = 0; d < rank; ++d) to = to * tensor.shape[d] + chunk.offsets[d] + index[d];
    const size_t bytes = static_cast<size_t>(run) * element;
    std::memcpy(whole + static_cast<size_t>(to) * element, from + static_cast<size_t>(i) * bytes, bytes);
    for (size_t d = rank - std::min<size_t>(rank, 1); d-- > 0 && ++index[d] == chunk.sizes[d];) index[d] = 0;
  }
}

}  // namespace

std::vector<std::byte> ShardedCheckpoint::read(const Tensor& tensor) const {
  std::vector<std::byte> whole(static_cast<size_t>(tensor.numel()) * size_of(tensor.dtype));
  for (const Chunk& chunk : tensor.chunks) {
    const SavedTensor saved = find_saved_tensor(*chunk.file, chunk.offset, chunk.length);
    if (saved.shape != chunk.sizes || saved.dtype != tensor.dtype) {
      throw UserError(
          fmt::format("a chunk of '{}' is {} [{}], the metadata say {} [{}]", tensor.key, name_of(saved.dtype),
                      fmt::join(saved.shape, ", "), name_of(tensor.dtype), fmt::join(chunk.sizes, ", ")),
          chunk.file->path().string(), "the folder mixes files of different checkpoints");
    }
    place(tensor, chunk, read_saved_tensor(*chunk.file, saved).data(), whole.data());
  }
  return whole;
}

}  // namespace hone
