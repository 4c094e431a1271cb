// LoadedModel: a model folder turned into a decoder with parameters, and, if asked for, adapters.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "core/base/error.h"
#include "formats/packed_weights.h"
#include "models/registry.h"
#include "params/adapter_forms.h"
#include "params/lora.h"
#include "session/frozen_formats.h"
#include "weights/adapter.h"
#include "weights/checkpoint.h"
#include "weights/file_values.h"

namespace hone {

struct AdapterKind;

/// What a configuration states about adapters beside an adapter to continue, which has its own.
struct StatedLora {
  std::optional<int64_t> r;
  std::optional<double> alpha, dropout;
  LoraOptions others;  ///< targets, patterns and kinds; those that are empty or false say nothing

  bool any() const {
    return r || alpha || dropout || others.use_rslora || others.use_dora || !others.rank_pattern.empty() ||
           !others.alpha_pattern.empty() || selects();
  }
  bool selects() const {
    return !others.target_modules.empty() || !others.target_parameters.empty() || !others.exclude_modules.empty() ||
           !others.layers.empty();
  }
};

/// What is trained.
struct TrainableOptions {
  bool train_base = true;           ///< full fine-tuning; false: LoRA, or nothing
  std::optional<LoraOptions> lora;  ///< a new adapter
  std::filesystem::path adapter;    ///< an adapter folder to continue (empty: none)
  /// Adapters beside that one, for inference: LoadedModel::use_adapter chooses. They hold no weights whole.
  std::vector<std::filesystem::path> further_adapters = {};
  StatedLora stated;                  ///< UserError with both values where the adapter's differ
  bool train_router = true;           ///< under LoRA: the router is trained too and saved whole
  bool train_embedding = false;       ///< under LoRA, as the router; full fine-tuning trains both
  bool train_head = false;            ///< a head that is tied to the embedding is the embedding
  std::vector<std::string> freeze;    ///< patterns of parameters that are not trained
  std::vector<std::string> unfreeze;  ///< patterns that win over `freeze`
  TrainingFormats formats;            ///< the formats of gradients, masters and moments
  /// What the optimizer keeps of a parameter in these formats; empty: both moments.
  std::function<TrainingFormats(const Parameter&, const TrainingFormats&)> state_of = {};
  bool optimizer_in_backward = false;
  /// The packed format of a frozen weight of a layer (docs/precision.md), null for none; empty: all stay in dtype.
  std::function<const PackedFormat*(const Parameter&)> base_format = {};
  bool base_as_stored = false;         ///< the format in which the checkpoint has it, for those that are packed there
  std::vector<std::string> base_keep;  ///< patterns of weights that stay in dtype
  Fp8Products fp8 = {};                ///< in which matrices of layers multiply
  std::vector<std::string> fp8_keep;   ///< patterns of those that do not; none: the first one
  RankShare ranks;                     ///< that train it

  /// For inference, with an adapter or without.
  static TrainableOptions nothing(std::filesystem::path adapter = {}) {
    TrainableOptions options;
    options.train_base = options.train_router = false;
    options.adapter = std::move(adapter);
    return options;
  }
};

/// Applies what is trained: freezing, and adapters with the rank of a continued adapter's file. Before allocation.
/// Returns the adapters' options in force; empty without adapters. `warnings` receives those of a continued adapter.
std::optional<LoraOptions> set_trainable(ParameterStore& store, const TrainableOptions& options,
                                         std::vector<std::string>* warnings = nullptr);

/// The frozen matrices of layers that are packed, with their formats: those for which `format` gives one that fits, and
/// which no pattern of `keep` (base_weight_keep) matches. UserError if a pattern matches nothing.
std::map<const Parameter*, const PackedFormat*> packed_weights(
    ParameterStore& store, const std::function<const PackedFormat*(const Parameter&)>& format,
    const std::vector<std::string>& keep);
/// Sets base_format, base_as_stored and base_keep.
void hold_base_as(TrainableOptions& options, const BaseFormat& format, std::vector<std::string> keep = {});

/// What to do about experts of 8 bits on a GPU.
constexpr const char* kExpertsOnCpuFix =
    "write experts_device: cpu, which computes them on the CPU beside the GPU; or leave expert_weight_dtype out";
/// The error of experts of 8 bits on a GPU.
UserError experts_need_cpu(const std::string& where, const std::string& fix = kExpertsOnCpuFix);
/// Throws it where the device, that of the experts, holds none of this format.
void check_expert_format(const WeightFormat& experts, Device device, const std::string& where,
                         const std::string& fix = kExpertsOnCpuFix);

/// The error of adapters that read whole rows of weights, of which zero_stage 3 gives each rank a part.
UserError rows_are_sharded(const AdapterKind& kind);
/// The same where weights stay in files, of which nobody has whole rows when the adapters begin.
UserError rows_are_in_files(const AdapterKind& kind);

/// Throws UserError where the GPU has no products of this recipe.
void check_fp8(Fp8Recipe recipe, const Stream& stream);

/// Whether weights beside adapters are the adapter's own, so that the base model's are not in memory.
bool holds_whole_weights(const ParameterStore& store);

class LoadedModel {
 public:
  /// Reads config.json and the headers of the weights, and builds the decoder; no weight is read yet. UserError if
  /// `experts` are to be held in 8 bits and the model has none, or of sizes that do not fit.
  /// `vocab_rows`: rows of the embedding and the head, if more than the files have: weights/grown_rows.h adds them.
  LoadedModel(std::filesystem::path directory, DType dtype, const WeightFormat& experts = dense_format(),
              int64_t vocab_rows = 0);

  /// A model without its weights, to plan with: of config.json alone. load() is not for it.
  LoadedModel(HfConfig config, std::filesystem::path directory, DType dtype,
              const WeightFormat& experts = dense_format(), int64_t vocab_rows = 0);

  /// As above, of this model; before load(). Also a UserError if the adapter's file has a copy of a weight that differs
  /// from this model's.
  void set_trainable(const TrainableOptions& options);
  /// Allocates parameters (with optimizer state unless `inference`), reads the weights, initialises or reads adapters.
  void load(Device device, ThreadPool& pool, uint64_t seed, bool inference = false,
            const std::function<void(int64_t bytes)>& progress = {});

  const std::filesystem::path& directory() const { return directory_; }
  const HfConfig& config() const { return config_; }
  Decoder& decoder() { return *decoder_; }
  ParameterStore& store() { return store_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const CheckpointMap& map() const { return map_; }
  /// How a checkpoint of this model, its own or one that a run saved, holds the parameters.
  CheckpointMap map_of(const Checkpoint& checkpoint) const {
    return map_checkpoint(checkpoint, store_, decoder_->config().carried);
  }
  /// All rows of the embedding, if some were added to those of the files; else 0.
  int64_t added_vocab_rows() const { return added_vocab_rows_; }
  /// What config.json and the files say differently, without harm to training: sentences for the user.
  std::vector<std::string> differences() const;
  /// The adapter options in force; empty without adapters.
  const std::optional<LoraOptions>& lora() const { return lora_; }
  /// Which adapter answers from now on: 0, the first, as after load(), or one of the further ones; unset: none, which
  /// is the base model where no adapter holds weights whole (holds_whole_weights). For inference.
  void use_adapter(std::optional<size_t> adapter) { forms_.use(store_, adapter); }
  /// What the adapters' configurations say and is not done; for the user.
  const std::vector<std::string>& adapter_warnings() const { return adapter_warnings_; }

 private:
  std::filesystem::path directory_;
  HfConfig config_;
  ParameterStore store_;
  Placement placement_;
  std::unique_ptr<Decoder> decoder_;
  Checkpoint checkpoint_;
  CheckpointMap map_;
  std::unique_ptr<FileValues> file_values_;  // null: all values are in memory
  int64_t added_vocab_rows_ = 0;
  /// The packed format in which the checkpoint, or according to config.json its weights, have a parameter; or null.
  const PackedFormat* format_as_stored(const Parameter& parameter) const;
  /// Attaches one of the further adapters, and detaches it as a form.
  void attach_further(const std::filesystem::path& adapter);

  std::optional<LoraOptions> lora_;
  std::vector<std::filesystem::path> adapters_;
  AdapterForms forms_;  // one for each of these
  std::vector<std::string> adapter_warnings_;
};

}  // namespace hone
