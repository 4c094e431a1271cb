// Converts a sharded training checkpoint to files for inference: a model in its base's layout, or a PEFT adapter.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "weights/checkpoint.h"
#include "weights/sharded_checkpoint.h"

namespace hone {

/// Whether the checkpoint has LoRA weights; then only an adapter was trained.
bool holds_adapter(const ShardedCheckpoint& checkpoint);

/// Writes adapter_model.safetensors with PEFT's keys and the tensors' dtypes: LoRA pairs, and modules saved in full.
/// Removes the adapter's name (`.default`) from keys. Returns the rank if it is the same for all dense pairs.
std::optional<int64_t> write_adapter(const ShardedCheckpoint& checkpoint, const std::filesystem::path& directory);

/// Writes every parameter of `store` in the layout of `map`, with those carried tensors of `base` that the checkpoint
/// lacks. A parameter may be in the checkpoint under any of its names and layouts, or as in ScatterMoE:
///   <moe>.router.weight [E, H];  <moe>.w1.weight (gate), .w3 (up) [E, H, I], .w2 (down) [E, I, H]: transposed, stacked
/// One parameter is in memory at a time. Dtypes are the checkpoint's (float64: float32) unless set in `options`.
/// UserError with the names of missing parameters, of tensors without a parameter, and of wrong shapes.
void write_model(const ShardedCheckpoint& checkpoint, const ParameterStore& store, const Checkpoint& base,
                 const CheckpointMap& map, const std::filesystem::path& directory, const SaveOptions& options);

}  // namespace hone
