// Which characters of a rendered chat are trained on: exact, from where each character came from.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "text/chat_template.h"

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

}  // namespace hone
