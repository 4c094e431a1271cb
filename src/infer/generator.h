// Generator: continues many prompts at once, with the same results as one by one.
//
// Sequences have slots for their states, and pages of a cache of keys and values, which they get as they grow. A pass
// of the model runs one token of every sequence in decode and, packed with them, the next chunks of prompts in prefill.
// A sequence that has ended leaves the batch at once, and the next prompt takes its slot. A request has all of its
// prompts at once (generate); a server's sequences come and go between passes (begin, run_pass, end).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "core/stream/graph_cache.h"
#include "infer/cache_plan.h"
#include "infer/generation_schedule.h"
#include "infer/sampling.h"
#include "session/pass_companions.h"

namespace hone {

struct GeneratorOptions {
  int64_t max_sequences = 16;  ///< maximum number of concurrent sequences; further prompts wait in order
  int64_t max_length = 0;      ///< maximum length of prompt and answer
  /// How many tokens of all sequences together the cache has room for, at least max_length; 0: max_length for each.
  /// Sequences that find no room wait (GenerationSchedule). Layers that all have a window or a state do not need it.
  int64_t cache_tokens = 0;
  /// Prompt tokens per pass; longer prompts are split into chunks of this size. More read the weights less often and
  /// fill the tiles of experts; a sequence that answers waits longer for its next token. Halved where a GPU has no
  /// memory for the values of such a pass.
  int64_t max_prefill_tokens = 2048;
  GraphUse cuda_graphs = GraphUse::kAuto;  ///< for passes of repeated sizes, for example decode passes
  /// Reuses the cache of a sequence if the next prompt begins with the same tokens, as in the turns of a chat. Requires
  /// one prompt per request and max_sequences 1.
  bool keep_cache = false;
  /// Rank r of n answers prompts r, r + n, … As long as any rank has answers to continue, all run passes if each keeps
  /// a part of the weights. False: this rank answers all prompts, and no other is told; it needs all weights here.
  bool deals_prompts = true;
  /// Forms of the model among which sequences choose, such as that with an adapter and that without.
  int variants = 1;
  /// Called before a pass of another variant than that of the pass before; the model comes as variant 0.
  std::function<void(int variant)> use_variant = nullptr;
};

/// A token that was chosen, and what else was likely.
struct GeneratedToken {
  int32_t id = 0;
  double log_probability = 0;           ///< the model's own, before temperature and penalties, where it is asked for
  std::vector<TokenLogit> likely = {};  ///< the most probable ones, in this order, with their log-probabilities
};

/// A prompt that comes by itself. The callbacks are called in run_pass() and end().
struct SequenceRequest {
  std::vector<int32_t> prompt;
  SamplingOptions sampling;
  std::vector<int32_t> stop_ids = {};  ///< the sequence ends with any of them
  int variant = 0;                     ///< which form of the model answers (GeneratorOptions::use_variant)
  uint64_t draw = 0;                   ///< which of the random sequences of a seed it samples by
  std::optional<int> likely = {};      ///< asks for log-probabilities, and for so many tokens beside the chosen one
  /// In order, a stop token included. False ends the sequence.
  std::function<bool(const GeneratedToken&)> on_token = nullptr;
  std::function<void(const GeneratedSequence&)> on_end = nullptr;  ///< the last call
};

/// Prompts and the options of their continuation.
struct GenerationRequest {
  std::vector<std::vector<int32_t>> prompts;
  SamplingOptions sampling;
  std::vector<int32_t> stop_ids;  ///< a sequence ends with any of them
  /// Called for each new token, stop tokens included, in the order of each sequence's tokens.
  std::function<void(size_t sequence, int32_t id)> on_token;
  /// Called for each new token after on_token; true ends that sequence, with FinishReason::kStopped.
  std::function<bool(size_t sequence, int32_t id)> ends;
  /// Called for each sequence that has ended otherwise than by `stop` or an error, with its index and its tokens.
  std::function<void(size_t sequence, const GeneratedSequence&)> on_end;
  /// The index of the first prompt among those of a larger request, of which this is a part: random numbers are drawn
  /// as there.
  size_t first_sequence = 0;
  /// Called before each pass; true ends all sequences.
  std::function<bool()> stop;
};

/// The result of a pass for each of its rows, in host memory: the most probable token, or logits [rows, V] in the
/// model's dtype.
using PassResult = std::variant<std::vector<int32_t>, std::vector<float>, std::vector<BFloat16>>;

class Generator {
 public:
  /// The companions' decoder must be prepared for max_length positions, and its parameters loaded before generate().
  /// They must outlive this. Allocates the cache (CachePlan) and, by dry passes, the memory of the largest pass. With
  /// spread experts it is collective, and the sizes are the same on all ranks.
  Generator(PassCompanions& companions, const GeneratorOptions& options);
  ~Generator();

  /// The answers, in the order of the prompts. A sequence ends at a stop token, after max_new_tokens or at max_length.
  /// Its tokens do not depend on other prompts, max_sequences or the numbers of threads and ranks; but spread experts
  /// add a token's outputs in another order, and on a GPU the order of a sum may depend on how many rows a pass has, so
  /// that tokens which are nearly tied may change places. All ranks must call it with the same prompts; each gets all
  /// answers, but on_token only for those it computes. Throws UserError for an empty prompt, a prompt of max_length
  /// tokens or more, an id outside the vocabulary, and sampling options out of range; Error(kNumbersLost) for logits
  /// that are not finite.
  std::vector<GeneratedSequence> generate(const GenerationRequest& request);

  /// A sequence that runs in the next passes beside those that have begun; returns its number. Of one rank. Throws as
  /// generate() does, at "prompt".
  size_t begin(SequenceRequest request);
  /// Ends a sequence after the pass that has run; nothing for one that has ended. Calls its on_end.
  void end(size_t sequence);
  /// Runs a pass; false if no sequence is left. An exception leaves the sequences as they are: end them all.
  bool run_pass();
  /// Ends every sequence.
  void end_all();

  /// Number of prompt tokens of the last request that were reused from the cache.
  int64_t reused_tokens() const { return reused_; }

  const CachePlan& cache() const { return cache_; }
  const GenerationSchedule& schedule() const { return *schedule_; }

  /// Bytes of cache, inputs, results and activations on the device.
  int64_t bytes() const;

  /// How passes were queued.
  const GraphCache::Counts& graph_counts() const { return graphs_.counts(); }

 private:
  struct Buffers;

  /// The part of a pass's results that is copied to the host.
  enum class Wanted { kNothing, kIds, kLogits };

  /// A group begins or ends to be used.
  struct GroupUse {
    const ParameterGroup* group;
    Use use;
    bool begins;
  };
  class UseRecorder;

  using Part = PassCompanions::Pass;

  /// Measures the memory of the largest pass, and plans one of fewer prompt tokens where the GPU lacks it.
  void measure_passes();
  /// Runs the model, and writes the wanted results to the buffers.
  void forward(const Part& part, const DeviceBatch& batch, Wanted wanted);
  PassResult run(const Part& part, const GenerationPass& pass, Wanted wanted);
  void use_variant(int variant);
  Wanted wanted_of(const GenerationPass& pass) const;
  /// The tokens of a pass's choices.
  std::vector<GeneratedToken> computed(const Part& part, const GenerationPass& pass);
  std::vector<GeneratedToken> choose(const GenerationPass& pass, PassResult& result);
  /// Adds a sequence whose prompt has been checked, of whose prompt so many tokens are in the cache.
  size_t add(SequenceRequest request, int64_t cached);
  void check(const std::vector<int32_t>& prompt, const std::string& where) const;
  /// On a rank that has no pass to run while others have: it gives them its part of the weights, by the uses of groups
  /// of a pass, or computes its experts for them, in a pass of one token.
  void idle_pass(const Part& part);
  /// The next pass, of `tokens` tokens here (0: none); none if there is none on any rank that needs this one.
  std::optional<RankPass> next(int64_t tokens) const;
  /// The answers of all ranks to `prompts` prompts, from those of this one.
  std::vector<GeneratedSequence> of_all_ranks(std::vector<GeneratedSequence> own, size_t prompts) const;
  size_t rank() const { return options_.deals_prompts ? static_cast<size_t>(companions_.rank()) : 0; }
  size_t ranks() const { return options_.deals_prompts ? static_cast<size_t>(companions_.ranks()) : 1; }
  int64_t kept_prefix(const std::vector<int32_t>& prompt) const;

  PassCompanions& companions_;
  const Decoder& decoder_;
  Stream& stream_;
  GeneratorOptions options_;
  PassRunner passes_;
  std::vector<TapePlan> plans_;  // by variant
  const Context& context_;       // that of passes_
  GraphCache graphs_;
  CachePlan cache_;
  std::unique_ptr<Buffers> buffers_;
  std::vector<GroupUse> uses_;               // the uses of a pass, in order
  std::vector<std::vector<float>> scratch_;  // a row of logits for each thread
  std::vector<int32_t> kept_;                // tokens in the cache of the first slot
  std::unique_ptr<GenerationSchedule> schedule_;
  std::map<size_t, SequenceRequest> running_;  // by number in the schedule, which has their prompts
  int variant_ = 0;                            // the last pass ran it
  int64_t reused_ = 0;
};

}  // namespace hone
