// Conversations to tokens: rendered by the chat template, masked by where each character came from.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/sample_format.h"
#include "data/token_block.h"
#include "text/chat_mask.h"
#include "text/chat_template.h"
#include "text/prompt_comparison.h"
#include "text/tokenizer.h"

namespace hone {

// Answers that a chat template shows otherwise once the conversation goes on: most drop the thoughts of earlier turns.

/// What becomes of them.
enum class HistoryRewrites {
  kExpand,  ///< each is learnt as the model writes it, in a sample that ends with it
  kMask,    ///< they are not learnt
  kError,   ///< the run stops
};

/// "expand", "mask" or "error"; anything else is a UserError.
HistoryRewrites history_rewrites_of(std::string_view name);

/// Answers that one beginning of the conversation shows as they were written: messages [0, end) do.
struct RewrittenTurns {
  size_t end = 0;
  std::vector<size_t> messages;  ///< ascending
};

/// Those of the messages `learnt` (ascending) of which `whole`, the rendering of all messages, shows fewer characters
/// than the rendering that ends with them; as few beginnings as show them all, ascending. `render` renders the first n
/// messages. What a template shows nowhere is not rewritten, nor is an answer that only gains or loses text of the
/// template (empty think blocks).
std::vector<RewrittenTurns> rewritten_turns(const RenderedChat& whole, const std::vector<size_t>& learnt,
                                            const std::function<RenderedChat(size_t)>& render);

struct ChatEncoderOptions {
  TrainOn train_on = TrainOn::kAssistant;
  HistoryRewrites history_rewrites = HistoryRewrites::kExpand;
  /// The Jinja text of the template; empty: the tokenizer's own.
  std::string chat_template = {};
  /// The file it is from, for errors.
  std::string chat_template_name = "chat_template";
  /// A think block that the template puts in empty is learnt, where the header of answers does not have it.
  bool learn_empty_thinking = false;
  /// Variables of the template, beside bos_token and the like; those of a row win.
  Json chat_template_kwargs = Json::object();
  /// Of text that is no chat: whether bos stands in front of it (unset: as the tokenizer has it) and eos behind it.
  std::optional<bool> add_bos = {};
  bool add_eos = true;
};

/// Immutable; may be used from many threads.
class ChatEncoder {
 public:
  /// Throws UserError if the template is broken. `tokenizer` outlives this.
  ChatEncoder(const Tokenizer& tokenizer, const ChatEncoderOptions& options);

  /// Renders and encodes one conversation, without special tokens beside those the template writes. A token is
  /// supervised iff its first byte is: of a token that lies across the seam of header and answer nothing is learnt.
  ///   train_on assistant, last, all: text/chat_mask.h. Messages of a prompt (prompt_completion) are learnt with all
  ///   only. completion: the messages of the completion; in rows of `messages` those behind the last user message.
  /// Answers that the template shows otherwise later go by history_rewrites (not under train_on all).
  /// Throws UserError at `where`: no template, an error of the template, a rewritten answer under kError.
  EncodedRow encode(const Conversation& conversation, const std::string& where) const;

  bool has_template() const { return template_.has_value(); }

 private:
  struct WeightedRange {
    size_t begin, end;
    float weight;
  };

  const ChatTemplate& template_for(const Conversation& conversation, const std::string& where) const;
  ChatInput input_of(const Conversation& conversation, size_t count) const;
  /// The first `count` messages.
  RenderedChat render(const Conversation& conversation, size_t count, const std::string& where) const;
  std::vector<size_t> learnt_messages(const RenderedChat& chat, const Conversation& conversation) const;
  std::vector<SupervisedRange> ranges_of(const RenderedChat& chat, const Conversation& conversation,
                                         size_t completion_begin) const;
  static std::vector<WeightedRange> weighted(const RenderedChat& chat, const std::vector<SupervisedRange>& ranges,
                                             const Conversation& conversation, const std::vector<float>& weights);
  Sample masked(const RenderedChat& chat, const std::vector<WeightedRange>& parts) const;
  Sample expanded(const Conversation& conversation, const RewrittenTurns& turns, size_t completion_begin,
                  const std::string& where, EncodedRow& row) const;
  void compare_prompts(const Conversation& conversation, const RenderedChat& chat,
                       const std::vector<SupervisedRange>& ranges, const std::vector<float>& weights,
                       const std::string& where, EncodedRow& row) const;

  const Tokenizer& tokenizer_;
  TrainOn train_on_;
  HistoryRewrites history_rewrites_;
  Json variables_;
  MaskOptions mask_;
  std::optional<ChatTemplate> template_, tool_template_;
  PromptComparison prompts_;
};

}  // namespace hone
