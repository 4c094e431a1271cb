// Writing a model's tensors: as model.safetensors, as numbered shards with an index, or each at its place in a file
// that several threads write.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"
#include "weights/stored_tensor.h"

namespace hone {

// Whether numbers are still numbers before they are saved.

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

// A safetensors file whose tensors are written at their places, by several threads and in any order, and read again
// before the file gets its name.

/// Writes one file under a temporary name.
class PlacedWriter {
 public:
  /// Opens a temporary file beside `path`, as long as the whole file will be, and writes the header. UserError if the
  /// folder is not writable.
  PlacedWriter(std::filesystem::path path, std::vector<SafetensorsWriter::Announced> tensors);
  ~PlacedWriter();
  PlacedWriter(const PlacedWriter&) = delete;
  PlacedWriter& operator=(const PlacedWriter&) = delete;

  const std::filesystem::path& temporary() const { return temporary_; }

  /// Bytes of tensor number `tensor` from `offset` on; the disk begins with them at once. UserError if the disk is
  /// full or fails. Thread-safe.
  void write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  /// The same bytes as the file has them now, found by the tensor's name in the file's own header. Thread-safe.
  void read(size_t tensor, uint64_t offset, std::span<std::byte> bytes) const;
  /// Waits until what has been written is on the disk. UserError if the disk cannot hold it. May run beside read().
  void sync();
  /// Gives the synced file its name. The checksum of the file, whose tensors' bytes sum up to `tensors`.
  FileChecksum finish(uint32_t tensors);

 private:
  void put(uint64_t offset, std::span<const std::byte> bytes);

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
  bool synced_ = false;
  uint64_t header_bytes_ = 0, file_bytes_ = 0;
  uint32_t header_crc_ = 0;
  std::vector<uint64_t> begins_;  // in the file, of the tensors
  std::optional<SafetensorsFile> written_;
  std::vector<const SafetensorsEntry*> entries_;
};

}  // namespace hone
