// The tokens of a rendered chat: special tokens are those of the template, and may be only those.
#pragma once

#include <cstddef>
#include <string_view>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hone {

/// Index of the span that contains byte `at` of the text; the number of spans if `at` is past the last one.
size_t span_at(const RenderedChat& chat, size_t at);

/// Whether the text of `token` at these bytes, which may include white space around it, is what a message says. A token
/// that the template makes of a role ('<|' + role + '|>') is not.
bool is_of_message(const RenderedChat& chat, std::string_view token, ByteRange range);

/// Whether the token steers the model: it is special. Think tags are meant where they stand in the text of messages.
bool is_control_token(const AddedToken& token);

/// The tokens of the text, without special tokens other than those in it. With `split_special_tokens`, control tokens
/// in the text of messages are encoded as other text is.
Encoding encode_chat(const Tokenizer& tokenizer, const RenderedChat& chat, bool split_special_tokens);

}  // namespace hone
