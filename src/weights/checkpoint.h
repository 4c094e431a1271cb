// A Hugging Face checkpoint directory: config.json, one or several safetensors files, and accompanying files.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "params/carried_names.h"
#include "params/parameter_store.h"
#include "weights/manifest.h"
#include "weights/quantization.h"
#include "weights/safetensors.h"

namespace hone {

class GrownRows;

/// The tensors of all files of a directory, by name.
class Checkpoint {
 public:
  /// Opens the files that find_weight_files (weights/weight_files.h) names. UserError as there, and for a
  /// tensor that is in the index but in no shard, a tensor in two shards, a broken file, an unsupported quantisation,
  /// or an unfinished save (weights/model_folder.h). `ledger`, which must outlive the checkpoint, records what is read.
  static Checkpoint open(const std::filesystem::path& directory, FileLedger* ledger = nullptr);

  struct Tensor {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };

  const std::filesystem::path& directory() const { return directory_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  /// Quantisation of the weights according to config.json.
  const std::optional<Quantization>& quantization() const { return quantization_; }
  const Tensor* find(const std::string& name) const;

  /// UserError if one of the files was written to since it was opened. Thread-safe.
  void require_unchanged() const {
    for (const SafetensorsFile& file : files_) file.require_unchanged();
  }

  /// From now on the matrices `names` are read with `rows` rows (weights/grown_rows.h): their own, and for tokens that
  /// were added, the mean of these. A matrix that has as many rows already stays. UserError for one that has more, or
  /// is quantised.
  void grow(const std::vector<std::string>& names, int64_t rows);
  /// The rows of a matrix that was grown; null for any other.
  std::shared_ptr<const GrownRows> grown(const std::string& name) const;

 private:
  std::filesystem::path directory_;
  std::optional<Quantization> quantization_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::shared_ptr<const GrownRows>> grown_;
};

/// The file layout of each parameter in a checkpoint, and the checkpoint's other tensors.
struct CheckpointMap {
  std::map<const Parameter*, FileLayout> layouts;
  std::vector<std::string> carried;  ///< tensors that are not trained; saving writes them back unchanged
};

/// Finds every parameter of the store (except LoRA parameters) in the checkpoint, checks shapes, and accounts for every
/// tensor of the checkpoint. `carried` says which of the others are kept. UserError with the names of missing or
/// unexpected tensors, and of those with a wrong shape.
CheckpointMap map_checkpoint(const Checkpoint& checkpoint, const ParameterStore& store,
                             const CarriedNames& carried = {});

/// Reads every parameter from the checkpoint, and dequantises and converts it to its dtype (and to its float32 master)
/// or to 8 bits; each byte is written exactly once. `progress` gets the bytes read so far; its calls do not overlap.
void load_parameters(const Checkpoint& checkpoint, const CheckpointMap& map, ParameterStore& store, ThreadPool& pool,
                     const std::function<void(int64_t bytes)>& progress = {});

struct SaveOptions {
  int64_t max_shard_size = 5'000'000'000;  ///< bytes
  std::optional<DType> dtype = {};     ///< the dtype of parameters in the files, except buffers; unset: the source's
  FileChecksums* checksums = nullptr;  ///< receives the files' checksums
  bool finite = false;                 ///< Error(kNumbersLost) if a value of a trained parameter is not finite
};

/// Writes the parameters (except LoRA parameters) in the layout of `map` and in the dtypes of `source`, with its
/// carried tensors (quantised ones as bfloat16), as model.safetensors or as numbered shards with an index, into an
/// existing directory. Without a source: in each parameter's first layout and own dtype. Values are not sharded;
/// parameter_files (weights/tensor_file.h) gives the files of those that are.
void save_parameters(const std::filesystem::path& directory, const ParameterStore& store, const Checkpoint* source,
                     const CheckpointMap* map, const SaveOptions& options);

/// Copies the other files of a model folder: config (as unquantized_config and with_true_promises), tokenizer, chat
/// template, generation_config and other small files; not weights, adapters, optimizer state or logs.
void copy_model_files(const std::filesystem::path& from, const std::filesystem::path& to);

/// Has config.json of a folder say that its weights all have `dtype`.
void write_config_dtype(const std::filesystem::path& directory, DType dtype);

/// As write_durably (core/files/durable_file.h).
void write_text_file(const std::filesystem::path& path, const std::string& text);

}  // namespace hone
