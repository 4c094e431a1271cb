// From messages to the tokens a model continues.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hone {

/// Builds prompts of one model. Immutable; may be used from many threads.
class ChatPrompt {
 public:
  /// `tokenizer` outlives this. UserError if its chat template is broken; one that has none is an error of render().
  explicit ChatPrompt(const Tokenizer& tokenizer);

  bool has_template() const { return template_.has_value(); }

  /// The text of `messages` (a list of {"role", "content"}) followed by what the template writes before an answer.
  /// `variables` are further variables of the template (enable_thinking, …). UserError at `where`: there is no
  /// template, it refuses the messages, or they are no list of messages.
  std::string render(const Json& messages, const std::string& where, const Json& variables = Json::object()) const;

  /// The tokens of render(), without special tokens beside those the template writes.
  std::vector<int32_t> encode(const Json& messages, const std::string& where,
                              const Json& variables = Json::object()) const;

 private:
  const Tokenizer& tokenizer_;
  Json special_tokens_;
  std::optional<ChatTemplate> template_;
};

}  // namespace hone
