// Encodes conversations as tokens: renders them with the chat template and masks them by the provenance of each
// character.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_value.h"
#include "data/sample_format.h"
#include "data/token_block.h"
#include "text/chat_mask.h"
#include "text/chat_template.h"
#include "text/prompt_comparison.h"
#include "text/tokenizer.h"

namespace hone {

// Rewritten answers: a chat template may render an answer differently once more messages follow; most drop the thinking
// of earlier turns.

/// The policy for rewritten answers.
enum class HistoryRewrites {
  kExpand,  ///< each is trained on in a sample that ends with it, as the model writes it
  kMask,    ///< they are not trained on
  kError,   ///< throws UserError
};

/// Parses "expand", "mask" or "error"; throws UserError for anything else.
HistoryRewrites history_rewrites_of(std::string_view name);

/// Answers that are complete in the rendering of messages [0, end).
struct RewrittenTurns {
  size_t end = 0;
  std::vector<size_t> messages;  ///< ascending
};

/// Returns those of the messages `learnt` (ascending) of which `whole`, the rendering of all messages, contains fewer
/// characters than the rendering that ends with them. Groups them by the fewest renderings that contain them all,
/// ascending. `render` renders the first n messages. Characters that the template never renders do not count, nor does
/// template text that is added or removed around an answer (empty think blocks).
std::vector<RewrittenTurns> rewritten_turns(const RenderedChat& whole, const std::vector<size_t>& learnt,
                                            const std::function<RenderedChat(size_t)>& render);

struct ChatEncoderOptions {
  TrainOn train_on = TrainOn::kAssistant;
  HistoryRewrites history_rewrites = HistoryRewrites::kExpand;
  /// The Jinja source of the template; empty: the tokenizer's own.
  std::string chat_template = {};
  /// The file of the template, for errors.
  std::string chat_template_name = "chat_template";
  /// Trains on an empty think block that the template inserts, unless the header of answers contains it.
  bool learn_empty_thinking = false;
  /// Encodes special tokens that stand in the text of messages as text, not as these tokens (think tags excepted).
  bool split_special_tokens = false;
  /// Variables of the template, in addition to bos_token etc.; those of a row take precedence.
  JsonObject chat_template_kwargs = {};
  /// For text that is not a chat: whether to add bos before it (unset: as the tokenizer does) and eos after it.
  std::optional<bool> add_bos = {};
  bool add_eos = true;
};

/// Immutable and thread-safe.
class ChatEncoder {
 public:
  /// Throws UserError for an invalid template. `tokenizer` must outlive this.
  ChatEncoder(const Tokenizer& tokenizer, const ChatEncoderOptions& options);

  /// Renders and encodes one conversation, without special tokens other than those of the template. A token is
  /// supervised iff its first byte is: a token across the boundary of header and answer is not supervised.
  ///   train_on assistant, last, all: text/chat_mask.h. Messages of a prompt (prompt_completion) are supervised only
  ///     with all. completion: the messages of the completion; in rows of `messages` those after the last user message.
  /// history_rewrites applies to rewritten answers (not under train_on all). Throws UserError at `where` for a missing
  /// template, an error of the template, and a rewritten answer under kError.
  EncodedRow encode(const Conversation& conversation, const std::string& where) const;

  bool has_template() const { return template_.has_value(); }

 private:
  struct WeightedRange {
    size_t begin, end;
    float weight;
  };

  /// The comparisons of one row. Each renders the messages before an answer: after some of them, answers count as the
  /// last one that was compared, so that the time of a row grows with its length.
  struct PromptChecks {
    size_t rendered = 0;
    std::optional<PromptDifference> last = {};
  };

  const ChatTemplate& template_for(const Conversation& conversation, const std::string& where) const;
  ChatInput input_of(const Conversation& conversation, size_t count) const;
  /// Renders the first `count` messages.
  RenderedChat render(const Conversation& conversation, size_t count, const std::string& where) const;
  std::vector<size_t> learnt_messages(const RenderedChat& chat, const Conversation& conversation) const;
  std::vector<SupervisedRange> ranges_of(const RenderedChat& chat, const Conversation& conversation,
                                         size_t completion_begin) const;
  static std::vector<WeightedRange> weighted(const RenderedChat& chat, const std::vector<SupervisedRange>& ranges,
                                             const Conversation& conversation, const std::vector<float>& weights);
  Sample masked(const RenderedChat& chat, const std::vector<WeightedRange>& parts,
                std::string* control_tokens = nullptr) const;
  Sample expanded(const Conversation& conversation, const RewrittenTurns& turns, size_t completion_begin,
                  const std::string& where, PromptChecks& checks, EncodedRow& row) const;
  void compare_prompts(const Conversation& conversation, const RenderedChat& chat,
                       const std::vector<SupervisedRange>& ranges, const std::vector<float>& weights,
                       const std::string& where, PromptChecks& checks, EncodedRow& row) const;
  std::string control_tokens_in(const RenderedChat& chat, const Encoding& encoding) const;

  const Tokenizer& tokenizer_;
  TrainOn train_on_;
  bool split_special_tokens_;
  std::vector<int32_t> control_ids_;  // special tokens without think tags, ascending
  HistoryRewrites history_rewrites_;
  JsonObject variables_;
  MaskOptions mask_;
  std::optional<ChatTemplate> template_, tool_template_;
  PromptComparison prompts_;
};

}  // namespace hone
