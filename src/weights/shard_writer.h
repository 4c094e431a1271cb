// A model's tensors as model.safetensors, or as numbered shards with an index.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weights/checkpoint.h"
#include "weights/stored_tensor.h"

namespace hone {

/// A tensor of a file that holds a slice of a parameter.
struct SavedSlice {
  SafetensorsWriter::Announced announced;
  const Parameter* parameter = nullptr;
  FileTensor slice = {};
};

/// The tensors that files hold the store's parameters in (LoRA parameters aside), in the order in which they are
/// written: the layout of `map` and the dtypes of `source`; without those each parameter's first layout and own dtype.
/// `dtype`, if set, is that of all but buffers.
std::vector<SavedSlice> saved_slices(const ParameterStore& store, const Checkpoint* source, const CheckpointMap* map,
                                     std::optional<DType> dtype);

/// A tensor that belongs to no parameter: training ignores it. It is written as it is, or as bfloat16 if quantised.
struct CarriedTensor {
  SafetensorsWriter::Announced announced;
  StoredTensor stored;
};

/// What a model folder carries over from `source`, which outlives the result. Scales are not among them.
std::vector<CarriedTensor> carried_slices(const Checkpoint& source, const CheckpointMap& map);

/// A file of weights and its tensors [begin, end).
struct ShardRange {
  std::string name;
  size_t begin = 0, end = 0;
};

/// The files of a model, tensors in order: model.safetensors, or numbered shards of at most `max_shard_size` bytes of
/// tensors unless a single tensor has more.
std::vector<ShardRange> plan_shards(std::span<const SafetensorsWriter::Announced> tensors, int64_t max_shard_size);

/// Writes model.safetensors.index.json; nothing for a single file.
void write_index(const std::filesystem::path& directory, std::span<const ShardRange> shards,
                 std::span<const SafetensorsWriter::Announced> tensors);

/// A tensor and who writes its elements when its turn comes.
struct PlannedTensor {
  SafetensorsWriter::Announced announced;
  std::function<void(SafetensorsWriter& writer)> write;
};

/// Writes the tensors in order into an existing folder; a shard is no larger than `max_shard_size` bytes unless a
/// single tensor is. `checksums`, unless null, is told those of the files of weights.
void write_shards(const std::filesystem::path& directory, const std::vector<PlannedTensor>& tensors,
                  int64_t max_shard_size, FileChecksums* checksums);

/// carried_slices, as they are written one after another. `source` outlives the result.
std::vector<PlannedTensor> carried_tensors(const Checkpoint& source, const CheckpointMap& map);

}  // namespace hone
