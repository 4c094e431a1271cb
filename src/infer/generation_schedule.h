// GenerationSchedule: which tokens of which sequences each pass of a Generator runs. Only bookkeeping on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hone {

enum class FinishReason {
  kStop,     ///< a stop token, which is the last of the ids
  kLength,   ///< max_new_tokens or the length of the cache
  kStopped,  ///< the caller's stop request
};

struct GeneratedSequence {
  std::vector<int32_t> ids;  ///< new tokens
  FinishReason finish = FinishReason::kLength;

  /// The new tokens without the stop token.
  std::span<const int32_t> answer() const {
    return std::span(ids).first(ids.size() - (finish == FinishReason::kStop ? 1 : 0));
  }
};

struct ScheduleLimits {
  int64_t max_sequences = 1;
  int64_t max_length = 0;  ///< the most tokens of prompt and answer together
  int64_t max_prefill_tokens = 1;
  int64_t max_new_tokens = 1;
  std::vector<int32_t> stop_ids;
  bool track_seen = false;  ///< keeps the distinct tokens of each sequence
  int64_t cached = 0;       ///< number of tokens of the first prompt that are in the cache; less than its length
};

/// T new tokens of the first N slots, in the order of the slots.
struct GenerationPass {
  std::vector<int32_t> input_ids, positions;  ///< [T]
  std::vector<int32_t> cu_seqlens;            ///< [N + 1]; a slot may have no new tokens
  std::vector<int32_t> lengths;               ///< [N], tokens of each slot that earlier passes have cached
  std::vector<int32_t> rows;                  ///< [R], last new token of each slot that has any
  int64_t max_seqlen = 0;                     ///< maximum number of new tokens of a slot

  /// Rows whose logits choose a token: those of sequences with a complete prompt.
  struct Choice {
    size_t row = 0;  ///< index in `rows`
    size_t sequence = 0;
  };
  std::vector<Choice> choices;
};

class GenerationSchedule {
 public:
  /// Prompts must outlive this; they are not empty and shorter than max_length.
  GenerationSchedule(std::span<const std::vector<int32_t>> prompts, ScheduleLimits limits);

  /// Plans the next pass; returns false when all sequences have ended. Call accept() for every choice of the previous
  /// pass first. Splits a prompt at multiples of max_prefill_tokens, whatever else runs, so its passes do not depend on
  /// other sequences.
  bool next(GenerationPass& pass);

  /// Sets the token of a choice of the last pass.
  void accept(size_t sequence, int32_t id);

  /// Position of the sequence's next token; the distinct tokens so far, ascending (empty unless track_seen).
  int64_t length(size_t sequence) const;
  std::span<const int32_t> seen(size_t sequence) const { return sequences_[sequence].seen; }
  /// The tokens of a sequence that are in the cache after the passes so far.
  std::vector<int32_t> cached_tokens(size_t sequence) const;

  /// Ends all sequences: no further pass.
  void stop();

  std::vector<GeneratedSequence> take_results();

 private:
  struct Sequence {
    GeneratedSequence result;
    int64_t cached = 0;         // tokens that passes have put into the cache
    std::vector<int32_t> seen;  // distinct, ascending
    bool ended = false;
  };

  void admit();
  /// Number of tokens of each slot in the next pass. Older sequences come first, so none waits forever.
  std::vector<int64_t> new_tokens() const;
  void append(GenerationPass& pass, size_t sequence, int64_t tokens);
  int32_t token(size_t sequence, int64_t position) const;

  static constexpr size_t kFree = SIZE_MAX;

  std::span<const std::vector<int32_t>> prompts_;
  ScheduleLimits limits_;
  std::vector<Sequence> sequences_;
  std::vector<size_t> slots_;  // the sequence in each slot, or kFree
  size_t waiting_ = 0;         // the first sequence that has no slot yet
};

}  // namespace hone
