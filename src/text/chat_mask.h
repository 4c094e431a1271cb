// Which characters of a rendered chat are trained on: exact, from where each character came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hone {

enum class TrainOn {
  kAssistant,   ///< every assistant message
  kLast,        ///< the last assistant message
  kAll,         ///< all of the text
  kCompletion,  ///< everything behind the prompt, which ends before the first assistant message of the completion;
                ///< not the line end after the last end of turn
};

struct MaskOptions {
  TrainOn train_on = TrainOn::kAssistant;
  /// Tokens that end a turn or a text (eos_token, those of generation_config.json), as strings.
  std::vector<std::string> end_tokens;
  /// All special tokens of the tokenizer, as strings. The first one behind an answer ends the turn if no end token
  /// does.
  std::vector<std::string> special_tokens;
  /// kCompletion: index of the first message that belongs to the completion.
  size_t completion_begin = 0;
  /// A think block that the template put in empty belongs to the answer, unless the header has it already.
  bool learn_empty_thinking = false;
};

/// Bytes [begin, end) of RenderedChat::text that are trained on.
struct SupervisedRange {
  size_t begin = 0, end = 0;
  size_t turn_end_begin = 0;  ///< [turn_end_begin, end): what closes the message, behind its own last character
  int message_index = -1;     ///< the assistant message; -1 for kAll and kCompletion
  bool ends_turn = false;     ///< an end token or special token closes it: the model learns to stop
};

/// The supervised ranges in order, without overlap. An answer's range holds
/// - the characters of its content, reasoning and tool calls that the template rendered (what it dropped is not there);
/// - the template's text between them, and in front of them as far as the model itself must write it ("<think>\n",
///   "<tool_call>"): after the header that generation starts with, and after a think block that the template closed
///   without a reasoning from the message (that block too with learn_empty_thinking);
/// - the text behind them up to the end-of-turn token; never what follows it (the newline of ChatML).
/// A message that shows no character of its own has no range.
std::vector<SupervisedRange> supervised_ranges(const RenderedChat& chat, const MaskOptions& options);

// What tokenizer and chat template have to agree on: the variables a template gets, how a text begins, how a turn ends.

/// bos_token, eos_token, pad_token and unk_token by name, as transformers hands them to a template; those that the
/// tokenizer has.
Json special_token_variables(const Tokenizer& tokenizer);

/// What supervised_ranges() needs to know of a tokenizer: which tokens end a turn.
MaskOptions mask_options(const Tokenizer& tokenizer, TrainOn train_on);

/// The text has a bos token of the template's and another one in front, which no model has seen.
bool begins_with_two_bos(std::span<const int32_t> ids, const SpecialTokens& special);

/// How an answer ends.
struct TurnEnd {
  std::string text;          ///< what closes it ("<|im_end|>"); empty: nothing does
  std::vector<int32_t> ids;  ///< its tokens
  bool learnt = false;       ///< the mask takes it for an end of turn, so stopping is learnt
  bool stops = false;        ///< generation stops there: eos_token, or in eos_token_id of generation_config.json

  /// What is wrong with it, as one sentence for the user; empty: nothing.
  std::string problem(const Tokenizer& tokenizer) const;
};

/// The end of the answer that `range` (of one message) supervises.
TurnEnd turn_end(const RenderedChat& chat, const SupervisedRange& range, const Tokenizer& tokenizer);

}  // namespace hone
