// Encodes conversations as tokens: renders them with the chat template and masks them by the provenance of each
// character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_value.h"
#include "data/formats/sample_format.h"
#include "data/formats/token_block.h"
#include "text/chat_mask.h"
#include "text/chat_template.h"
#include "text/prompt_comparison.h"
#include "text/tokenizer.h"

namespace hone {

/// The policy for rewritten answers (data/formats/rewritten_turns.h).
enum class HistoryRewrites {
  kExpand,  ///< each is trained on in a sample that ends with it, as the model writes it
  kMask,    ///< they are not trained on
  kError,   ///< throws UserError
};

struct ChatEncoderOptions {
  TrainOn train_on = TrainOn::kAssistant;
  HistoryRewrites history_rewrites = HistoryRewrites::kExpand;
  /// Where longer samples are dropped, or cut behind this many tokens: rewritten answers that begin later in the whole
  /// conversation get no sample of their own, and are counted. The time of a row then grows with its length.
  std::optional<size_t> longest_sample = {};
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

  /// The comparisons of supervised answers with the prompt at inference. Each renders the messages before an answer:
  /// after some of them, answers count as the last one that was compared, so that the time of a row grows with its
  /// length.
  struct PromptChecks {
    size_t rendered = 0;
    std::optional<PromptDifference> last = {};
    int64_t answers = 0;
    std::vector<PromptDifference> differences = {};
  };

  /// The rewritten answers of a conversation.
  struct Rewritten {
    std::vector<size_t> messages = {};
    std::vector<Sample> samples = {};  ///< that end with them, if they are expanded
    PromptChecks checks = {};          ///< what was counted in these samples
    int64_t left_out = 0;              ///< answers without one: ChatEncoderOptions::longest_sample
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
  static Sample masked(Encoding encoding, const std::vector<WeightedRange>& parts);
  Sample expanded(const Conversation& conversation, const RenderedChat& chat, const std::vector<size_t>& messages,
                  size_t completion_begin, const std::string& where, PromptChecks& checks) const;
  std::vector<size_t> take_late(std::vector<size_t>& learnt, const RenderedChat& chat, const Encoding& encoding) const;
  Rewritten rewritten_answers(const Conversation& conversation, const RenderedChat& chat, const Encoding& encoding,
                              std::vector<size_t> learnt, size_t completion_begin, const std::string& where) const;
  void compare_prompts(const Conversation& conversation, const RenderedChat& chat,
                       const std::vector<SupervisedRange>& ranges, const std::vector<float>& weights,
                       const std::string& where, PromptChecks& checks) const;
  std::string control_tokens_in(const RenderedChat& chat, const Encoding& encoding) const;

  const Tokenizer& tokenizer_;
  TrainOn train_on_;
  bool split_special_tokens_;
  std::vector<int32_t> control_ids_;  // special tokens without think tags, ascending
  HistoryRewrites history_rewrites_;
  std::optional<size_t> longest_sample_;
  JsonObject variables_;
  MaskOptions mask_;
  std::optional<ChatTemplate> template_, tool_template_;
  PromptComparison prompts_;
};

}  // namespace hone
