// Reads and writes PEFT adapters (adapter_config.json and adapter_model.safetensors), in both forms of expert LoRA.
//
// Keys are base_model.model.<module>.lora_A.weight [r, in] and .lora_B.weight [out, r]. For experts:
//   split   <experts>.<e>.<projection>: an A and B per expert and projection, named as in the model's files
//   shared  PEFT target_parameters (ParamWrapper): <experts>.base_layer.lora_{A,B}.weight for gate_up and
//           <experts>.lora_{A,B}.weight for down (or for the only one); A [r·E, in] is viewed as [E, r, in],
//           expert outermost, and B [out, r·E] as [out, r, E], expert innermost. Source: PEFT 0.19 and later,
//           lora/layer.py; older versions applied A to dimension 1 of the stored tensor.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "params/lora.h"
#include "weights/manifest.h"
#include "weights/tensor_pieces.h"

namespace hone {

class Checkpoint;
struct CheckpointMap;

/// Layout of expert adapters in files.
enum class AdapterLayout {
  kSplit,             ///< per expert and projection, named as in the model's files
  kTargetParameters,  ///< PEFT target_parameters
  kKt,                ///< KTransformers: fused_expert_lora.safetensors next to adapter_model.safetensors
  kSglang,            ///< per expert and projection, named model.layers.L.mlp.experts.E.gate_proj without a prefix
  kAsTrained,         ///< as parameterised in memory: the form of checkpoints
};

/// Contents of an adapter's files: ranks, scalings and targets for attach_lora, and the kinds of weights saved in full.
struct AdapterDescription {
  LoraOptions lora;
  std::set<ParameterKind> whole;
  std::vector<std::string> warnings;  ///< what the configuration says and is not done
};

/// Whether adapters may contain full weights of this kind, as PEFT's modules_to_save: routers, the embedding, the head,
/// norms. A tied embedding is written under both names; on reading both may be present if they are equal.
bool can_be_saved_whole(ParameterKind kind);

/// Reads adapter_config.json (weights/adapter_keys.h) and the keys of the weights (weights/adapter_folder.h). UserError
/// for a setting with which the adapter is more than W + scaling · B A, a module that the model does not have, and
/// targets that are not those of the tensors (weights/adapter_coverage.h).
AdapterDescription describe_adapter(const std::filesystem::path& directory, const ParameterStore& store);

/// Reads the adapter's values into the LoRA parameters created by attach_lora (and routers that are saved in full).
/// UserError if a tensor of the file is not used exactly once, or if a LoRA parameter has no tensor.
void load_adapter(const std::filesystem::path& directory, ParameterStore& store, FileLedger* ledger = nullptr);

/// UserError if the adapter's files have a copy of a weight (PEFT adds one where an embedding or the head has an
/// adapter) that is not the base model's, rounded to the copy's dtype.
void check_copies(const std::filesystem::path& directory, const ParameterStore& store, const Checkpoint& base,
                  const CheckpointMap& map);

struct AdapterSaveOptions {
  LoraOptions lora;
  AdapterLayout layout = AdapterLayout::kSplit;  ///< the layout of expert adapters, also if trained in the other form
  std::string base_model;                        ///< base_model_name_or_path
  FileChecksums* checksums = nullptr;            ///< receives the checksums of weight files
  bool finite = false;                           ///< Error(kNumbersLost) if a value is not finite
};

/// UserError if the layout cannot represent a trained parameter: kt and sglang have no full weights and only one rank
/// and alpha.
void require_layout(const ParameterStore& store, AdapterLayout layout);

/// Writes adapter_config.json and adapter_model.safetensors (float32) into an existing folder. Shared → split is exact
/// (A is copied), also for kt and sglang, where rank-stabilised scaling becomes an equivalent alpha. Split →
/// target_parameters is exact with rank 2r: B of the fused gate_up is block-diagonal, other adapters are padded with
/// zeros, and alpha is scaled to keep the scaling; with rank or alpha patterns only the fused weights get larger ranks.
/// Other trainable weights are saved in full, as modules_to_save. rank_pattern and alpha_pattern list modules that
/// differ from r and lora_alpha, by the last part of the name if all modules with that part agree, else by the full
/// name. Experts that model files store fused only (gpt-oss) always use target_parameters, the only form in PEFT.
/// Values are not sharded; adapter_files (weights/tensor_file.h) gives the files of those that are, and
/// write_adapter_config() the rest.
void save_adapter(const std::filesystem::path& directory, const ParameterStore& store,
                  const AdapterSaveOptions& options);
void write_adapter_config(const std::filesystem::path& directory, const ParameterStore& store,
                          const AdapterSaveOptions& options);

}  // namespace hone
