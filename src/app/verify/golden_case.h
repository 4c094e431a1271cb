// A reference case: results that another trainer computed on a small checkpoint, to be reproduced.
//
// Files of a case, all produced by tools/make_case.py:
//   model/                         a Hugging Face checkpoint
//   batches.safetensors            input_ids, labels [N, B, S]; labels aligned with input_ids, -100 not trained on
//   logits.safetensors             logits [B, S, V] of batch 0
//   grads, packed_grads, accumulation_grads, full_final .safetensors   tensors by canonical parameter name
//   full_change.safetensors        in a thinned case (thinned_case.h), instead of full_final: the changes by training
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
  double loss = 0;  ///< with the auxiliary loss if the case has one
  std::optional<double> aux_loss;
  double grad_norm = 0;  ///< before clipping
};

/// Noise of the change of weights, from a repetition of the run with jittered weights. Measured as compare_updates
/// does.
struct ChangeNoise {
  double all = 0;                         ///< over all tensors
  std::map<std::string, double> tensors;  ///< by tensor; 0 for a missing one
};

/// The change of the reference's own results when its weights change by half an ulp (tools/case_runs.py), which decides
/// between nearly tied experts of a token. Relative; for each step the largest value so far.
struct ReferenceNoise {
  std::vector<double> loss, aux_loss, grad_norm;  ///< by step; aux_loss is empty if the run has none
  ChangeNoise change;
};

/// Noise of gradients by tensor, measured as compare_gradients does; 0 for a missing one.
using GradientNoise = std::map<std::string, double>;

/// How far the rows without training move when the reference's weights change by half an ulp: the largest of several
/// seeds, by the measure of each row (tools/case_rows.py). All 0: the bounds of the format apply.
struct RowNoise {
  double logits = 0, loss = 0, aux_loss = 0;
  double token_losses = 0;  ///< in nats: the largest of all tokens of all documents
  double accumulation_loss = 0, accumulation_grad_norm = 0;
  double split_logits = 0;
  GradientNoise gradients, packed_gradients, accumulation_gradients, split_gradients;
};

/// AdamW with weight decay on all parameters.
struct ReferenceOptimizer {
  AdamwOptions adamw;
  GroupOptions groups;
  double max_grad_norm = 1;

  OptimizerOptions options() const { return {groups_of(adamw_rule(adamw), groups), max_grad_norm}; }
};

/// A training run with one batch per step.
struct ReferenceRun {
  double learning_rate = 0;  ///< constant
  ReferenceOptimizer optimizer;
  std::vector<ReferenceStep> steps;
  std::optional<ReferenceNoise> noise;  ///< nullopt: the bounds of the format apply
};

/// A sequence with its labels; one document of a packed micro-batch.
struct LabelledDocument {
  std::vector<int32_t> input_ids, labels;
};

/// Documents and the losses of their next tokens, computed for each document alone.
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

/// The contents of expected.json and batches.safetensors. Tensors are read when they are compared.
struct GoldenCase {
  std::filesystem::path directory;
  bool aux = false;  ///< losses include router_aux_loss_coef × the auxiliary loss
  double loss = 0;   ///< the loss of batch 0
  std::optional<double> aux_loss;
  std::map<std::string, double> bfloat16_gradient_error;  ///< the reference's own ‖g_bf16 − g_f32‖ / ‖g_f32‖
  ReferenceDocuments documents;
  ReferenceAccumulation accumulation;
  ReferenceGeneration greedy;
  bool split_adapter = false;
  RowNoise noise;  ///< the noise of all rows but those of runs, which have their own
  ReferenceRun full;
  std::optional<ReferenceRun> lora_attention, lora_dora, lora_experts;
  std::vector<std::vector<LabelledDocument>> batches;  ///< [N][B]

  /// Throws UserError if a file is missing or invalid.
  static GoldenCase read(const std::filesystem::path& directory);
};

}  // namespace hone
