// A Hugging Face checkpoint directory: config.json, one or several safetensors files, and files that travel with them.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "params/parameter_store.h"
#include "weights/manifest.h"
#include "weights/quantization.h"
#include "weights/safetensors.h"

namespace hone {

/// The tensors of a directory, by name, over all its files.
class Checkpoint {
 public:
  /// Opens model.safetensors, or every shard that model.safetensors.index.json names. UserError for a missing shard, a
  /// tensor the index promises and no shard has, a tensor in two shards, a broken file, a quantisation that is not
  /// read, a save that is not finished (weights/model_folder.h). `ledger`, which outlives the checkpoint, is told what
  /// is read of the files.
  static Checkpoint open(const std::filesystem::path& directory, ReadLedger* ledger = nullptr);

  struct Tensor {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };

  const std::filesystem::path& directory() const { return directory_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  /// What its config.json says of quantised weights.
  const std::optional<Quantization>& quantization() const { return quantization_; }
  const Tensor* find(const std::string& name) const;

 private:
  std::filesystem::path directory_;
  std::optional<Quantization> quantization_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Tensor> tensors_;
};

/// Which of its layouts a checkpoint uses for each parameter, and what else the checkpoint holds.
struct CheckpointMap {
  std::map<const Parameter*, FileLayout> layouts;
  std::vector<std::string> carried;  ///< tensors that training ignores and saving writes back unchanged
};

/// Finds every parameter of the store (LoRA parameters aside) in the checkpoint, checks shapes, and accounts for every
/// tensor of the checkpoint. A name is `carried` if it starts with one of `carried_prefixes`. UserError with the names
/// of what is missing, unexpected or of a wrong shape.
CheckpointMap map_checkpoint(const Checkpoint& checkpoint, const ParameterStore& store,
                             const std::vector<std::string>& carried_prefixes = {});

/// Reads every parameter from the checkpoint, dequantising and converting to its dtype (and to its float32 master), or
/// to 8 bits: each byte written exactly once. `progress` is called with the bytes read so far, from one thread at a
/// time.
void load_parameters(const Checkpoint& checkpoint, const CheckpointMap& map, ParameterStore& store, ThreadPool& pool,
                     const std::function<void(int64_t bytes)>& progress = {});

class StateReader;

struct SaveOptions {
  int64_t max_shard_size = 5'000'000'000;  ///< bytes
  std::optional<DType> dtype = {};         ///< of the parameters in the files, buffers aside; unset: the source's
  StateReader* reader = nullptr;           ///< gets the values; null: all of them are here
  FileChecksums* checksums = nullptr;      ///< is told those of the files
  bool finite = false;                     ///< Error(kNumbersLost) if a value of a trained parameter is not finite
};

/// Writes the parameters (LoRA parameters aside) in the layout of `map` and in the dtypes of `source`, with its carried
/// tensors (what is quantised there, as bfloat16), as model.safetensors or as numbered shards with an index, into an
/// existing directory. Without a source: each parameter's first layout, in its own dtype.
void save_parameters(const std::filesystem::path& directory, const ParameterStore& store, const Checkpoint* source,
                     const CheckpointMap* map, const SaveOptions& options);

/// Copies what makes a model folder complete besides weights: config (as unquantized_config), tokenizer, chat template,
/// generation_config, and other small files; not weights, adapters, optimizer state or logs.
void copy_model_files(const std::filesystem::path& from, const std::filesystem::path& to);

/// Writes `config` as config.json of a folder whose weights are all of `dtype`.
void write_config_dtype(const std::filesystem::path& directory, const Json& config, DType dtype);

/// write_durably (core/durable_file.h).
void write_text_file(const std::filesystem::path& path, const std::string& text);

}  // namespace hone
