#include "app/inference/answer_text.h"

#include <algorithm>

#include "core/text/json.h"
#include "text/thinking.h"

namespace hone {
namespace {

constexpr std::string_view kCallBegin = "<tool_call>", kCallEnd = "</tool_call>", kWhite = " \t\r\n";

/// How many bytes at the end of `text` may be the beginning of `tag`: a proper prefix of it.
size_t begun(std::string_view text, std::string_view tag) {
  for (size_t count = std::min(text.size(), tag.size() - 1); count > 0; --count) {
    if (text.ends_with(tag.substr(0, count))) return count;
  }
  return 0;
}

std::optional<ToolCall> call_of(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return std::nullopt;
  const Json arguments = json.contains("arguments") ? json["arguments"] : Json::object();
  return ToolCall{json["name"].get<std::string>(),
                  arguments.is_string() ? arguments.get<std::string>()
                                        : arguments.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

std::string_view close_of(std::string_view open) {
  for (const auto& [begin, end] : kThinkTags) {
    if (begin == open) return end;
  }
  return "";
}

}  // namespace

AnswerText::AnswerText(const Tokenizer& tokenizer, AnswerTextOptions options)
    : options_(std::move(options)),
      decoder_(tokenizer, true),
      in_(!options_.open_tag.empty() ? In::kThinking
          : options_.thinks          ? In::kStart
                                     : In::kAnswer),
      close_tag_(close_of(options_.open_tag)) {}

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

bool AnswerText::move_until(std::string& out, std::string_view tag, size_t ready, bool last) {
  const std::string_view text = std::string_view(text_).substr(0, ready);
  const size_t found = text.find(tag);
  const size_t moved = found != std::string_view::npos ? found : text.size() - (last ? 0 : begun(text, tag));
  out += text.substr(0, moved);
  text_.erase(0, moved);
  return found != std::string_view::npos;
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
      if (!move_until(piece.reasoning, close_tag_, ready, last)) return false;
      text_.erase(0, close_tag_.size());
      in_ = In::kAnswer;
      trims_ = true;
      return true;
    }
    case In::kAnswer: {
      trim(ready);
      if (!options_.calls) {
        piece.content += text_.substr(0, ready);
        text_.erase(0, ready);
        return false;
      }
      if (!move_until(piece.content, kCallBegin, ready, last)) return false;
      in_ = In::kCall;
      return true;
    }
    case In::kCall: {
      const size_t end = std::string_view(text_).substr(0, ready).find(kCallEnd);
      if (end == std::string_view::npos) {
        if (last || stopped_) piece.content += std::exchange(text_, {});
        return false;
      }
      const std::string_view inner = std::string_view(text_).substr(kCallBegin.size(), end - kCallBegin.size());
      if (std::optional<ToolCall> call = call_of(inner)) {
        piece.calls.push_back(std::move(*call));
        trims_ = true;
      } else {
        piece.content += text_.substr(0, end + kCallEnd.size());
      }
      text_.erase(0, end + kCallEnd.size());
      in_ = In::kAnswer;
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

AnswerPiece AnswerText::push(int32_t id) {
  if (stopped_) return {};
  text_ += decoder_.push(id);
  return advance(false);
}

AnswerPiece AnswerText::finish() {
  if (stopped_) return {};
  text_ += decoder_.finish();
  return advance(true);
}

}  // namespace hone
