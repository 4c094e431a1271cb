#include "text/aligned_text.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace hone {

void LengthBudget::spend(size_t bytes) {
  if (bytes <= left_) {
    left_ -= bytes;
    return;
  }
  throw UserError(fmt::format("a text of {} bytes is lengthened too much", text_bytes_),
                  "tokenizer.json: normalizer, pre_tokenizer",
                  "the tokenizer is damaged or malicious: download it again from its publisher");
}

ByteRange AlignedText::origin(size_t begin, size_t end) const {
  if (!rewritten_) return {uint32_t(origin_ + begin), uint32_t(origin_ + end)};
  if (begin < end) return {ranges_[begin].begin, ranges_[end - 1].end};
  const uint32_t at = begin < ranges_.size() ? ranges_[begin].begin : ranges_.empty() ? origin_ : ranges_.back().end;
  return {at, at};
}

AlignedText AlignedText::slice(size_t begin, size_t end) const {
  if (!rewritten_) return AlignedText(borrowed_.substr(begin, end - begin), uint32_t(origin_ + begin), budget_);
  AlignedText part(std::string_view(), origin(begin, begin).begin, budget_);
  part.rewritten_ = true;
  part.owned_ = owned_.substr(begin, end - begin);
  part.ranges_.assign(ranges_.begin() + std::ptrdiff_t(begin), ranges_.begin() + std::ptrdiff_t(end));
  return part;
}

void TextRewriter::copy(size_t begin, size_t end) {
  result_.owned_.append(source_.text().substr(begin, end - begin));
  if (source_.rewritten_) {
    const auto ranges = source_.ranges_.begin();
    result_.ranges_.insert(result_.ranges_.end(), ranges + std::ptrdiff_t(begin), ranges + std::ptrdiff_t(end));
    return;
  }
  const size_t known = result_.ranges_.size();
  result_.ranges_.resize(known + (end - begin));
  for (size_t i = 0; i < end - begin; ++i) {
    const auto at = uint32_t(source_.origin_ + begin + i);
    result_.ranges_[known + i] = {at, at + 1};
  }
}

void TextRewriter::replace(size_t begin, size_t end, std::string_view with) {
  if (source_.budget_ && with.size() > end - begin) source_.budget_->spend(with.size() - (end - begin));
  result_.owned_.append(with);
  result_.ranges_.insert(result_.ranges_.end(), with.size(), source_.origin(begin, end));
}

AlignedText TextRewriter::finish() {
  result_.rewritten_ = true;
  result_.origin_ = source_.origin(0, 0).begin;
  result_.budget_ = source_.budget_;
  return std::move(result_);
}

}  // namespace hone
