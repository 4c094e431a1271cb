// hone merge: an adapter merged into its base model, with checks that nothing was lost.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "nn/decoder_config.h"
#include "session/loaded_model.h"
#include "text/tokenizer.h"

namespace hone {

// Probe: the logits of a few prompts, for comparing models that ought to compute the same.

/// A few short prompts: texts if there is a tokenizer, else tokens drawn by a fixed seed.
std::vector<std::vector<int32_t>> probe_prompts(const Tokenizer* tokenizer, int64_t vocab_size);

class Probe {
 public:
  Probe(std::vector<std::vector<int32_t>> prompts, Stream& stream);

  /// Logits [T, V] of every token of the prompts, each prompt alone. `model` is loaded.
  /// The first call records which experts the routers choose; later ones use the same, since rounding alone may turn a
  /// near tie and the comparison is of the weights. Routers' weights still come from their own logits.
  std::vector<float> logits(LoadedModel& model);
  /// As logits, with each router's own choices, and without recording them.
  std::vector<float> free_logits(LoadedModel& model) { return run(model, Routing::kOwn); }

 private:
  enum class Routing { kOwn, kRecord, kForced };

  std::vector<float> run(LoadedModel& model, Routing routing);
  void allocate_choices(const DecoderConfig& config);

  std::vector<std::vector<int32_t>> prompts_;
  Stream& stream_;
  Buffer choice_memory_;
  std::vector<Tensor> choices_;  // i32 [T, k] for each MoE layer
  bool recorded_ = false;
};

/// ‖a − b‖ / ‖b‖ over all elements; infinite if a number is not finite.
double relative_difference(std::span<const float> a, std::span<const float> b);

struct MergeOptions {
  std::string model, adapter, output;
  std::string dtype;                ///< of the written weights: float32 or bfloat16; "" = each as in the base
  bool compare_logits = false;      ///< of base + adapter and of the result; needs memory for a model in float32
  std::optional<double> tolerance;  ///< of float32 logits, relative; asks for compare_logits. Unset: merge_tolerance()
  int64_t max_shard_size = 5'000'000'000;
  int threads = 0;              ///< 0: all cores
  bool force = false;           ///< replace the model in `output`
  bool output_is_free = false;  ///< the caller has made sure of it, before a long run
};

/// The dtype that weights are to be written in; none for "". `verb` is for the UserError.
std::optional<DType> parse_weight_dtype(const std::string& name, const char* verb);

/// How far logits in float32 may drift, ‖merged − (base + adapter)‖ / ‖base + adapter‖. A product of depth K rounds
/// each result by about √K · 2^-24 of its size; the errors of the 4 products in a row of each of L layers and of the
/// head add up in quadrature: √(K (4L + 1)) · 2^-24, times 16 for norms and cancelling sums.
double merge_tolerance(const DecoderConfig& model);

/// How far rounding every weight to `dtype` may move logits, relative. A weight moves by at most u of itself (2^-8 in
/// bfloat16, 2^-11 in float16), by about u / 2 in the mean and independently of the others, so each product by as much,
/// and the 4L + 1 products in a row by √(4L + 1) · u / 2, times 4. Of float32 it is merge_tolerance().
double rounding_tolerance(const DecoderConfig& model, DType dtype);

/// Writes W + scale · B A, formed in float32, in the base's layout and dtypes, and checks what it wrote
/// (weights/merged_model.h): the bytes of every tensor, and the product in 5 % of the rows of each. With
/// compare_logits also computes the logits of base + adapter on a few prompts, merges in memory and compares, and
/// compares again with the files that were written. Error(kCheckFailed) and nothing written if a check fails. Returns
/// the exit code.
int run_merge(const MergeOptions& options);

}  // namespace hone
