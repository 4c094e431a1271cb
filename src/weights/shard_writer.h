// Writes a model's tensors: as model.safetensors, as numbered shards with an index, or at given positions of a file
// that several threads write.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "weights/checkpoint.h"
#include "weights/placed_file.h"
#include "weights/safetensors.h"
#include "weights/stored_tensor.h"

namespace hone {

// Checks for NaN and infinity before saving.

/// Whether none of `count` elements (float32, bfloat16 or float16) is NaN or infinite.
bool all_finite(DType dtype, const std::byte* elements, int64_t count);

/// Error(kNumbersLost) with `name` if one of `count` elements (float32, bfloat16 or float16) is NaN or infinite.
void require_finite(const std::string& name, DType dtype, const std::byte* elements, int64_t count);

/// A tensor of a file that holds a slice of a parameter.
struct SavedSlice {
  SafetensorsWriter::Announced announced;
  const Parameter* parameter = nullptr;
  FileTensor slice = {};
};

/// The file tensors of the store's parameters (except LoRA parameters), in writing order: in the layout of `map` and
/// the dtypes of `source`; without those in each parameter's first layout and own dtype. `dtype`, if set, applies to
/// all but buffers.
std::vector<SavedSlice> saved_slices(const ParameterStore& store, const Checkpoint* source, const CheckpointMap* map,
                                     std::optional<DType> dtype);

/// A tensor that belongs to no parameter and is not trained. It is written unchanged, or as bfloat16 if quantised.
struct CarriedTensor {
  SafetensorsWriter::Announced announced;
  StoredTensor stored;
};

/// The carried tensors of `source`, which must outlive the result. Quantisation scales are not included.
std::vector<CarriedTensor> carried_slices(const Checkpoint& source, const CheckpointMap& map);

/// A weight file and its tensors [begin, end).
struct ShardRange {
  std::string name;
  size_t begin = 0, end = 0;
};

/// Distributes tensors in order to files: model.safetensors, or numbered shards of at most `max_shard_size` bytes of
/// tensors unless a single tensor is larger.
std::vector<ShardRange> plan_shards(std::span<const SafetensorsWriter::Announced> tensors, int64_t max_shard_size);

/// Writes model.safetensors.index.json; does nothing for a single file.
void write_index(const std::filesystem::path& directory, std::span<const ShardRange> shards,
                 std::span<const SafetensorsWriter::Announced> tensors);

/// A tensor, and the function that writes its elements.
struct PlannedTensor {
  SafetensorsWriter::Announced announced;
  std::function<void(SafetensorsWriter& writer)> write;
};

/// Writes the tensors in order into an existing folder; a shard is no larger than `max_shard_size` bytes unless a
/// single tensor is. `checksums`, unless null, receives those of the weight files.
void write_shards(const std::filesystem::path& directory, const std::vector<PlannedTensor>& tensors,
                  int64_t max_shard_size, FileChecksums* checksums);

/// Takes bytes that follow one another.
using PutBytes = std::function<void(std::span<const std::byte> bytes)>;

/// Reads elements `elements` of a tensor of a checkpoint as `dtype`, a piece at a time.
void put_stored(const StoredTensor& stored, DType dtype, Slice elements, const PutBytes& put);
/// Writes all `numel` elements of it.
inline void write_stored(SafetensorsWriter& writer, const StoredTensor& stored, DType dtype, int64_t numel) {
  put_stored(stored, dtype, {0, numel},
             [&](std::span<const std::byte> bytes) { writer.write(bytes.data(), bytes.size()); });
}

/// carried_slices() with functions that write them. `source` must outlive the result.
std::vector<PlannedTensor> carried_tensors(const Checkpoint& source, const CheckpointMap& map);

// A safetensors file whose tensors several threads write at their positions in any order, and which is read back before
// it is renamed to its final name.

/// Writes one file under a temporary name.
class PlacedWriter {
 public:
  /// Opens a temporary file of the final size next to `path`, and writes the header. UserError if the folder is not
  /// writable.
  PlacedWriter(std::filesystem::path path, const std::vector<SafetensorsWriter::Announced>& tensors);
  ~PlacedWriter();
  PlacedWriter(const PlacedWriter&) = delete;
  PlacedWriter& operator=(const PlacedWriter&) = delete;

  const std::filesystem::path& temporary() const { return temporary_; }

  /// Writes bytes of tensor number `tensor` from `offset` on, and starts their writeback. UserError if the disk is full
  /// or fails. Thread-safe.
  void write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  /// Reads the same bytes back, located by the tensor's name in the file's own header. Thread-safe.
  void read(size_t tensor, uint64_t offset, std::span<std::byte> bytes) const;
  /// Waits until all written bytes are on the disk. UserError if the disk fails. May run concurrently with read().
  void sync();
  /// Renames the synced file to its final name. `tensors` is the CRC of its tensor bytes; returns the file's checksum.
  FileChecksum finish(uint32_t tensors);

 private:
  std::filesystem::path path_, temporary_;
  PlacedLayout layout_;
  std::optional<PlacedFile> file_;
  bool synced_ = false, finished_ = false;
  std::optional<SafetensorsFile> written_;
  std::vector<const SafetensorsEntry*> entries_;
};

}  // namespace hone
