// Probe: the logits of a few prompts, for comparing models that ought to compute the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "session/loaded_model.h"
#include "text/tokenizer.h"

namespace hone {

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

}  // namespace hone
