#include "text/chat_tokens.h"

#include <algorithm>

#include "text/thinking.h"

namespace hone {

size_t span_at(const RenderedChat& chat, size_t at) {
  const auto found =
      std::partition_point(chat.spans.begin(), chat.spans.end(), [&](const Span& span) { return span.end <= at; });
  return static_cast<size_t>(found - chat.spans.begin());
}

bool is_of_message(const RenderedChat& chat, std::string_view token, ByteRange range) {
  const std::string_view found = std::string_view(chat.text).substr(range.begin, range.end - range.begin);
  const size_t at = found.find(token);
  const size_t begin = range.begin + (at == std::string_view::npos ? 0 : at);
  const size_t end = at == std::string_view::npos ? range.end : begin + token.size();
  for (size_t i = span_at(chat, begin); i < chat.spans.size() && chat.spans[i].begin < end; ++i) {
    const SpanKind kind = chat.spans[i].kind;
    if (kind == SpanKind::kTemplate || kind == SpanKind::kVariable || kind == SpanKind::kRole) return false;
  }
  return begin < end;
}

bool is_control_token(const AddedToken& token) {
  return token.special && std::none_of(kThinkTags.begin(), kThinkTags.end(), [&](const auto& tags) {
           return token.content == tags.first || token.content == tags.second;
         });
}

Encoding encode_chat(const Tokenizer& tokenizer, const RenderedChat& chat, bool split_special_tokens) {
  if (!split_special_tokens) return tokenizer.encode_with_offsets(chat.text, false);
  return tokenizer.encode_with_offsets(chat.text, false, [&](const AddedToken& token, ByteRange range) {
    return is_control_token(token) && is_of_message(chat, token.content, range);
  });
}

}  // namespace hone
