// Writing a model with its adapter merged, a few megabytes at a time: threads read pieces of the base's files, add the
// adapter, write them at their places and read them again, beside each other. Neither model is ever in memory.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "core/thread_pool.h"
#include "params/parameter_store.h"
#include "weights/checkpoint.h"

namespace hone {

struct MergeSaveOptions {
  int64_t max_shard_size = 5'000'000'000;  ///< bytes
  std::optional<DType> dtype = {};         ///< of the parameters in the files, buffers aside; unset: the base's
  FileChecksums* checksums = nullptr;      ///< is told those of the files
  /// Called with the bytes of tensors that have been written so far, from one thread at a time.
  std::function<void(int64_t bytes)> progress = {};
};

/// What was written and checked.
struct MergeReport {
  int64_t bytes = 0;     ///< of all tensors, each of which was read again and had the checksum of what was written
  int64_t tensors = 0;   ///< all
  int64_t merged = 0;    ///< W + scale · B A
  int64_t replaced = 0;  ///< that the adapter holds whole
  int64_t files = 0;
  int64_t rows = 0, sampled_rows = 0;  ///< of merged tensors
  double least_share = 1;              ///< of the rows of a merged tensor that were sampled; 1 without such tensors
  /// ‖written − (W + scale · B A)‖ / ‖scale · B A‖ over the sampled rows: how much of the adapter rounding loses.
  double lost = 0;
};

/// Reads the values of the adapter in `directory`, which the store's parameters are made for (attach_lora), and of what
/// it holds whole, as far as it does, else of the base, into host memory. No other parameter gets memory. The store's
/// parameters are float32.
void load_adapter_values(const std::filesystem::path& directory, ParameterStore& store, const Checkpoint& base,
                         const CheckpointMap& map, ThreadPool& pool);

/// Writes the base with the store's adapters merged, in the base's layout and dtypes (what is quantised there, as
/// bfloat16), as model.safetensors or as numbered shards with an index, into an existing directory. Unmerged tensors
/// keep their bytes.
///
/// Everything that was written is read again through the page cache and has the CRC-32C that it had in memory, or an
/// Error(kCheckFailed) names the tensor; so it does if a sampled row (weights/merged_tensor.h: at least 5 % of the rows
/// of each merged tensor) is not W + scale · B A. When it returns, the files are on the disk. UserError if they cannot
/// be written.
MergeReport save_merged(const std::filesystem::path& directory, const ParameterStore& store, const Checkpoint& base,
                        const CheckpointMap& map, ThreadPool& pool, const MergeSaveOptions& options);

}  // namespace hone
