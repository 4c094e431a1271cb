#include "text/chat_mask.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "core/text/json.h"
#include "text/thinking.h"

namespace hone {

namespace {

constexpr std::string_view kBlanks = " \t\r\n";

bool is_answer(const Span& span, int message) {
  return span.message_index == message &&
         (span.kind == SpanKind::kContent || span.kind == SpanKind::kReasoning || span.kind == SpanKind::kToolCall);
}

/// The end of a supervised completion: the end of the text, without white space after a token that ends a turn.
size_t completion_end(std::string_view text, const MaskOptions& options) {
  const size_t last = text.find_last_not_of(kBlanks);
  const std::string_view trimmed = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
  for (const auto* tokens : {&options.end_tokens, &options.special_tokens}) {
    for (const std::string& token : *tokens) {
      if (!token.empty() && trimmed.ends_with(token)) return trimmed.size();
    }
  }
  return text.size();
}

/// A token found in a text: bytes [begin, end).
struct Found {
  size_t begin, end;
};

/// The earliest of `tokens` in `text`; of those at the same position the longest.
std::optional<Found> earliest(std::string_view text, const std::vector<std::string>& tokens) {
  std::optional<Found> best;
  for (const std::string& token : tokens) {
    const size_t at = token.empty() ? std::string_view::npos : text.find(token);
    if (at == std::string_view::npos) continue;
    const Found found{at, at + token.size()};
    if (!best || found.begin < best->begin || (found.begin == best->begin && found.end > best->end)) best = found;
  }
  return best;
}

/// The longest of `tokens` that `text` begins with, ignoring white space.
std::optional<Found> leading(std::string_view text, const std::vector<std::string>& tokens) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return std::nullopt;
  std::optional<Found> best;
  for (const std::string& token : tokens) {
    if (token.empty() || !text.substr(begin).starts_with(token)) continue;
    if (!best || best->end < begin + token.size()) best = Found{begin, begin + token.size()};
  }
  return best;
}

/// The token that ends the turn in the text that a template writes after an answer; empty if there is none.
std::string end_in(std::string_view text, const MaskOptions& options) {
  std::optional<Found> end = earliest(text, options.end_tokens);
  if (!end) end = earliest(text, options.special_tokens);
  return end ? std::string(text.substr(end->begin, end->end - end->begin)) : "";
}

bool is_end_token(std::string_view token, const MaskOptions& options) {
  return std::find(options.end_tokens.begin(), options.end_tokens.end(), token) != options.end_tokens.end();
}

bool is_template_text(const Span& span) { return span.kind == SpanKind::kTemplate || span.kind == SpanKind::kVariable; }

class Masker {
 public:
  Masker(const RenderedChat& chat, const MaskOptions& options) : chat_(chat), options_(options), text_(chat.text) {
    spans_of_.resize(chat.messages.size());
    others_before_.reserve(chat.spans.size() + 1);
    others_before_.push_back(0);
    for (size_t i = 0; i < chat.spans.size(); ++i) {
      const int message = chat.spans[i].message_index;
      if (message >= 0) spans_of_[static_cast<size_t>(message)].push_back(i);
      others_before_.push_back(others_before_.back() + (message >= 0 ? 1 : 0));
    }
    const std::string followed = end_in(chat.ends.followed, options);
    if (!is_end_token(followed, options) && is_end_token(end_in(chat.ends.last, options), options)) {
      end_in_history_ = followed;
    }
  }

  std::vector<SupervisedRange> answers(int message) const {
    std::vector<SupervisedRange> ranges;
    const std::vector<size_t>& own = spans_of_[static_cast<size_t>(message)];
    const bool owned = std::any_of(own.begin(), own.end(), [&](size_t i) { return is_template_text(chat_.spans[i]); });
    for (const AnswerSpans& spans : groups(message)) {
      SupervisedRange range;
      range.message_index = message;
      range.begin = answer_begin(spans.first, message, owned);
      set_end(spans.last, message, owned, range);
      ranges.push_back(range);
    }
    return ranges;
  }

 private:
  /// Spans [first, last] of a message's own characters, with the template's text between them.
  struct AnswerSpans {
    size_t first, last;
  };

  /// The message's own spans, split where text of other messages is between two of them.
  std::vector<AnswerSpans> groups(int message) const {
    std::vector<AnswerSpans> groups;
    bool parted = true;
    size_t next = 0;  // after the previous span of the message
    for (const size_t i : spans_of_[static_cast<size_t>(message)]) {
      const Span& span = chat_.spans[i];
      if (others_before_[i] > others_before_[next] || span.kind == SpanKind::kQuote) parted = true;
      next = i + 1;
      if (!is_answer(span, message)) continue;
      if (parted) groups.push_back({i, i});
      groups.back().last = i;
      parted = false;
    }
    return groups;
  }

  /// Whether span i may contain the header or the end of the message: it was written in the message's iteration of the
  /// template's loop, or, if the loop's iterations are unknown, by no other message's.
  bool belongs(size_t i, int message, bool owned) const {
    const Span& span = chat_.spans[i];
    return !is_answer(span, message) && span.kind != SpanKind::kQuote &&
           (span.message_index == message || (!owned && span.message_index == -1));
  }

  size_t answer_begin(size_t first_span, int message, bool owned) const {
    const size_t first = chat_.spans[first_span].begin;
    size_t lead_begin = first;
    size_t role_end = 0;
    for (size_t i = first_span; i > 0 && belongs(i - 1, message, owned); --i) {
      const Span& span = chat_.spans[i - 1];
      lead_begin = span.begin;
      if (span.kind == SpanKind::kRole) role_end = std::max(role_end, span.end);
    }
    const size_t begin = std::max(header_end(lead_begin, first, owned), role_end);
    return options_.learn_empty_thinking ? begin : behind_closed_thinking(begin, first);
  }

  /// The end of the header in text [lead_begin, first). Without a match, no text before the answer is supervised.
  size_t header_end(size_t lead_begin, size_t first, bool owned) const {
    if (!chat_.answer_header) return first;
    if (chat_.answer_header->empty()) return owned ? lead_begin : first;
    const std::string_view header = *chat_.answer_header;
    const std::string_view unthinking = without_closed_thinking(header);
    for (std::string_view candidate : {header, unthinking}) {
      if (candidate.empty()) continue;
      const size_t from = lead_begin - std::min(lead_begin, candidate.size());
      const size_t at = text_.substr(from, first - from).rfind(candidate);
      if (at != std::string_view::npos) return from + at + candidate.size();
    }
    return part_of_header_end(unthinking, lead_begin, first);
  }

  /// The end of the longest prefix of `header` in text [lead_begin, first), for example "<|assistant|><think>" before
  /// an answer without thinking. The prefix ends at the end of a tag or line, not inside "<thi".
  size_t part_of_header_end(std::string_view header, size_t lead_begin, size_t first) const {
    const std::string_view lead = text_.substr(lead_begin, first - lead_begin);
    for (size_t size = std::min(header.size(), lead.size()); size > 0; --size) {
      const size_t at = lead.rfind(header.substr(0, size));
      if (at == std::string_view::npos) continue;
      const size_t cut = header.substr(0, size).find_last_of("\n>]");
      return cut == std::string_view::npos ? first : lead_begin + at + cut + 1;
    }
    return first;
  }

  /// The header up to its closed think block (thinking is off), for an answer that has thinking nevertheless.
  static std::string_view without_closed_thinking(std::string_view header) {
    for (const auto& [open, close] : kThinkTags) {
      const size_t end = header.find(close);
      if (end != std::string_view::npos) return header.substr(0, std::min(header.rfind(open, end), end));
    }
    return header;
  }

  /// The end of a think block that is closed before the first character of the message: the template inserted it.
  size_t behind_closed_thinking(size_t begin, size_t first) const {
    const std::string_view lead = text_.substr(begin, first - begin);
    size_t end = 0;
    for (const auto& [open, close] : kThinkTags) {
      const size_t at = lead.rfind(close);
      if (at != std::string_view::npos) end = std::max(end, at + close.size());
    }
    if (end == 0) return begin;
    end = std::min(lead.find_first_not_of(kBlanks, end), lead.size());
    return begin + end;
  }

  static std::optional<Found> moved(std::optional<Found> found, size_t by) {
    return found ? std::optional(Found{found->begin + by, found->end + by}) : std::nullopt;
  }

  /// One of `tokens` directly after byte `at`, ignoring white space.
  std::optional<Found> directly_behind(size_t at, const std::vector<std::string>& tokens) const {
    return moved(leading(text_.substr(at), tokens), at);
  }

  void set_end(size_t last_span, int message, bool owned, SupervisedRange& range) const {
    const size_t last = chat_.spans[last_span].end;
    size_t tail_end = last, next_span = last_span + 1;
    for (; next_span < chat_.spans.size() && belongs(next_span, message, owned); ++next_span) {
      tail_end = chat_.spans[next_span].end;
    }
    const std::string_view tail = text_.substr(last, tail_end - last);
    const size_t tail_text_end = tail.find_last_not_of(kBlanks);
    const bool only_blanks = tail_text_end == std::string_view::npos;
    std::optional<Found> end;
    if (owned) {
      end = moved(earliest(tail, options_.end_tokens), last);
      // The token of the next role, before tokens of this one: "</tool_call>" does not end a turn.
      const bool may_follow = next_span < chat_.spans.size() && is_template_text(chat_.spans[next_span]);
      if (!end && may_follow) end = directly_behind(tail_end, options_.end_tokens);
      if (!end) end = moved(earliest(tail, options_.special_tokens), last);
    }
    if (!end && (only_blanks || !owned)) end = directly_behind(last, options_.end_tokens);
    // A special token that another message begins with is its role's, and ends nothing unless generation stops at it.
    const bool of_another = owned && next_span < chat_.spans.size() && chat_.spans[next_span].message_index >= 0;
    if (!end && (only_blanks || !owned) && !of_another) end = directly_behind(last, options_.special_tokens);
    range.ends_turn = end.has_value();
    range.turn_end_begin = end ? end->begin : last;
    const bool runs_out = next_span == chat_.spans.size() || is_template_text(chat_.spans[next_span]);
    const bool closes = owned && !only_blanks && runs_out;  // "</tool_call>" where no token ends the turn
    range.end = end ? end->end : closes ? last + tail_text_end + 1 : last;
    const bool goes_on = static_cast<size_t>(message) + 1 < chat_.messages.size();
    if (!end_in_history_ || (!end && !goes_on)) return;
    const std::string_view found = end ? text_.substr(end->begin, end->end - end->begin) : std::string_view();
    if (found != *end_in_history_) return;
    if (end) range.end = range.turn_end_begin;
    range.ends_turn = false;
    range.end_left_out = true;
  }

  const RenderedChat& chat_;
  const MaskOptions& options_;
  std::string_view text_;
  std::vector<std::vector<size_t>> spans_of_;  // [messages] their spans, ascending
  std::vector<size_t> others_before_;          // [spans + 1] number of spans before that belong to any message
  /// What ends answers only while the conversation goes on: a special token that is not an end token, or nothing ("").
  std::optional<std::string> end_in_history_;
};

}  // namespace

void complete_last_answer(RenderedChat& chat, const MaskOptions& options) {
  if (chat.messages.empty() || chat.messages.back().role != "assistant") return;
  const auto message = static_cast<int>(chat.messages.size() - 1);
  const bool calls = chat.messages.back().tool_calls.rendered > 0;
  const std::string_view next = calls ? chat.ends.next_result : chat.ends.next_question;
  const std::optional<Found> stop = leading(next, options.end_tokens);
  if (!stop) return;
  size_t tail_begin = chat.text.size();
  bool answered = false;
  for (size_t i = chat.spans.size(); i > 0 && !answered; --i) {
    const Span& span = chat.spans[i - 1];
    answered = is_answer(span, message);
    if (!answered && (span.message_index != message || !is_template_text(span))) return;
    if (!answered) tail_begin = span.begin;
  }
  if (!answered || earliest(std::string_view(chat.text).substr(tail_begin), options.end_tokens)) return;
  const size_t begin = chat.text.size();
  chat.text += next.substr(0, stop->end);
  chat.spans.push_back({begin, chat.text.size(), message, SpanKind::kTemplate});
}

std::vector<SupervisedRange> supervised_ranges(const RenderedChat& chat, const MaskOptions& options) {
  if (options.train_on == TrainOn::kAll) {
    return chat.text.empty() ? std::vector<SupervisedRange>()
                             : std::vector<SupervisedRange>{{0, chat.text.size(), chat.text.size(), -1, true}};
  }
  std::vector<SupervisedRange> ranges;
  const Masker masker(chat, options);
  for (size_t i = chat.messages.size(); i-- > 0;) {
    if (chat.messages[i].role != "assistant") continue;
    if (options.train_on == TrainOn::kCompletion && i < options.completion_begin) break;
    const auto found = masker.answers(static_cast<int>(i));
    ranges.insert(ranges.end(), found.begin(), found.end());
    if (options.train_on == TrainOn::kLast) break;
  }
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  if (options.train_on == TrainOn::kCompletion && !ranges.empty()) {
    const size_t end = completion_end(chat.text, options);
    return {{ranges.front().begin, end, end, -1, true}};
  }
  for (size_t i = 1; i < ranges.size(); ++i) ranges[i].begin = std::max(ranges[i].begin, ranges[i - 1].end);
  return ranges;
}

Json special_token_variables(const Tokenizer& tokenizer) {
  Json variables = Json::object();
  const SpecialTokens& special = tokenizer.special_tokens();
  const auto add = [&](const char* name, std::optional<int32_t> id) {
    const auto token = id ? tokenizer.id_to_token(*id) : std::nullopt;
    if (token) variables[name] = *token;
  };
  add("bos_token", special.bos);
  add("eos_token", special.eos);
  add("pad_token", special.pad);
  add("unk_token", special.unk);
  return variables;
}

MaskOptions mask_options(const Tokenizer& tokenizer, TrainOn train_on) {
  MaskOptions options;
  options.train_on = train_on;
  for (const int32_t id : tokenizer.special_tokens().stop) {
    if (const auto token = tokenizer.id_to_token(id)) options.end_tokens.push_back(*token);
  }
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (token.special) options.special_tokens.push_back(token.content);
  }
  return options;
}

namespace {

/// " '</s>'", or nothing without one.
std::string eos_of(const Tokenizer& tokenizer) {
  const std::optional<int32_t> eos = tokenizer.special_tokens().eos;
  const auto token = eos ? tokenizer.id_to_token(*eos) : std::nullopt;
  return token ? fmt::format(" '{}'", *token) : "";
}

}  // namespace

bool begins_with_two_bos(std::span<const int32_t> ids, const SpecialTokens& special) {
  return special.bos && ids.size() > 1 && ids[0] == *special.bos && ids[1] == *special.bos;
}

std::string TurnEnd::problem(const Tokenizer& tokenizer) const {
  if (!learnt) {
    const std::string problem =
        text.empty() ? "the template ends an answer without an end-of-turn token, so the model does not learn to stop"
                     : fmt::format(
                           "the template ends an answer with '{}', which is {} tokens and not one of the "
                           "tokenizer's own",
                           text, ids.size());
    if (next_turn.empty()) {
      return fmt::format("{}; give a chat_template that writes eos_token{} after an answer", problem,
                         eos_of(tokenizer));
    }
    return fmt::format(
        "{}; the next question begins with '{}': with eot_tokens: ['{}'] answers learn it, and generation "
        "stops there",
        problem, next_turn, next_turn);
  }
  if (stops || ids.empty()) return {};
  const std::string token = tokenizer.id_to_token(ids.back()).value_or("?");
  return fmt::format(
      "answers end with '{0}', which is neither eos_token nor in eos_token_id of generation_config.json, so generation "
      "will not stop there; set eot_tokens: ['{0}']",
      token);
}

TurnEnd turn_end(const RenderedChat& chat, const SupervisedRange& range, const Tokenizer& tokenizer) {
  TurnEnd end;
  end.text = chat.text.substr(range.turn_end_begin, range.end - range.turn_end_begin);
  end.ids = tokenizer.encode(end.text, false);
  end.learnt = range.ends_turn;
  const auto& stop = tokenizer.special_tokens().stop;
  end.stops = !end.ids.empty() && std::find(stop.begin(), stop.end(), end.ids.back()) != stop.end();
  if (!end.learnt) {
    const std::vector<std::string> special = mask_options(tokenizer, TrainOn::kAssistant).special_tokens;
    if (const auto next = leading(chat.ends.next_question, special)) {
      end.next_turn = chat.ends.next_question.substr(0, next->end);
      end.next_turn.erase(0, next->begin);
    }
  }
  return end;
}

}  // namespace hone
