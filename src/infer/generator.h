// Generator: continues many prompts at once, each as if it were alone.
//
// Sequences live in the slots of a cache of keys, values and states. A pass of the model runs one token of every
// sequence that is being answered and, packed beside them, the next pieces of prompts that are still being read. A
// sequence that has ended leaves the batch at once, and the next prompt takes its slot.
#pragma once

#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "core/graph_cache.h"
#include "dist/control.h"
#include "infer/generation_schedule.h"
#include "infer/sampling.h"
#include "nn/decoder.h"

namespace hone {

/// How ranks that keep parts of the model's values generate the same answers at the same time.
struct GenerateTogether {
  GroupObserver* values = nullptr;  ///< brings the values of a group for its use; null: all are whole
  Control* control = nullptr;       ///< the first rank's tokens are everybody's: GPUs may round differently
};

struct GeneratorOptions {
  int64_t max_sequences = 16;         ///< that run at once; further prompts wait in order
  int64_t max_length = 0;             ///< tokens of the longest sequence, prompt and answer
  int64_t max_prefill_tokens = 2048;  ///< prompt tokens a pass reads; longer prompts are read in pieces of that many
  GraphUse cuda_graphs = GraphUse::kAuto;  ///< for passes of sizes that come again, as those of one token each do
  /// What the cache holds of a sequence is used again where the next one begins with the same tokens, as the turns of a
  /// chat do. One prompt a request, and max_sequences is 1.
  bool keep_cache = false;
  GenerateTogether together = {};
};

/// Prompts and how to continue them.
struct GenerationRequest {
  std::vector<std::vector<int32_t>> prompts;
  SamplingOptions sampling;
  std::vector<int32_t> stop_ids;  ///< a sequence ends with any of them
  /// Called for each new token, stop tokens included, in the order of each sequence's tokens.
  std::function<void(size_t sequence, int32_t id)> on_token;
  /// Asked before each pass: true ends all sequences where they are.
  std::function<bool()> stop;
};

/// What a pass says of each of its rows, in host memory: the most probable token, or logits [rows, V] as the model
/// computes them.
using PassResult = std::variant<std::vector<int32_t>, std::vector<float>, std::vector<BFloat16>>;

class Generator {
 public:
  /// `decoder` has been prepared for max_length positions, and its parameters are loaded before generate(). Both
  /// outlive this. Allocates the cache (Decoder::cache, for max_sequences of max_length) and, by dry passes, the
  /// memory of the largest pass.
  Generator(const Decoder& decoder, Stream& stream, const GeneratorOptions& options);
  ~Generator();

  /// The answers, in the order of the prompts. A sequence ends at a stop token, after max_new_tokens or at max_length.
  /// Its tokens do not depend on the prompts beside it, nor on max_sequences or the number of threads.
  /// UserError: an empty prompt, one of max_length tokens or more, an id outside of the vocabulary, sampling options
  /// out of range. Error(kNumbersLost): logits that are not finite.
  std::vector<GeneratedSequence> generate(const GenerationRequest& request);

  /// Prompt tokens of the last request that had not to be computed again.
  int64_t reused_tokens() const { return reused_; }

  /// Bytes of cache, inputs, results and activations.
  int64_t bytes() const;

  /// How passes were queued.
  const GraphCache::Counts& graph_counts() const { return graphs_.counts(); }

 private:
  struct Buffers;

  /// What of a pass is read back.
  enum class Wanted { kNothing, kIds, kLogits };

  /// Runs the model, and leaves what is wanted of it in the buffers.
  void forward(const DeviceBatch& batch, Wanted wanted);
  PassResult run(const GenerationPass& pass, Wanted wanted);
  std::vector<int32_t> choose(const GenerationPass& pass, PassResult& result, const SamplingOptions& sampling,
                              const GenerationSchedule& schedule);
  void check(const GenerationRequest& request) const;
  /// What the first rank has chosen.
  std::vector<int32_t> agreed(std::vector<int32_t> ids) const;
  int64_t kept_prefix(const std::vector<int32_t>& prompt) const;

  const Decoder& decoder_;
  Stream& stream_;
  GeneratorOptions options_;
  TapeMemory memory_;
  TapePlan plan_;
  Context context_;
  GraphCache graphs_;
  std::unique_ptr<Buffers> buffers_;
  std::vector<std::vector<float>> scratch_;  // a row of logits for each thread
  std::vector<int32_t> kept_;                // tokens in the first slot of the cache
  int64_t reused_ = 0;
};

}  // namespace hone
