// A sharded training checkpoint as files that inference loads: a model in its base's layout, or a PEFT adapter.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "weights/checkpoint.h"
#include "weights/sharded_checkpoint.h"

namespace hone {

/// Whether it holds LoRA weights: of such a checkpoint the adapter is what was trained.
bool holds_adapter(const ShardedCheckpoint& checkpoint);

/// Writes adapter_model.safetensors with PEFT's keys and the tensors' dtypes: LoRA pairs, and modules that were saved
/// whole. Names lose what PEFT puts in for the adapter's name (`.default`). Gives the rank
/// where all dense pairs have the same.
std::optional<int64_t> write_adapter(const ShardedCheckpoint& checkpoint, const std::filesystem::path& directory);

/// Writes every parameter of `store` in the layout of `map`, with the carried tensors of `base` that the checkpoint
/// does not have. A parameter may stand in the checkpoint under any of its names and layouts, or as ScatterMoE has it:
///   <moe>.router.weight [E, H];  <moe>.w1.weight (gate), .w3 (up) [E, H, I], .w2 (down) [E, I, H]: transposed, stacked
/// One parameter is in memory at a time. Dtypes are the checkpoint's (float64: float32) unless options say otherwise.
/// UserError with the names of parameters that are missing, of tensors that belong to none, of wrong shapes.
void write_model(const ShardedCheckpoint& checkpoint, const ParameterStore& store, const Checkpoint& base,
                 const CheckpointMap& map, const std::filesystem::path& directory, const SaveOptions& options);

}  // namespace hone
