#include "text/stream_decoder.h"

#include "text/utf8.h"

namespace hone {

std::string StreamDecoder::take(const std::string& text) {
  std::string fresh = text.size() > context_text_.size() ? text.substr(context_text_.size()) : std::string();
  window_.erase(window_.begin(), window_.begin() + std::ptrdiff_t(context_));
  context_ = window_.size();
  context_text_ = tokenizer_.decode(window_, skip_special_tokens_);
  return fresh;
}

std::string StreamDecoder::push(int32_t id) {
  window_.push_back(id);
  const std::string text = tokenizer_.decode(window_, skip_special_tokens_);
  const bool grew = text.size() > context_text_.size() && text.starts_with(context_text_);
  return grew && !text.ends_with(kReplacementUtf8) ? take(text) : std::string();
}

std::string StreamDecoder::finish() {
  return context_ < window_.size() ? take(tokenizer_.decode(window_, skip_special_tokens_)) : std::string();
}

}  // namespace hone
