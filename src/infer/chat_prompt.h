// Builds the prompt tokens of a model from messages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/text/json_value.h"
#include "text/call_forms.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hone {

/// A chat template other than the tokenizer's own.
struct ChatTemplateSource {
  std::string text;                    ///< Jinja; empty: the tokenizer's own
  std::string name = "chat_template";  ///< its file, for errors
};

/// A rendered prompt, and its tokens.
struct EncodedPrompt {
  std::string text;
  std::vector<int32_t> ids;
};

/// Builds prompts for one model. Immutable and thread-safe.
class ChatPrompt {
 public:
  /// `tokenizer` must outlive this. With `split_special_tokens`, special tokens in the text of messages are text, as in
  /// training with the key of that name. Throws UserError for an invalid template; without a template render() throws.
  explicit ChatPrompt(const Tokenizer& tokenizer, const ChatTemplateSource& source = {},
                      bool split_special_tokens = false);

  bool has_template() const { return template_.has_value(); }

  /// text/thinking.h for the template; nothing and false without one.
  std::optional<std::string> thinking_switch(const Json& variables) const;
  bool thinks(const Json& variables) const;
  /// The form in which the template for tools writes their calls; null: none that is known. Renders the template.
  const CallForm* call_form(const Json& variables) const;

  /// The text of `input` followed by the generation prompt (sets add_generation_prompt). Adds the names of the special
  /// tokens to the variables. Throws UserError at `where` if there is no template, or if it rejects the messages.
  std::string render(ChatInput input, const std::string& where) const;

  /// The tokens of render(), without special tokens other than those of the template.
  std::vector<int32_t> encode(ChatInput input, const std::string& where) const;
  /// The same with that text, rendered once.
  EncodedPrompt encode_with_text(ChatInput input, const std::string& where) const;

 private:
  RenderedChat rendered(ChatInput input, const std::string& where) const;
  Json with_special_tokens(const Json& variables) const;

  const Tokenizer& tokenizer_;
  bool split_special_tokens_;
  JsonValue special_tokens_;
  std::optional<ChatTemplate> template_, tool_template_;
  std::string source_for_tools_;  // the template for chats with tools
};

}  // namespace hone
