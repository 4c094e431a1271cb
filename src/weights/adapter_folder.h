// The tensors of an adapter's folder by PEFT's keys, whichever program wrote it and however it calls them.
//
// Besides PEFT's own keys these are read: no prefix base_model.model.; an adapter's name in the key
// (lora_A.default.weight); modules_to_save[.NAME] in it; orig_module of KTransformers; the wrappers of FSDP,
// torch.compile and activation checkpointing; language_model in a key of a model without it, and none in one of a model
// with it; any name that the model's files may have for the module (block_sparse_moe.gate).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "params/parameter_store.h"
#include "weights/manifest.h"
#include "weights/safetensors.h"
#include "weights/saved_tensor.h"

namespace hone {

/// An adapter's file of weights: adapter_model.safetensors or, without it, adapter_model.bin of torch.save.
class AdapterWeights {
 public:
  /// UserError if the folder has neither, or is unfinished (weights/model_folder.h).
  explicit AdapterWeights(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return safe_ ? safe_->path() : saved_->path(); }
  const std::vector<SafetensorsEntry>& entries() const { return safe_ ? safe_->entries() : entries_; }
  /// Elements [first, first + count) of a tensor as float32. Thread-safe.
  void read_floats(const SafetensorsEntry& entry, int64_t first, float* destination, int64_t count) const;
  std::vector<float> read_floats(const SafetensorsEntry& entry) const;
  /// As SafetensorsFile::record_reads; adapter_model.bin has no manifest.
  void record_reads(FileLedger* ledger);

 private:
  std::optional<SafetensorsFile> safe_;
  std::optional<FileBytes> saved_;
  std::vector<SafetensorsEntry> entries_;  // the entries of saved_
  std::map<std::string, SavedTensor> tensors_;
};

/// Rows of the embedding or the head that an adapter's folder holds whole; 0 if it holds neither, or has no weights.
/// More than the base has: tokens were added for the adapter (weights/grown_rows.h).
int64_t vocab_rows_of_adapter(const std::filesystem::path& folder);

class AdapterFolder {
 public:
  /// UserError for two tensors of one key that differ, and for the tensors of several adapters.
  AdapterFolder(const std::filesystem::path& directory, const ParameterStore& store, FileLedger* ledger = nullptr);

  const AdapterWeights& main() const { return main_; }
  /// KTransformers' tensors of all experts of a layer; null if there is no such file.
  const SafetensorsFile* kt() const { return kt_ ? &*kt_ : nullptr; }
  /// Tensors by PEFT's key, with the names of this model, except copies().
  const std::map<std::string, const SafetensorsEntry*>& by_key() const { return by_key_; }
  const SafetensorsEntry* find(const std::string& key) const;
  const SafetensorsEntry& at(const std::string& key) const;
  /// Copies of the base model's own weights, which PEFT adds where an embedding or the head has an adapter, by the
  /// weights' names.
  const std::map<std::string, const SafetensorsEntry*>& copies() const { return copies_; }
  /// Weights saved whole that the file has once more with the same values: PEFT's modules_to_save of an embedding and a
  /// head that were resized.
  const std::vector<const SafetensorsEntry*>& doubles() const { return doubles_; }
  /// Rows of the largest A: an upper bound of the rank, which is lower if experts share an A.
  int64_t largest_rank() const;

 private:
  AdapterWeights main_;
  std::optional<SafetensorsFile> kt_;
  std::map<std::string, const SafetensorsEntry*> by_key_, copies_;
  std::vector<const SafetensorsEntry*> doubles_;
};

}  // namespace hone
