// LoRA: which weights get a low-rank adapter, and the adapters' parameters.
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

/// What the adapters begin with. Source: PEFT, init_lora_weights.
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
  bool use_dora = false;    ///< a magnitude for each output beside A and B (ops/dora); of linear weights alone
  ExpertLora expert_lora = ExpertLora::kSplit;
  /// attention | all-linear (attention, dense and shared MLPs) | all-experts | names | globs | re:…
  std::vector<std::string> target_modules;
  /// PEFT target_parameters: names of fused expert tensors; those get the shared parameterisation.
  std::vector<std::string> target_parameters;
  /// Written as target_modules; what they select gets no adapter.
  std::vector<std::string> exclude_modules = {};
  std::vector<int64_t> layers = {};  ///< only these get adapters; empty: all
  /// Ranks and alphas other than r and alpha. The first pattern that matches an adapter counts; one that matches none
  /// is a UserError, unless they are of an adapter's file.
  std::vector<LoraPattern> rank_pattern = {}, alpha_pattern = {};
  bool patterns_may_miss = false;
  int64_t largest_rank =
      0;  ///< that an adapter's files have room for; a larger one in force is a UserError. 0: no bound
  LoraInit init = LoraInit::kKaiming;

  /// alpha / rank, or alpha / sqrt(rank).
  double scaling(double alpha_in_force, int64_t rank) const;
};

/// Freezes every parameter of the store, then adds lora_a and lora_b (float32, trainable) for each weight the targets
/// select and attaches them. A target or exclusion that matches nothing adaptable is a UserError; so are exclusions
/// that leave nothing, layers the model does not have, dropout with shared experts (PEFT has none there), and DoRA of
/// experts or of the head. Names: <module>.lora_A.weight [r, in], <module>.lora_B.weight [out, r] and
/// <module>.lora_magnitude_vector [out]; for experts <experts>.{gate_proj,up_proj,gate_up_proj,down_proj}.lora_A
/// [E, r, in] and .lora_B [E, out, r].
void attach_lora(ParameterStore& store, const LoraOptions& options);

/// From the seed and the parameter's name only; magnitudes are the norms of the rows of W + scaling · B A, so that DoRA
/// begins as LoRA does. Needs the base's values, on the context's device; queued there.
void initialise_lora(const Context& context, ParameterStore& store, uint64_t seed, LoraInit init = LoraInit::kKaiming);

}  // namespace hone
