// A reference case: what another trainer computed on a small checkpoint, as numbers to be reproduced.
//
// Files of a case, all produced by tools/make_case.py:
//   model/                         a Hugging Face checkpoint
//   batches.safetensors            input_ids, labels [N, B, S]; labels aligned with input_ids, -100 not trained on
//   logits.safetensors             logits [B, S, V] of batch 0
//   grads, packed_grads, accumulation_grads, full_final .safetensors   tensors by canonical parameter name
//   full_change.safetensors        of a thinned case (thinned_case.h), instead of full_final: what training changed
//   lora_{attention,dora,experts}_{init,final}/                       PEFT adapters
//   split_adapter/                 a per-expert adapter, and expected.safetensors: its logits and gradients
//   expected.json                  everything that is not a tensor
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace hone {

struct ReferenceStep {
  double loss = 0;  ///< with the auxiliary loss where the case has one
  std::optional<double> aux_loss;
  double grad_norm = 0;  ///< before clipping
};

/// What is stored of the change of weights in a run that was made again on jittered weights; measured as
/// compare_updates does.
struct ChangeNoise {
  double all = 0;                         ///< over all tensors
  std::map<std::string, double> tensors;  ///< of each; one that is not here has none
};

/// How far the reference itself moves from a run when its weights are half an ulp off (tools/case_runs.py): where two
/// experts of a token are nearly tied, that decides which one is taken. Relative, and of each step the largest so far.
struct ReferenceNoise {
  std::vector<double> loss, aux_loss, grad_norm;  ///< of each step; aux_loss empty if the run has none
  ChangeNoise change;
};

/// Noise up to which twice of it is still a bound that something can exceed: a run that changes nothing is 1 off in the
/// change of its weights, and the losses of a case move by a few hundredths in a run. A case with more is refused.
constexpr double kMostNumberNoise = 0.02;
constexpr double kMostChangeNoise = 0.2;

/// AdamW with decay on every parameter.
struct ReferenceOptimizer {
  AdamwOptions adamw;
  GroupOptions groups;
  double max_grad_norm = 1;

  OptimizerOptions options() const { return {groups_of(adamw_rule(adamw), groups), max_grad_norm}; }
};

/// A training run, one batch a step.
struct ReferenceRun {
  double learning_rate = 0;  ///< constant
  ReferenceOptimizer optimizer;
  std::vector<ReferenceStep> steps;
  std::optional<ReferenceNoise> noise;  ///< none: the bounds of the format are those of the run
};

/// A sequence with its labels, a document of its own in a packed micro-batch.
struct LabelledDocument {
  std::vector<int32_t> input_ids, labels;
};

/// Documents and the loss of each next token, every document run alone.
struct ReferenceDocuments {
  std::vector<LabelledDocument> documents;
  std::vector<std::vector<double>> token_losses;
};

struct ReferenceAccumulation {
  std::vector<int64_t> batches;
  int64_t supervised_tokens = 0;
  double loss = 0, grad_norm = 0;
};

struct ReferenceGeneration {
  std::vector<int32_t> prompt, tokens;
};

/// expected.json and batches.safetensors, read and checked. Tensors are read where they are compared.
struct GoldenCase {
  std::filesystem::path directory;
  bool aux = false;  ///< losses include router_aux_loss_coef × the auxiliary loss
  double loss = 0;   ///< of batch 0
  std::optional<double> aux_loss;
  std::map<std::string, double> bfloat16_gradient_error;  ///< ‖g_bf16 − g_f32‖ / ‖g_f32‖ of the reference itself
  ReferenceDocuments documents;
  ReferenceAccumulation accumulation;
  ReferenceGeneration greedy;
  bool split_adapter = false;
  ReferenceRun full;
  std::optional<ReferenceRun> lora_attention, lora_dora, lora_experts;
  std::vector<std::vector<LabelledDocument>> batches;  ///< [N][B]

  /// UserError if a file is missing or not in the format.
  static GoldenCase read(const std::filesystem::path& directory);
};

}  // namespace hone
