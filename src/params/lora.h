// The adapters of a store, LoRA and related kinds (params/adapter_kind.h): their targets and options.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "params/lora_patterns.h"
#include "params/parameter_store.h"

namespace hone {

/// How the experts' adapters are parameterised.
enum class ExpertLora {
  kSplit,   ///< gate, up and down of each expert have an A and a B of their own
  kShared,  ///< PEFT target_parameters: one A for the fused gate_up
};

/// Initial values of adapters. Source: PEFT, init_lora_weights.
enum class LoraInit {
  kKaiming,   ///< A uniform in ±sqrt(1 / in) (Kaiming with a = √5), B zero
  kGaussian,  ///< A normal with standard deviation 1 / r, B zero
  kRandom,    ///< A as kKaiming, B uniform in ±sqrt(1 / r): the adapter does something from the start
};

struct LoraOptions {
  int64_t r = 16;
  double alpha = 32;
  double dropout = 0;       ///< in [0, 1)
  bool use_rslora = false;  ///< scaling alpha / sqrt(r) instead of alpha / r
  bool use_dora = false;    ///< the kind (params/adapter_kind.h): a magnitude for each output beside A and B
  ExpertLora expert_lora = ExpertLora::kSplit;
  /// attention | all-linear (attention, dense and shared MLPs) | all-experts | names | globs | re:…
  std::vector<std::string> target_modules;
  /// PEFT target_parameters: names of fused expert tensors; those get the shared parameterisation.
  std::vector<std::string> target_parameters;
  /// Written as target_modules; matches get no adapter. Those of an adapter's file are kept, not applied.
  std::vector<std::string> exclude_modules = {};
  bool exclusions_may_miss = false;  ///< one that matches nothing is not a UserError (unmatched_exclusions)
  std::vector<int64_t> layers = {};  ///< only these get adapters; empty: all
  /// Ranks and alphas other than r and alpha. The first pattern that matches an adapter counts; one that matches none
  /// is a UserError, unless they are of an adapter's file.
  std::vector<LoraPattern> rank_pattern = {}, alpha_pattern = {};
  std::string mark = {};  ///< in its parameters' names, after the module's; sets several adapters of a store apart
  bool of_files = false;  ///< read from an adapter's folder, whose tensors determine the targets
  int64_t largest_rank =
      0;  ///< the largest rank of an adapter's files; a larger one in force is a UserError. 0: no bound
  LoraInit init = LoraInit::kKaiming;

  /// alpha / rank, or alpha / sqrt(rank).
  double scaling(double alpha_in_force, int64_t rank) const;
};

/// Freezes every parameter of the store, then attaches an adapter of the kind that the options choose to each weight,
/// or part of experts' weights, that the targets select (params/adapter_targets.h, whose errors these are too); also a
/// UserError for dropout with shared experts (PEFT has none there), and for targets that the kind does not adapt. The
/// adapters' parameters (float32, trainable) are named by their target, <module> or
/// <experts>.{gate_proj,up_proj,gate_up_proj,down_proj}, the mark and a suffix (params/adapters).
void attach_lora(ParameterStore& store, const LoraOptions& options);

/// Initialises all adapters, as AttachedAdapter::initialise says. Needs the base's values, on the context's device;
/// queued there.
void initialise_lora(const Context& context, ParameterStore& store, uint64_t seed, LoraInit init = LoraInit::kKaiming);

}  // namespace hone
