// A model's tensors as model.safetensors, or as numbered shards with an index.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "weights/checkpoint.h"

namespace hone {

/// A tensor and who writes its elements when its turn comes.
struct PlannedTensor {
  SafetensorsWriter::Announced announced;
  std::function<void(SafetensorsWriter& writer)> write;
};

/// Writes the tensors in order into an existing folder; a shard is no larger than `max_shard_size` bytes unless a
/// single tensor is.
void write_shards(const std::filesystem::path& directory, const std::vector<PlannedTensor>& tensors,
                  int64_t max_shard_size);

/// What a model folder carries over from `source`: tensors that training ignores, as they are there, and what is
/// quantised as bfloat16. `source` outlives the result.
std::vector<PlannedTensor> carried_tensors(const Checkpoint& source, const CheckpointMap& map);

}  // namespace hone
