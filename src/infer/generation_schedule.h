// GenerationSchedule: which tokens of which sequences each pass of a Generator runs. Only bookkeeping on the host.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "infer/page_pool.h"

namespace hone {

enum class FinishReason {
  kStop,     ///< a stop token, which is the last of the ids
  kLength,   ///< max_new_tokens or the length of the cache
  kStopped,  ///< the caller's request: all tokens are the answer
};

struct GeneratedSequence {
  std::vector<int32_t> ids;  ///< new tokens
  FinishReason finish = FinishReason::kLength;
  int64_t found = 0;  ///< tokens of the prompt that were in pages of earlier sequences, not computed

  /// The new tokens without the stop token.
  std::span<const int32_t> answer() const {
    return std::span(ids).first(ids.size() - (finish == FinishReason::kStop ? 1 : 0));
  }
};

/// Pages of the cache (kCachePage positions) of layers with the same window.
struct PageGroup {
  int64_t window = 0;  ///< a sequence keeps pages that its next token attends to; 0: all
  int64_t pages = 0;   ///< at least those of a sequence of max_length
};

struct ScheduleLimits {
  int64_t max_sequences = 1;
  int64_t max_length = 0;  ///< the most tokens of prompt and answer together
  int64_t max_prefill_tokens = 1;
  std::vector<PageGroup> pages = {};
  /// Sequences begin with the pages of earlier ones that begin alike (PagePool). There is one group, without a window,
  /// and all that layers keep is in it.
  bool shares_pages = false;
};

struct SequenceLimits {
  int64_t max_new_tokens = 1;
  std::vector<int32_t> stop_ids = {};
  bool track_seen = false;  ///< keeps the distinct tokens of the sequence
  int64_t cached = 0;       ///< number of tokens of the prompt that are in the cache of its slot; less than its length
  int variant = 0;          ///< which form of the model answers; a pass runs sequences of one variant
};

/// T new tokens of the first N slots, in the order of the slots.
struct GenerationPass {
  std::vector<int32_t> input_ids, positions;     ///< [T]
  std::vector<int32_t> cu_seqlens;               ///< [N + 1]; a slot may have no new tokens
  std::vector<int32_t> lengths;                  ///< [N], tokens of each slot that earlier passes have cached
  std::vector<int32_t> rows;                     ///< [R], last new token of each slot that has any
  std::vector<std::vector<int32_t>> pages = {};  ///< for each PageGroup [N, pages of max_length]
  int64_t max_seqlen = 0;                        ///< maximum number of new tokens of a slot
  int variant = 0;                               ///< that of its sequences; slots of others have no new tokens

  /// Rows whose logits choose a token: those of sequences with a complete prompt.
  struct Choice {
    size_t row = 0;  ///< index in `rows`
    size_t sequence = 0;
  };
  std::vector<Choice> choices;
};

/// Pages are given as sequences grow. An answer's length is not known before it ends, so reserving the most that it may
/// need would leave most pages unused. Where none is left, the youngest sequence gives up its own and waits; it is read
/// again later, each token in a pass of the same form, so that it continues as if it had stayed (Generator::generate).
/// The oldest one never waits for pages, so all end.
class GenerationSchedule {
 public:
  explicit GenerationSchedule(const ScheduleLimits& limits);

  /// A further sequence, at any time; returns its number. Numbers ascend, and a lower one gets a slot first. The prompt
  /// is not empty and shorter than max_length.
  size_t add(std::vector<int32_t> prompt, SequenceLimits limits);

  /// Plans the next pass and gives its sequences their pages; returns false when all sequences have ended. Call
  /// accept() for every choice of the previous pass first. Splits a prompt at multiples of max_prefill_tokens, whatever
  /// else runs, so its passes do not depend on other sequences. Variants take turns.
  bool next(GenerationPass& pass);

  /// Sets the token of a choice of the last pass.
  void accept(size_t sequence, int32_t id);
  bool ended(size_t sequence) const { return at(sequence).ended; }

  /// Position of the sequence's next token; the distinct tokens so far, ascending (empty unless track_seen).
  int64_t length(size_t sequence) const { return length(at(sequence)); }
  std::span<const int32_t> seen(size_t sequence) const { return at(sequence).seen; }
  /// The tokens of a sequence that are in the cache after the passes so far.
  std::vector<int32_t> cached_tokens(size_t sequence) const;

  /// For a pass that failed: what it has written is unknown, so no page of a sequence so far is found again.
  void forget_pages();

  /// Ends a sequence that has not ended, with what it has.
  void stop(size_t sequence);

  /// The result of a sequence, which is forgotten.
  GeneratedSequence take(size_t sequence);

  int64_t running() const { return static_cast<int64_t>(oldest_first().size()); }  ///< sequences in slots
  int64_t used_pages(size_t group) const { return limits_.pages[group].pages - free_[group].count(); }
  int64_t times_put_back() const { return times_put_back_; }  ///< how often a sequence gave up its pages

 private:
  /// The pages of a sequence, from position 0 on; the first `dropped` of them are no longer its own.
  struct Held {
    std::vector<int32_t> pages;
    size_t dropped = 0;
    size_t published = 0;   // so many of the first ones
    bool publishes = true;  // further ones
  };
  struct Sequence {
    std::vector<int32_t> prompt;
    SequenceLimits limits;
    GeneratedSequence result = {};
    int64_t cached = 0;              // tokens that passes have put into the cache
    std::vector<int32_t> seen = {};  // distinct, ascending
    std::vector<Held> held = {};     // for each group of pages, while it has a slot
    bool ended = false;
  };

  const Sequence& at(size_t sequence) const { return sequences_.find(sequence)->second; }
  static int64_t length(const Sequence& sequence);
  static int32_t token(const Sequence& sequence, int64_t position);
  /// Slots of sequences that have ended are free, and those that wait get slots, in order, where they have pages.
  void admit();
  /// Whether a waiting sequence can have pages for its tokens, with a further one left for each that may yet grow.
  bool fits(const Sequence& sequence) const;
  /// Pages that a sequence lacks for its first `positions`.
  static int64_t lacking(const Sequence& sequence, size_t group, int64_t positions);
  void take_pages(Sequence& sequence, size_t group, int64_t positions);
  /// Gives back pages before what the window of the next token reaches.
  void drop_pages(Sequence& sequence);
  /// Takes the pages of earlier sequences that begin alike, but not of its last token, which is to be computed.
  void find_pages(Sequence& sequence);
  /// Lets others find the full pages of the tokens that passes have computed.
  void publish_pages(Sequence& sequence);
  /// The tokens of a full page.
  static std::vector<int32_t> tokens_of_page(const Sequence& sequence, size_t page);
  /// Ends the holds of its pages.
  void give_pages(Sequence& sequence);
  /// Ends the use of a slot and its pages.
  void leave(size_t& slot);
  /// The same for a sequence that waits then, to be read again.
  void put_back(size_t& slot);
  /// Pages for a pass; sequences that are put back have no tokens in it.
  void make_room(std::vector<int64_t>& tokens);
  /// Slots with sequences.
  std::vector<size_t> oldest_first() const;
  /// The variant after the last pass's that has a sequence in a slot.
  int next_variant() const;
  /// Number of tokens of each slot in the next pass. Older sequences come first, so none waits forever.
  std::vector<int64_t> new_tokens(int variant) const;
  static void append(GenerationPass& pass, size_t number, Sequence& sequence, int64_t tokens);
  void append_pages(GenerationPass& pass, size_t slot) const;

  static constexpr size_t kFree = SIZE_MAX;

  ScheduleLimits limits_;
  std::map<size_t, Sequence> sequences_;
  std::vector<size_t> slots_;   // the sequence in each slot, or kFree
  std::deque<size_t> waiting_;  // those that have no slot, ascending
  std::vector<PagePool> free_;  // by group
  size_t next_number_ = 0;
  int last_variant_ = 0;
  int64_t times_put_back_ = 0;
};

}  // namespace hone
