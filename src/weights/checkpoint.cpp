#include "weights/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "weights/grown_rows.h"
#include "weights/model_folder.h"
#include "weights/stored_tensor.h"
#include "weights/tensor_dims.h"
#include "weights/weight_files.h"

namespace hone {

namespace {

/// "a, b, c and 40 more"
std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 5; ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > 5) text += fmt::format(" and {} more", names.size() - 5);
  return text;
}

}  // namespace

const Checkpoint::Tensor* Checkpoint::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

void Checkpoint::grow(const std::vector<std::string>& names, int64_t rows) {
  for (const std::string& name : names) {
    const Tensor* found = find(name);
    if (found == nullptr) continue;  // a tied head
    const SafetensorsEntry& entry = *found->entry;
    const bool plain =
        !entry.float8_e4m3 && (entry.dtype == DType::kF32 || entry.dtype == DType::kBF16 || entry.dtype == DType::kF16);
    if (entry.shape.size() != 2 || !plain || entry.shape[0] == 0) {
      throw UserError(fmt::format("'{}' is {} of the shape {}, to which no rows can be added", name, entry.dtype_name(),
                                  entry.shape_text()),
                      found->file->path().string(), "use the model's bfloat16 version, or add no tokens");
    }
    if (entry.shape[0] < rows) grown_[name] = std::make_shared<const GrownRows>(*found->file, entry, rows);
  }
}

std::shared_ptr<const GrownRows> Checkpoint::grown(const std::string& name) const {
  const auto it = grown_.find(name);
  return it == grown_.end() ? nullptr : it->second;
}

Checkpoint Checkpoint::open(const std::filesystem::path& directory, FileLedger* ledger) {
  require_finished(directory);
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  checkpoint.quantization_ = read_quantization(directory);
  const WeightFiles files = find_weight_files(directory);
  for (const std::string& name : files.names) checkpoint.files_.emplace_back(directory / name).record_reads(ledger);
  for (const SafetensorsFile& file : checkpoint.files_) {
    for (const SafetensorsEntry& entry : file.entries()) {
      if (!checkpoint.tensors_.emplace(entry.name, Tensor{&file, &entry}).second) {
        throw UserError("two shards have the tensor '" + entry.name + "'", file.path().string());
      }
    }
  }
  for (const auto& [tensor, shard] : files.shard_of) {
    if (!checkpoint.find(tensor)) {
      throw UserError(fmt::format("the index lists '{}', which is not in the shard", tensor),
                      (directory / shard).string(), "download this file again");
    }
  }
  return checkpoint;
}

namespace {

/// The first layout for which the checkpoint has any tensor, with those tensors; empty if there is none.
struct UsedLayout {
  const FileLayout* layout = nullptr;
  std::vector<StoredTensor> tensors;
};

/// Whether the checkpoint has a tensor of `layout` in the shape that another of the layouts gives it.
bool has_another_shape(const Checkpoint& checkpoint, const FileLayout& layout, const std::vector<FileLayout>& layouts) {
  return std::any_of(layout.begin(), layout.end(), [&](const FileTensor& tensor) {
    const Checkpoint::Tensor* const found = checkpoint.find(tensor.name);
    const auto fits = [&](const FileTensor& one) {
      return one.name == tensor.name && found->entry->shape == dims_of(file_shape(one.order, one.shape));
    };
    if (!found || fits(tensor)) return false;
    return std::any_of(layouts.begin(), layouts.end(),
                       [&](const FileLayout& other) { return std::any_of(other.begin(), other.end(), fits); });
  });
}

UsedLayout used_layout(const Checkpoint& checkpoint, const std::vector<FileLayout>& layouts,
                       std::vector<std::string>& missing) {
  UsedLayout used;
  for (const FileLayout& layout : layouts) {
    if (has_another_shape(checkpoint, layout, layouts)) continue;
    std::vector<std::string> absent;
    for (const FileTensor& tensor : layout) {
      if (auto stored = StoredTensor::find(checkpoint, tensor, absent)) {
        used.tensors.push_back(*stored);
      } else {
        absent.push_back(tensor.name);
      }
    }
    if (used.tensors.empty()) continue;
    used.layout = &layout;
    missing.insert(missing.end(), absent.begin(), absent.end());
    return used;
  }
  missing.push_back(layouts.front().front().name);
  return used;
}

/// A tied head that is in the file nevertheless must equal the embedding.
void check_tied_head(const Checkpoint& checkpoint, const std::string& head, const std::string& embedding) {
  const auto &a = *checkpoint.find(head), &b = *checkpoint.find(embedding);
  bool equal = a.entry->shape == b.entry->shape;
  std::vector<float> x, y;
  for (int64_t first = 0; equal && first < a.entry->numel(); first += 1 << 20) {
    const int64_t count = std::min<int64_t>(1 << 20, a.entry->numel() - first);
    x.resize(static_cast<size_t>(count));
    y.resize(static_cast<size_t>(count));
    a.file->read_floats(*a.entry, first, x.data(), count);
    b.file->read_floats(*b.entry, first, y.data(), count);
    equal = x == y;
  }
  if (equal) return;
  throw UserError(fmt::format("'{}' differs from '{}', though config.json ties them", head, embedding),
                  a.file->path().string(), "set tie_word_embeddings: false in config.json, or remove the tensor");
}

}  // namespace

CheckpointMap map_checkpoint(const Checkpoint& checkpoint, const ParameterStore& store, const CarriedNames& carried) {
  CheckpointMap map;
  std::set<std::string> used;
  std::vector<std::string> missing;
  for (const Parameter& parameter : store.all()) {
    if (parameter.spec().kind == ParameterKind::kLora) continue;
    const std::vector<FileLayout> layouts = parameter.spec().all_layouts();
    const UsedLayout found = used_layout(checkpoint, layouts, missing);
    for (const StoredTensor& tensor : found.tensors) {
      for (const std::string& name : tensor.names()) used.insert(name);
    }
    if (found.layout) map.layouts[&parameter] = *found.layout;
  }
  if (!missing.empty()) {
    throw UserError(fmt::format("the checkpoint lacks {} of the model's tensors: {}", missing.size(), some_of(missing)),
                    checkpoint.directory().string(),
                    "use a complete checkpoint of the architecture that config.json names");
  }
  const Parameter* embedding = nullptr;
  for (const Parameter& parameter : store.all()) {
    if (parameter.spec().kind == ParameterKind::kEmbedding) embedding = &parameter;
  }
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (used.contains(name)) continue;
    if (name.ends_with("lm_head.weight") && !carried.contain(name) && embedding != nullptr) {
      check_tied_head(checkpoint, name, map.layouts.at(embedding).front().name);
    } else if (carried.contain(name)) {
      map.carried.push_back(name);
    } else if (!name.ends_with("rotary_emb.inv_freq") &&  // a buffer saved by old versions of transformers
               !(checkpoint.quantization() && checkpoint.quantization()->rounds_activations(name))) {
      unexpected.push_back(name);
    }
  }
  if (!unexpected.empty()) {
    throw UserError(fmt::format("the checkpoint has {} tensors the model does not know: {}", unexpected.size(),
                                some_of(unexpected)),
                    checkpoint.directory().string(), "use the config.json that belongs to these weights");
  }
  return map;
}

}  // namespace hone
