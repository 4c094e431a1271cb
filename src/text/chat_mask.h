// The loss mask of a rendered chat: which characters are supervised, exact by the provenance of each character.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/named_choice.h"
#include "core/text/json_fwd.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hone {

enum class TrainOn {
  kAssistant,   ///< every assistant message
  kLast,        ///< the last assistant message
  kAll,         ///< the whole text
  kCompletion,  ///< everything after the prompt, which ends before the first assistant message of the completion;
                ///< without the line end after the last end of turn
};

template <>
inline constexpr auto kChoiceNames<TrainOn> = std::to_array<ChoiceName<TrainOn>>({{TrainOn::kAssistant, "assistant"},
                                                                                  {TrainOn::kAll, "all"},
                                                                                  {TrainOn::kLast, "last"},
                                                                                  {TrainOn::kCompletion,
                                                                                   "completion"}});

struct MaskOptions {
  TrainOn train_on = TrainOn::kAssistant;
  /// Tokens that end a turn or a text (eos_token, those of generation_config.json), as strings.
  std::vector<std::string> end_tokens;
  /// All special tokens of the tokenizer, as strings. The first one after an answer ends the turn if no end token does.
  std::vector<std::string> special_tokens;
  /// kCompletion: index of the first message that belongs to the completion.
  size_t completion_begin = 0;
  /// An empty think block that the template inserted belongs to the answer, unless the header contains it.
  bool learn_empty_thinking = false;
};

/// Supervised bytes [begin, end) of RenderedChat::text.
struct SupervisedRange {
  size_t begin = 0, end = 0;
  size_t turn_end_begin = 0;  ///< [turn_end_begin, end): the end of turn, after the message's own last character
  int message_index = -1;     ///< the assistant message; -1 for kAll and kCompletion
  bool ends_turn = false;     ///< an end token or special token ends it: the model learns to stop
  /// The template writes another end here than after the last answer, and generation does not stop at it: it is left
  /// out.
  bool end_left_out = false;
};

/// Returns the supervised ranges in order, without overlap. An answer's range contains
/// - the characters of its content, reasoning and tool calls that the template rendered;
/// - the template's text between them, and the text before them that the model must write itself ("<think>\n",
/// "<tool_call>"): after the header that generation starts with, and after a think block that the template closed
/// without reasoning from the message (with learn_empty_thinking also that block);
/// - the text after them up to the end-of-turn token; never the text after that token (the newline of ChatML). An end
/// token may also be the first of the next message (GLM-4.5: the token of the next role). A special token that is not
/// an end token is left out where the template writes an end token after the last answer instead (gpt-oss). A message
/// without rendered characters has no range.
std::vector<SupervisedRange> supervised_ranges(const RenderedChat& chat, const MaskOptions& options);

/// Adds the end token that the template leaves to the next message, if the text ends with an answer without any: one
/// that the next message, a question or (after a call) a tool's result, would begin with.
void complete_last_answer(RenderedChat& chat, const MaskOptions& options);

// The contract between tokenizer and chat template: the variables of a template, the beginning of a text, the end of a
// turn.

/// Those of bos_token, eos_token, pad_token and unk_token that the tokenizer has, by name, as transformers passes them
/// to a template.
Json special_token_variables(const Tokenizer& tokenizer);

/// The mask options of a tokenizer: which tokens end a turn.
MaskOptions mask_options(const Tokenizer& tokenizer, TrainOn train_on);

/// Whether the text begins with two bos tokens, one of them written by the template: no model is trained on that.
bool begins_with_two_bos(std::span<const int32_t> ids, const SpecialTokens& special);

/// The end of an answer.
struct TurnEnd {
  std::string text;          ///< the text that ends it ("<|im_end|>"); may be empty
  std::vector<int32_t> ids;  ///< its tokens
  bool learnt = false;       ///< the mask contains it as an end of turn, so the model learns to stop
  bool stops = false;        ///< generation stops at it: it is eos_token, or in eos_token_id of generation_config.json
  std::string next_turn;     ///< the special token that a question after the answer begins with; may be empty

  /// The problem with it and what to do, as one sentence for the user; empty if there is none.
  std::string problem(const Tokenizer& tokenizer) const;
};

/// The end of the answer that `range` (of one message) supervises.
TurnEnd turn_end(const RenderedChat& chat, const SupervisedRange& range, const Tokenizer& tokenizer);

}  // namespace hone
