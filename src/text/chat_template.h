// Chat templates: a conversation to the text a model reads, with the history of every character.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace hone {

/// Where characters of a rendered chat came from.
enum class SpanKind {
  kTemplate,   ///< written by the template
  kVariable,   ///< tools, documents, bos_token and other variables
  kRole,       ///< messages[i].role
  kContent,    ///< messages[i].content, or the text of its parts
  kReasoning,  ///< messages[i].reasoning_content, .reasoning or .thinking
  kToolCall,   ///< anything in messages[i].tool_calls or .function_call
  kField,      ///< any other field of messages[i], or characters of the message that were shown before
  kQuote,      ///< characters of messages[i] written while the template's loop is at another message, if it also
               ///< shows some at its own
};

/// Bytes [begin, end) of the text, of one history. Spans cover the text in order, without gaps.
struct Span {
  size_t begin = 0, end = 0;
  /// The message the characters came from; for kTemplate and kVariable the message that the template's loop was at when
  /// they were written; -1: none.
  int message_index = -1;
  SpanKind kind = SpanKind::kTemplate;
  bool generation = false;  ///< inside {% generation %}
  /// kContent of a message whose content is text: the byte of it that `begin` came from; the span's others follow.
  size_t content_offset = 0;
};

/// How many characters a message has, and how many of them are in the text. White space and the tags around thoughts
/// are not counted, since templates trim them and write their own.
struct Coverage {
  size_t characters = 0, rendered = 0;

  bool complete() const { return rendered == characters; }
};

/// What became of one message. Tool calls count names and arguments only: ids and types need not be shown.
struct RenderedMessage {
  std::string role;
  Coverage content, reasoning, tool_calls;

  bool shown_whole() const { return content.complete() && reasoning.complete() && tool_calls.complete(); }
};

struct RenderedChat {
  std::string text;
  std::vector<Span> spans;
  std::vector<RenderedMessage> messages;
  /// What the template writes before an answer, without the white space in front: the generation prompt, or for a
  /// template without one the text in front of an assistant's content (often empty). Absent: could not be found out,
  /// since the template refuses a plain question and answer.
  std::optional<std::string> answer_header;
};

/// What is rendered. Absent tools and documents are None to the template, as in transformers.
struct ChatInput {
  Json messages = Json::array();
  Json tools = nullptr;
  Json documents = nullptr;
  /// Further variables by name: enable_thinking, bos_token, eos_token, date_string, ...
  Json variables = Json::object();
  bool add_generation_prompt = false;
};

namespace jinja {
class Template;
}

class ChatTemplate {
 public:
  /// `name` (a file) stands in errors. `now` fixes the time that strftime_now() shows; the present if absent.
  /// Throws UserError "chat template: ..." with "name:line".
  ChatTemplate(std::string_view source, std::string name, std::optional<std::time_t> now = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// Renders one conversation; may be called from many threads. Throws UserError: the template's errors, messages that
  /// are not an array of objects, a variable that takes the name of one of the other inputs.
  RenderedChat render(const ChatInput& input) const;

 private:
  struct HeaderCache;

  std::optional<std::string> answer_header(const ChatInput& input) const;

  std::unique_ptr<const jinja::Template> template_;
  std::optional<std::time_t> now_;
  std::unique_ptr<HeaderCache> headers_;
};

}  // namespace hone
