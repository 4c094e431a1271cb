// TensorFile: a safetensors file of a checkpoint whose tensors are made a part at a time from a model's training state,
// so that several ranks and threads write one file. Its bytes do not depend on which of them writes which part.
//
// A rank writes what it holds: the file's order is mostly the order in memory, so bytes travel between ranks only for a
// matrix that the file holds in another order and that no rank has whole, and for some layouts of adapters.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "weights/placed_file.h"
#include "weights/shard_writer.h"
#include "weights/tensor_pieces.h"

namespace hone {

/// Elements of a part of a parameter's training state.
struct StateRange {
  const Parameter* parameter = nullptr;
  StatePart part = StatePart::kValue;
  Slice elements;  ///< which elements of the global tensor
};

/// Makes the elements of a file's tensor.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// Elements of the file's tensor that are made together, such as a matrix that is transposed: parts consist of whole
  /// units.
  virtual int64_t unit() const { return 1; }
  /// The state of which `elements` are made; empty: they are made of files, which every rank can read. With a unit of
  /// one element, element i is made of element i of a single range.
  virtual std::vector<StateRange> state_of(Slice elements) const = 0;
  /// Makes `elements` in the file's dtype, one after another, reading state_of(elements) through `reader`. Thread-safe,
  /// with a reader per thread.
  virtual void make(Slice elements, StateReader& reader, const PutBytes& put) const = 0;
};

struct SourcedTensor {
  SafetensorsWriter::Announced announced;
  std::shared_ptr<const TensorSource> source;
};

struct TensorFile {
  std::string name;
  std::vector<SourcedTensor> tensors;

  std::vector<SafetensorsWriter::Announced> announced() const;
};

/// A tensor whose elements are those of `state` from its first element on, in the same order, converted to the file's
/// dtype. `finite`: Error(kNumbersLost) with this name if one is not finite; "": not checked.
SourcedTensor run_of(SafetensorsWriter::Announced announced, const StateRange& state, std::string finite = "");

/// Appends `count` elements as `to` (float32, bfloat16, float16, or the same dtype).
void put_converted(DType to, const std::byte* elements, DType from, int64_t count, const PutBytes& put);

/// The files that save_parameters (checkpoint.h) writes: model.safetensors, or numbered shards. The arguments must
/// outlive the result.
std::vector<TensorFile> parameter_files(const ParameterStore& store, const Checkpoint* source, const CheckpointMap* map,
                                        const SaveOptions& options);

struct AdapterSaveOptions;
/// The files with tensors that save_adapter (adapter.h) writes. The store must outlive the result.
std::vector<TensorFile> adapter_files(const ParameterStore& store, const AdapterSaveOptions& options);

// Dealing the files to ranks, and writing them.

/// A part of a file's tensor that one rank writes.
struct FilePart {
  size_t file = 0, tensor = 0;
  Slice elements;
  int writer = 0;
  bool travels = false;  ///< the writer lacks some of its state
};

/// Cuts the files into parts and gives each a writer, the same on all ranks. A rank writes the state that it alone
/// holds; what all ranks hold is dealt such that all write about as many bytes. A matrix in parts of several ranks goes
/// to the one that has most of it. Parts have at most 64 MiB unless a unit is larger.
std::vector<FilePart> deal(std::span<const TensorFile> files, int ranks);

/// The files of a folder, as one rank writes parts of them.
class PartWriter {
 public:
  /// Nothing is opened yet. `files` must outlive it.
  PartWriter(std::filesystem::path directory, std::span<const TensorFile> files);

  /// On the first rank, before others write: creates all files with their sizes and headers, in place of earlier files.
  void create_files();
  /// Writes a part. Thread-safe, with a reader per thread. UserError if the disk is full or fails.
  void write(const FilePart& part, StateReader& reader);
  /// Waits until everything that was written is on the disk.
  void sync();

  /// What was written, with its checksums.
  FileLedger& ledger() { return ledger_; }
  /// On the first rank, after the ledgers of the others were merged into its own: the checksums of the files, whose
  /// every byte must have been written once.
  FileChecksums checksums() const;

 private:
  struct OpenFile {
    explicit OpenFile(PlacedLayout of) : layout(std::move(of)) {}
    PlacedLayout layout;
    std::optional<PlacedFile> file;
    std::once_flag opened;
  };
  PlacedFile& open(size_t file);

  const std::filesystem::path directory_;
  const std::span<const TensorFile> files_;
  std::vector<std::unique_ptr<OpenFile>> open_;
  FileLedger ledger_;
};

/// Host memory that writing takes at most for what is on a GPU, beside matrices whose order changes: buffers of
/// PieceReader for each thread.
inline constexpr int64_t kWritingMemory = int64_t{128} << 20;

/// Has `write(part, reader)` called for each part on a few threads of the pool, or on this one without a pool. After an
/// exception no further part is begun.
void for_each_part(std::span<const FilePart> parts, ThreadPool* pool,
                   const std::function<void(const FilePart& part, StateReader& reader)>& write);

/// Writes the files into an existing folder; their state is whole on this rank. After an error none of them is left.
/// `checksums`, unless null, receives their checksums.
void write_files(const std::filesystem::path& directory, std::span<const TensorFile> files, FileChecksums* checksums,
                 ThreadPool* pool = nullptr);

/// As write_index (shard_writer.h).
void write_index(const std::filesystem::path& directory, std::span<const TensorFile> files);

}  // namespace hone
