// Writes a model with its adapter merged, a few megabytes at a time: threads concurrently read pieces of the base's
// files, add the adapter, write them to their final position and read them back. Neither model is ever in memory as a
// whole.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "core/cpu/thread_pool.h"
#include "params/parameter_store.h"
#include "weights/checkpoint.h"
#include "weights/rounded_base.h"

namespace hone {

struct MergeSaveOptions {
  int64_t max_shard_size = 5'000'000'000;  ///< bytes
  std::optional<DType> dtype = {};         ///< the dtype of parameters in the files, except buffers; unset: the base's
  FileChecksums* checksums = nullptr;      ///< receives the files' checksums
  PackedFormatOf rounding = {};            ///< for weights that are rounded before they are merged; unset: none
  /// Called with the bytes of tensors written so far; calls do not overlap.
  std::function<void(int64_t bytes)> progress = {};
};

/// Summary of the written files and their checks.
struct MergeReport {
  int64_t bytes = 0;     ///< the size of all tensors; all were read back and had the right checksum
  int64_t tensors = 0;   ///< in total
  int64_t merged = 0;    ///< written as W + scale · B A
  int64_t rounded = 0;   ///< W rounded by a packed format, with an adapter or without
  int64_t replaced = 0;  ///< taken in full from the adapter
  int64_t files = 0;
  int64_t rows = 0, sampled_rows = 0;  ///< rows of merged tensors
  double least_share = 1;              ///< least share of sampled rows in a merged tensor; 1 without such tensors
  /// ‖written − (W + scale · B A)‖ / ‖scale · B A‖ over the sampled rows: the share of the adapter lost by rounding.
  double lost = 0;
  double base_change = 0;  ///< ‖rounded W − W‖ / ‖W‖ over the rounded tensors
};

/// Reads the values of the adapter in `directory` into host memory; attach_lora has created the store's parameters for
/// it. Parameters that it saves in full are read from it, or from the base if absent. No other parameter gets memory.
/// The store's parameters are float32.
void load_adapter_values(const std::filesystem::path& directory, ParameterStore& store, const Checkpoint& base,
                         const CheckpointMap& map, ThreadPool& pool);

/// Writes the base with the store's adapters merged, in the base's layout and dtypes (quantised tensors as bfloat16),
/// as model.safetensors or as numbered shards with an index, into an existing directory. Unmerged tensors keep their
/// bytes.
///
/// All written data are read back through the page cache and compared with their CRC-32C in memory; at least 5 % of the
/// rows of each merged tensor (weights/merged_tensor.h) are compared with W + scale · B A. Throws Error(kCheckFailed)
/// with the tensor's name if one differs, and UserError if the files cannot be written. When it returns, the files are
/// on the disk.
MergeReport save_merged(const std::filesystem::path& directory, const ParameterStore& store, const Checkpoint& base,
                        const CheckpointMap& map, ThreadPool& pool, const MergeSaveOptions& options);

}  // namespace hone
