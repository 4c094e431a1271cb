// hone merge: merges an adapter into its base model and checks the result.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "nn/decoder_config.h"
#include "session/loaded_model.h"
#include "text/tokenizer.h"

namespace CLI {
class App;
}

namespace hone {

// Probe: the logits of a few prompts, to compare models that should be equal.

/// A few short prompts: texts if there is a tokenizer, else random tokens from a fixed seed.
std::vector<std::vector<int32_t>> probe_prompts(const Tokenizer* tokenizer, int64_t vocab_size);

class Probe {
 public:
  Probe(std::vector<std::vector<int32_t>> prompts, Stream& stream);

  /// Logits [T, V] of all tokens of the prompts, each prompt alone. `model` must be loaded. The first call records the
  /// routers' choices of experts, and later calls reuse them, since rounding may change the choice in a near tie. The
  /// weights of experts still come from each model's own router logits.
  std::vector<float> logits(LoadedModel& model);
  /// As logits(), but with each router's own choices, which are not recorded.
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

/// ‖a − b‖ / ‖b‖ over all elements; infinity if an element is not finite.
double relative_difference(std::span<const float> a, std::span<const float> b);

struct MergeOptions {
  std::string model, adapter, output;
  std::string dtype;  ///< the dtype of the written weights: float32 or bfloat16; "" = each as in the base
  std::string base_weight_dtype = "dtype";         ///< a packed format, or "dtype": how base weights are rounded first
  std::vector<std::string> base_weight_keep = {};  ///< patterns of those that are not
  bool compare_logits = false;      ///< compares base + adapter with the result; needs memory for a model in float32
  std::optional<double> tolerance;  ///< relative, of float32 logits; implies compare_logits. Unset: merge_tolerance()
  int64_t max_shard_size = 5'000'000'000;
  int threads = 0;                     ///< 0: all cores
  bool force = false;                  ///< replace the model in `output`
  bool output_is_free = false;         ///< the caller has checked `output` before a long run
  std::function<void()> written = {};  ///< called when the model is complete, before it is reported on
};

/// Adds --base-weight-dtype and --base-weight-keep.
void add_base_rounding(CLI::App* verb, std::string& dtype, std::vector<std::string>& keep);

/// The dtype for writing weights; nullopt for "". `verb` is for the UserError.
std::optional<DType> parse_weight_dtype(const std::string& name, const char* verb);

/// The tolerance of ‖merged − (base + adapter)‖ / ‖base + adapter‖ for float32 logits. A product of depth K has a
/// relative rounding error of about √K · 2^-24; the errors of 4 consecutive products in each of L layers and of the
/// head add up in quadrature: √(K (4L + 1)) · 2^-24, times 16 for norms and cancelling sums.
double merge_tolerance(const DecoderConfig& model);

/// The tolerance of the relative change of logits when all weights are rounded to `dtype`. A weight changes by at most
/// u of its value (2^-8 in bfloat16, 2^-11 in float16), about u / 2 on average and independently, so each product
/// changes by as much, and the 4L + 1 consecutive products by √(4L + 1) · u / 2, times 4. For float32,
/// merge_tolerance().
double rounding_tolerance(const DecoderConfig& model, DType dtype);

/// Writes W + scale · B A, with W of the base's files or rounded by a packed format, computed in float32, in the base's
/// layout and dtypes, and checks the written files (weights/merged_model.h): the bytes of every tensor, and the product
/// in 5 % of the rows of each. With compare_logits, compares the logits of base + adapter on a few prompts with those
/// of a merge in memory and with those of the written files. If a check fails, throws Error(kCheckFailed) and leaves no
/// output. Returns the exit code.
int run_merge(const MergeOptions& options);

}  // namespace hone
