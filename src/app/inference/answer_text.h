// AnswerText: the text of one answer as its tokens come, divided into thinking, answer and calls of tools.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_value.h"
#include "text/call_reader.h"
#include "text/tokenizer.h"

namespace hone {

struct AnswerTextOptions {
  std::vector<std::string> stop = {};  ///< the answer ends before the first of these
  bool thinks = false;                 ///< text between think tags (text/thinking.h) is apart
  std::string open_tag = {};           ///< the think tag that the prompt has left open; "": none
  const CallForm* form = nullptr;      ///< in which the model writes calls; null: none, all is text
  JsonValue tools = {};                ///< what the request offers; null: a call is text
};

/// What a token has added.
struct AnswerPiece {
  std::string content = {}, reasoning = {};
  std::vector<ToolCall> calls = {};

  bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
};

class AnswerText {
 public:
  /// The tokenizer must outlive this.
  AnswerText(const Tokenizer& tokenizer, AnswerTextOptions options);

  /// The next token, which is not a stop token. Text that may yet become a tag or a stop text is held back.
  AnswerPiece push(int32_t id);
  /// What was held back. A call that has not ended is text.
  AnswerPiece finish();
  /// Whether a stop text has come: nothing follows.
  bool stopped() const { return stopped_; }

 private:
  enum class In { kStart, kThinking, kAnswer, kCall, kHeader, kMessage };

  AnswerPiece advance(bool last);
  /// Ends the text before a stop text; returns how many of its bytes cannot be part of one.
  size_t before_stop(bool last);
  /// Divides the first `ready` bytes of the text; returns false where more is needed.
  bool divide(AnswerPiece& piece, size_t ready, bool last);
  /// After a tag: takes away the line ends before its text.
  void trim(size_t& ready);
  /// Moves bytes before the first of `tags`, or before what may be its beginning, to `out`; true: the tag follows.
  bool move_until(std::string& out, std::span<const std::string_view> tags, size_t ready, bool last);
  /// Whether the answer, whose first bytes are ready, may be a call without a mark; `kAnswer` otherwise.
  bool starts_unmarked_call(AnswerPiece& piece, size_t ready, bool last);
  std::string decoded(int32_t id);

  const AnswerTextOptions options_;
  StreamDecoder decoder_;
  std::vector<std::string_view> openings_;  // what begins a call
  std::map<int32_t, std::string> marks_;    // special tokens that are parts of the form's marks
  In in_;
  std::string close_tag_;  // what ends the thinking
  std::string text_;       // not returned yet
  bool stopped_ = false, trims_ = false, thinks_ = false;
};

}  // namespace hone
