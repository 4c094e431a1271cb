// From messages to the tokens a model continues.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hone {

/// A chat template that is not the tokenizer's own.
struct ChatTemplateSource {
  std::string text;                    ///< Jinja; empty: the tokenizer's own
  std::string name = "chat_template";  ///< its file, for errors
};

/// Builds prompts of one model. Immutable; may be used from many threads.
class ChatPrompt {
 public:
  /// `tokenizer` outlives this. UserError if the template is broken; to have none is an error of render().
  explicit ChatPrompt(const Tokenizer& tokenizer, const ChatTemplateSource& source = {});

  bool has_template() const { return template_.has_value(); }

  /// text/thinking.h of the template; nothing and false without one.
  std::optional<std::string> thinking_switch(const Json& variables) const;
  bool thinks(const Json& variables) const;

  /// The text of `input` followed by what the template writes before an answer (add_generation_prompt is set). The
  /// names of the special tokens are added to its variables. UserError at `where`: there is no template, or it refuses
  /// the messages.
  std::string render(ChatInput input, const std::string& where) const;

  /// The tokens of render(), without special tokens beside those the template writes.
  std::vector<int32_t> encode(ChatInput input, const std::string& where) const;

 private:
  Json with_special_tokens(const Json& variables) const;

  const Tokenizer& tokenizer_;
  Json special_tokens_;
  std::optional<ChatTemplate> template_, tool_template_;
};

}  // namespace hone
