#include "text/chat_mask.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "core/json.h"
#include "text/thinking.h"

namespace hone {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

bool is_answer(const Span& span, int message) {
  return span.message_index == message &&
         (span.kind == SpanKind::kContent || span.kind == SpanKind::kReasoning || span.kind == SpanKind::kToolCall);
}

/// Spans [first, last] of a message's own characters, with the template's text between them.
struct AnswerSpans {
  size_t first, last;
};

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

class Masker {
 public:
  Masker(const RenderedChat& chat, const MaskOptions& options) : chat_(chat), options_(options), text_(chat.text) {}

  std::vector<SupervisedRange> answers(int message) const {
    std::vector<SupervisedRange> ranges;
    const bool owned = std::any_of(chat_.spans.begin(), chat_.spans.end(), [&](const Span& span) {
      return span.message_index == message && (span.kind == SpanKind::kTemplate || span.kind == SpanKind::kVariable);
    });
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
  /// The message's own spans, split where text of other messages is between two of them.
  std::vector<AnswerSpans> groups(int message) const {
    std::vector<AnswerSpans> groups;
    bool parted = true;
    for (size_t i = 0; i < chat_.spans.size(); ++i) {
      const Span& span = chat_.spans[i];
      if (is_answer(span, message)) {
        if (parted) groups.push_back({i, i});
        groups.back().last = i;
        parted = false;
      } else if (span.kind == SpanKind::kQuote || (span.message_index != message && span.message_index != -1)) {
        parted = true;
      }
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
      if (candidate.empty() || candidate.size() > first) continue;
      const size_t at = text_.rfind(candidate, first - candidate.size());
      if (at != std::string_view::npos && at + candidate.size() >= lead_begin) return at + candidate.size();
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

  /// The earliest of `tokens` in `text`; of those at the same position the longest.
  static std::optional<Found> earliest(std::string_view text, const std::vector<std::string>& tokens) {
    std::optional<Found> best;
    for (const std::string& token : tokens) {
      const size_t at = token.empty() ? std::string_view::npos : text.find(token);
      if (at == std::string_view::npos) continue;
      const Found found{at, at + token.size()};
      if (!best || found.begin < best->begin || (found.begin == best->begin && found.end > best->end)) best = found;
    }
    return best;
  }

  /// A special token directly after byte `at`, ignoring white space.
  std::optional<Found> directly_behind(size_t at) const {
    const size_t begin = std::min(text_.find_first_not_of(kBlanks, at), text_.size());
    std::optional<Found> best;
    for (const auto* tokens : {&options_.end_tokens, &options_.special_tokens}) {
      for (const std::string& token : *tokens) {
        if (token.empty() || !text_.substr(begin).starts_with(token)) continue;
        if (!best || best->end < begin + token.size()) best = Found{begin, begin + token.size()};
      }
    }
    return best;
  }

  void set_end(size_t last_span, int message, bool owned, SupervisedRange& range) const {
    const size_t last = chat_.spans[last_span].end;
    size_t tail_end = last, next_span = last_span + 1;
    for (; next_span < chat_.spans.size() && belongs(next_span, message, owned); ++next_span) {
      tail_end = chat_.spans[next_span].end;
    }
    const std::string_view tail = text_.substr(last, tail_end - last);
    std::optional<Found> end;
    if (owned) end = earliest(tail, options_.end_tokens);
    if (owned && !end) end = earliest(tail, options_.special_tokens);
    if (end) end = Found{end->begin + last, end->end + last};
    const size_t tail_text_end = tail.find_last_not_of(kBlanks);
    const bool only_blanks = tail_text_end == std::string_view::npos;
    if (!end && (only_blanks || !owned)) end = directly_behind(last);
    range.ends_turn = end.has_value();
    range.turn_end_begin = end ? end->begin : last;
    const bool runs_out = next_span == chat_.spans.size() || chat_.spans[next_span].kind == SpanKind::kTemplate ||
                          chat_.spans[next_span].kind == SpanKind::kVariable;
    const bool closes = owned && !only_blanks && runs_out;  // "</tool_call>" where no token ends the turn
    range.end = end ? end->end : closes ? last + tail_text_end + 1 : last;
  }

  const RenderedChat& chat_;
  const MaskOptions& options_;
  std::string_view text_;
};

}  // namespace

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

bool begins_with_two_bos(std::span<const int32_t> ids, const SpecialTokens& special) {
  return special.bos && ids.size() > 1 && ids[0] == *special.bos && ids[1] == *special.bos;
}

std::string TurnEnd::problem(const Tokenizer& tokenizer) const {
  if (text.empty())
    return "the template ends an answer without an end-of-turn token, so the model does not learn to stop";
  if (!learnt) {
    return fmt::format("the template ends an answer with '{}', which is {} tokens and not one of the tokenizer's own",
                       text, ids.size());
  }
  if (stops || ids.empty()) return {};
  return fmt::format(
      "answers end with '{}', which is neither eos_token nor in eos_token_id of generation_config.json, so "
      "generation will not stop there",
      tokenizer.id_to_token(ids.back()).value_or("?"));
}

TurnEnd turn_end(const RenderedChat& chat, const SupervisedRange& range, const Tokenizer& tokenizer) {
  TurnEnd end;
  end.text = chat.text.substr(range.turn_end_begin, range.end - range.turn_end_begin);
  end.ids = tokenizer.encode(end.text, false);
  end.learnt = range.ends_turn;
  const auto& stop = tokenizer.special_tokens().stop;
  end.stops = !end.ids.empty() && std::find(stop.begin(), stop.end(), end.ids.back()) != stop.end();
  return end;
}

}  // namespace hone
