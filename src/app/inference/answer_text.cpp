#include "app/inference/answer_text.h"

#include <algorithm>
#include <array>

#include "core/text/json.h"
#include "text/thinking.h"

namespace hone {
namespace {

constexpr std::string_view kWhite = " \t\r\n";

/// How many bytes at the end of `text` may be the beginning of `tag`: a proper prefix of it.
size_t begun(std::string_view text, std::string_view tag) {
  for (size_t count = std::min(text.size(), tag.size() - 1); count > 0; --count) {
    if (text.ends_with(tag.substr(0, count))) return count;
  }
  return 0;
}

std::string_view close_of(std::string_view open) {
  for (const auto& [begin, end] : kThinkTags) {
    if (begin == open) return end;
  }
  return "";
}

}  // namespace

AnswerText::AnswerText(const Tokenizer& tokenizer, AnswerTextOptions options)
    : options_(std::move(options)), decoder_(tokenizer, true), close_tag_(close_of(options_.open_tag)) {
  const CallForm* form = options_.form;
  const bool messages = form != nullptr && form->body == CallBody::kChannels;
  in_ = messages                     ? In::kHeader
        : !options_.open_tag.empty() ? In::kThinking
        : options_.thinks            ? In::kStart
                                     : In::kAnswer;
  if (form == nullptr || (!messages && options_.tools.is_null())) return;
  const std::vector<std::string_view> marks = marks_of(*form);
  for (const AddedToken& token : tokenizer.added_tokens()) {
    const auto has = [&](std::string_view mark) { return mark.find(token.content) != std::string_view::npos; };
    if (tokenizer.is_special(token.id) && std::any_of(marks.begin(), marks.end(), has)) {
      marks_.emplace(token.id, token.content);
    }
  }
  if (!messages) openings_ = {form->section_begin, form->begin};
  if (!form->begin.empty()) std::erase(openings_, "");
}

size_t AnswerText::before_stop(bool last) {
  size_t found = std::string::npos, held = 0;
  for (const std::string& stop : options_.stop) {
    found = std::min(found, text_.find(stop));
    if (!last) held = std::max(held, begun(text_, stop));
  }
  if (found == std::string::npos) return text_.size() - held;
  text_.resize(found);
  stopped_ = true;
  return found;
}

bool AnswerText::move_until(std::string& out, std::span<const std::string_view> tags, size_t ready, bool last) {
  const std::string_view text = std::string_view(text_).substr(0, ready);
  size_t found = std::string_view::npos, held = 0;
  for (const std::string_view tag : tags) {
    found = std::min(found, text.find(tag));
    if (!last) held = std::max(held, begun(text, tag));
  }
  const size_t moved = found != std::string_view::npos ? found : text.size() - held;
  out += text.substr(0, moved);
  text_.erase(0, moved);
  return found != std::string_view::npos;
}

bool AnswerText::starts_unmarked_call(AnswerPiece& piece, size_t ready, bool last) {
  const size_t begin = std::min(text_.find_first_not_of(kWhite), ready);
  if (begin == ready && !last) return false;
  piece.content += text_.substr(0, begin);
  text_.erase(0, begin);
  openings_.clear();
  in_ = text_.starts_with('{') ? In::kCall : In::kAnswer;
  return true;
}

void AnswerText::trim(size_t& ready) {
  if (!trims_) return;
  const size_t begin = std::min(text_.find_first_not_of("\r\n"), ready);
  trims_ = begin == ready;
  text_.erase(0, begin);
  ready -= begin;
}

bool AnswerText::divide(AnswerPiece& piece, size_t ready, bool last) {
  switch (in_) {
    case In::kStart: {
      const size_t begin = text_.find_first_not_of(kWhite);
      const std::string_view text = begin >= ready ? "" : std::string_view(text_).substr(begin, ready - begin);
      for (const auto& [open, close] : kThinkTags) {
        if (text.starts_with(open)) {
          text_.erase(0, begin + open.size());
          close_tag_ = close;
          in_ = In::kThinking;
          trims_ = true;
          return true;
        }
        if (!last && !stopped_ && open.starts_with(text)) return false;  // it may yet be one
      }
      in_ = In::kAnswer;
      return true;
    }
    case In::kThinking: {
      trim(ready);
      if (!move_until(piece.reasoning, std::array{std::string_view(close_tag_)}, ready, last)) return false;
      text_.erase(0, close_tag_.size());
      in_ = In::kAnswer;
      trims_ = true;
      return true;
    }
    case In::kAnswer: {
      trim(ready);
      if (openings_.empty()) {
        piece.content += text_.substr(0, ready);
        text_.erase(0, ready);
        return false;
      }
      if (options_.form->begin.empty()) return starts_unmarked_call(piece, ready, last);
      if (!move_until(piece.content, openings_, ready, last)) return false;
      in_ = In::kCall;
      return true;
    }
    case In::kCall: {
      const ReadCalls read = read_calls(*options_.form, std::string_view(text_).substr(0, ready), last, options_.tools);
      if (read.more) return false;
      if (read.calls.empty()) piece.content += text_.substr(0, read.size);
      trims_ = !read.calls.empty();
      piece.calls.insert(piece.calls.end(), read.calls.begin(), read.calls.end());
      text_.erase(0, read.size);
      in_ = In::kAnswer;
      return true;
    }
    case In::kHeader: {
      if (ready == 0) return false;
      const ReadMessage read =
          read_message(*options_.form, std::string_view(text_).substr(0, ready), last, !options_.tools.is_null());
      if (read.more) return false;
      piece.calls.insert(piece.calls.end(), read.calls.begin(), read.calls.end());
      text_.erase(0, read.size);
      thinks_ = read.thinks;
      if (read.calls.empty()) in_ = In::kMessage;
      return true;
    }
    case In::kMessage: {
      std::string& out = thinks_ ? piece.reasoning : piece.content;
      const std::array ends = {options_.form->section_end};
      if (!move_until(out, ends, ready, last)) return false;
      text_.erase(0, ends.front().size());
      in_ = In::kHeader;
      return true;
    }
  }
  return false;
}

AnswerPiece AnswerText::advance(bool last) {
  AnswerPiece piece;
  size_t whole = 0, ready = before_stop(last);
  do {
    whole = text_.size();
    if (!divide(piece, ready, last || stopped_)) break;
    ready -= std::min(ready, whole - text_.size());
  } while (true);
  return piece;
}

std::string AnswerText::decoded(int32_t id) {
  const auto mark = marks_.find(id);
  return mark == marks_.end() ? decoder_.push(id) : decoder_.finish() + mark->second;
}

AnswerPiece AnswerText::push(int32_t id) {
  if (stopped_) return {};
  text_ += decoded(id);
  return advance(false);
}

AnswerPiece AnswerText::finish() {
  if (stopped_) return {};
  text_ += decoder_.finish();
  return advance(true);
}

}  // namespace hone
