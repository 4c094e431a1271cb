// Chat templates: renders a conversation to the text for the model, with the provenance of every character.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_value.h"

namespace hone {

/// The provenance of characters in a rendered chat.
enum class SpanKind {
  kTemplate,   ///< written by the template
  kVariable,   ///< tools, documents, bos_token and other variables
  kRole,       ///< messages[i].role
  kContent,    ///< messages[i].content, or the text of its parts
  kReasoning,  ///< messages[i].reasoning_content, .reasoning or .thinking
  kToolCall,   ///< anything in messages[i].tool_calls or .function_call
  kField,      ///< any other field of messages[i], or characters of the message that were rendered before
  kQuote,      ///< characters of messages[i] written in another message's iteration of the template's loop, if
               ///< its own iteration also writes some
};

/// Bytes [begin, end) of the text, of one provenance. Spans cover the text in order, without gaps.
struct Span {
  size_t begin = 0, end = 0;
  /// The message that the characters came from; for kTemplate and kVariable the message of the loop iteration that
  /// wrote them; -1: none.
  int message_index = -1;
  SpanKind kind = SpanKind::kTemplate;
  bool generation = false;  ///< inside {% generation %}
  /// For kContent of a message with text as content: the byte of it that `begin` came from; the next bytes follow in
  /// order.
  size_t content_offset = 0;
};

/// The number of characters of a message, and how many of them are in the text. White space and think tags are not
/// counted, since templates trim the former and write their own tags.
struct Coverage {
  size_t characters = 0, rendered = 0;

  bool complete() const { return rendered == characters; }
};

/// The rendered parts of one message. Tool calls count names and arguments only; ids and types are optional.
struct RenderedMessage {
  std::string role;
  Coverage content, reasoning, tool_calls;

  bool shown_whole() const { return content.complete() && reasoning.complete() && tool_calls.complete(); }
};

/// What a template writes around the end of an answer, found by rendering plain conversations. Empty where it rejects
/// them, or where it is not known which message's iteration of its loop wrote a text.
struct AnswerEnds {
  std::string last;           ///< after an answer that is the last message
  std::string followed;       ///< after an answer that a question follows
  std::string next_question;  ///< before the text of that question
  std::string next_result;    ///< before the text of a tool's result, after a call
};

struct RenderedChat {
  std::string text;
  std::vector<Span> spans;
  std::vector<RenderedMessage> messages;
  Coverage tools;  ///< covers the names of the tools
  AnswerEnds ends;
  /// The text that the template writes before an answer, without leading white space: the generation prompt, or, for a
  /// template without one, the text before an assistant's content (often empty). Absent if the template rejects a plain
  /// question and answer.
  std::optional<std::string> answer_header;
};

/// The input of render(). Absent tools and documents are None in the template, as in transformers. In messages and
/// tools null and missing are one thing:
///   - members that are null are left out;
///   - the missing content of a message is none for the template, and the empty text wherever it reads a text;
///   - the arguments of a call are an object, also if they are the JSON text of one (the form of OpenAI's API) or
///   missing;
///     a template that joins them to a text gets their JSON. Arguments that are another text stay that text.
struct ChatInput {
  JsonArray messages = {};
  JsonValue tools = {};
  JsonValue documents = {};
  /// Additional variables by name: enable_thinking, bos_token, eos_token, date_string, ...
  JsonObject variables = {};
  bool add_generation_prompt = false;
};

namespace jinja {
class Template;
}

class ChatTemplate {
 public:
  /// `name` (a file) is used in errors. `now` sets the time for strftime_now(); default: the present. Throws UserError
  /// "chat template: ..." with "name:line".
  ChatTemplate(std::string_view source, std::string name, std::optional<std::time_t> now = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// Renders one conversation; thread-safe. Throws UserError for errors of the template, messages that are not an array
  /// of objects, and a variable with the name of another input.
  RenderedChat render(const ChatInput& input) const;

 private:
  struct ProbeCache;

  struct Probed;

  Probed probed(const ChatInput& input) const;

  std::unique_ptr<const jinja::Template> template_;
  std::optional<std::time_t> now_;
  std::unique_ptr<ProbeCache> probes_;
};

}  // namespace hone
