// PEFT adapters: adapter_config.json and adapter_model.safetensors, in both parameterisations of expert LoRA.
//
// Keys are base_model.model.<module>.lora_A.weight [r, in] and .lora_B.weight [out, r]. For experts:
//   split   <experts>.<e>.<projection>, one A and B for each expert and projection, under the names files use
//   shared  PEFT target_parameters (ParamWrapper): <experts>.base_layer.lora_{A,B}.weight for gate_up and
//           <experts>.lora_{A,B}.weight for down (or the one that is alone); A [r·E, in] is viewed as [E, r, in],
//           expert outermost, and B [out, r·E] as [out, r, E], expert innermost. Source: PEFT 0.19 and later,
//           lora/layer.py; older versions applied A to dimension 1 of the stored tensor.
#pragma once

#include <filesystem>
#include <set>

#include "params/lora.h"
#include "weights/manifest.h"
#include "weights/tensor_pieces.h"

namespace hone {

/// How expert adapters stand in files.
enum class AdapterLayout {
  kSplit,             ///< per expert and projection, under the names the model's files use
  kTargetParameters,  ///< PEFT target_parameters
  kKt,                ///< KTransformers: fused_expert_lora.safetensors beside adapter_model.safetensors
  kSglang,            ///< per expert and projection, named model.layers.L.mlp.experts.E.gate_proj without a prefix
  kAsTrained,         ///< as they are parameterised in memory: what a checkpoint needs to go on
};

/// What an adapter folder says: ranks, scalings and targets as attach_lora takes them, and the kinds of weights that
/// are saved whole.
struct AdapterDescription {
  LoraOptions lora;
  std::set<ParameterKind> whole;
};

/// The kinds of weights that adapters hold whole, as PEFT's modules_to_save: routers, the embedding, the head, norms.
/// A tied embedding is written under both names, and read where both are there and equal.
bool can_be_saved_whole(ParameterKind kind);

/// Reads adapter_config.json and the keys of adapter_model.safetensors. UserError names what is not supported (bias,
/// …) or a module the model does not have.
AdapterDescription describe_adapter(const std::filesystem::path& directory, const ParameterStore& store);

/// Reads the adapter's values into the LoRA parameters that attach_lora made (and routers that are saved whole). Every
/// tensor of the file is used once and every LoRA parameter is written, or a UserError names them.
void load_adapter(const std::filesystem::path& directory, ParameterStore& store, ReadLedger* ledger = nullptr);

struct AdapterSaveOptions {
  LoraOptions lora;
  AdapterLayout layout = AdapterLayout::kSplit;  ///< of expert adapters, where the other one was trained too
  std::string base_model;                        ///< base_model_name_or_path
  FileChecksums* checksums = nullptr;            ///< is told those of the files of weights
  bool finite = false;                           ///< Error(kNumbersLost) if a value is not finite
  StateReader* reader = nullptr;                 ///< of values that ranks keep parts of; null: all are whole here
};

/// UserError if the layout has no place for what the store trains: weights saved whole, and ranks or alphas of their
/// own, in kt and sglang.
void require_layout(const ParameterStore& store, AdapterLayout layout);

/// Writes adapter_config.json and adapter_model.safetensors (float32) into an existing folder. Shared → split is exact
/// (A is copied), for kt and sglang too, which write rank-stabilised scaling as an alpha that says the same.
/// Split → target_parameters is exact with rank 2r: B of the fused gate_up is block-diagonal, every
/// other adapter is padded with zeros, and alpha grows so that the scaling stays; with rank or alpha patterns the fused
/// weights get ranks of their own instead. Trainable weights that are no adapters are saved whole, as modules_to_save.
/// rank_pattern and alpha_pattern name what differs from r and lora_alpha, by the last part of names where all such
/// modules are alike, else by whole names. Experts that no file holds one by one (gpt-oss) always get
/// target_parameters: PEFT has no other form.
void save_adapter(const std::filesystem::path& directory, const ParameterStore& store,
                  const AdapterSaveOptions& options);

}  // namespace hone
