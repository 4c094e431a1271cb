#include "text/jinja/marked_string.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "text/jinja/characters.h"

namespace hone::jinja {

MarkedString::MarkedString(std::string text, SourceId source) : text_(std::move(text)) {
  if (!text_.empty()) runs_.push_back({text_.size(), source, 0, 0, false});
}

void MarkedString::push_run(Run run) {
  if (!runs_.empty()) {
    Run& last = runs_.back();
    const size_t begin = runs_.size() > 1 ? runs_[runs_.size() - 2].end : 0;
    const bool continues = run.source == kTemplateText || run.offset == last.offset + (last.end - begin);
    if (last.source == run.source && last.owner == run.owner && last.generation == run.generation && continues) {
      last.end = run.end;
      return;
    }
  }
  runs_.push_back(run);
}

const Run& MarkedString::run_at(size_t at) const {
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), at, [](size_t p, const Run& r) { return p < r.end; });
  HONE_ASSERT(run != runs_.end());
  return *run;
}

void MarkedString::append_part(const MarkedString& other, size_t begin, size_t end) {
  HONE_ASSERT(begin <= end && end <= other.size() && &other != this);
  if (begin == end) return;
  const size_t base = text_.size();
  text_.append(other.text_, begin, end - begin);
  size_t at = begin;
  for (const Run* run = &other.run_at(begin); at < end; ++run) {
    const size_t run_begin = run == other.runs_.data() ? 0 : run[-1].end;
    Run copy = *run;
    if (copy.source != kTemplateText) copy.offset += at - run_begin;
    at = std::min(run->end, end);
    copy.end = base + (at - begin);
    push_run(copy);
  }
}

void MarkedString::append_standing_for(std::string_view replacement, const MarkedString& other, size_t at) {
  const Run& run = other.run_at(at);
  const size_t run_begin = &run == other.runs_.data() ? 0 : (&run)[-1].end;
  for (char byte : replacement) {
    text_ += byte;
    Run copy = run;
    if (copy.source != kTemplateText) copy.offset += at - run_begin;
    copy.end = text_.size();
    push_run(copy);
  }
}

void MarkedString::append_text(std::string_view text, SourceId source) {
  if (text.empty()) return;
  text_ += text;
  push_run({text_.size(), source, source == kTemplateText ? 0 : kWholeInput, 0, false});
}

void MarkedString::append_output(const MarkedString& other, SourceId owner, bool generation) {
  const size_t base = text_.size();
  text_ += other.text_;
  for (Run run : other.runs_) {
    run.end += base;
    if (run.owner == 0) run.owner = owner;
    run.generation = run.generation || generation;
    push_run(run);
  }
}

MarkedString MarkedString::part(size_t begin, size_t end) const {
  MarkedString result;
  result.append_part(*this, begin, end);
  return result;
}

namespace {

bool may_split(size_t pieces, int64_t max_splits) { return max_splits < 0 || pieces < static_cast<size_t>(max_splits); }

std::vector<Piece> split_at(std::string_view text, std::string_view separator, int64_t max_splits, bool from_right) {
  std::vector<Piece> pieces;
  Piece rest{0, text.size()};
  while (may_split(pieces.size(), max_splits)) {
    const std::string_view view = text.substr(rest.begin, rest.end - rest.begin);
    const size_t found = from_right ? view.rfind(separator) : view.find(separator);
    if (found == std::string_view::npos) break;
    if (from_right) {
      pieces.push_back({rest.begin + found + separator.size(), rest.end});
      rest.end = rest.begin + found;
    } else {
      pieces.push_back({rest.begin, rest.begin + found});
      rest.begin += found + separator.size();
    }
  }
  pieces.push_back(rest);
  return pieces;
}

std::vector<Piece> split_at_space(std::string_view text, int64_t max_splits, bool from_right) {
  std::vector<Piece> words;
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    const bool begins_word = words.empty() || words.back().end != at;
    if (!is_space(c.code)) {
      if (begins_word) words.push_back({at, at});
      words.back().end = at + c.size;
    }
    at += c.size;
  }
  const size_t kept = max_splits < 0 ? words.size() : static_cast<size_t>(max_splits);
  if (words.size() <= kept) {
    if (from_right) std::reverse(words.begin(), words.end());
    return words;
  }
  std::vector<Piece> pieces;
  if (from_right) {
    pieces.assign(words.rbegin(), words.rbegin() + static_cast<std::ptrdiff_t>(kept));
    pieces.push_back({0, words[words.size() - kept - 1].end});
  } else {
    pieces.assign(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(kept));
    pieces.push_back({words[kept].begin, text.size()});
  }
  return pieces;
}

/// Appends `text` with each character mapped by `map(code)`; an unchanged character keeps its bytes.
template <class Map>
MarkedString mapped(const MarkedString& text, Map map) {
  MarkedString result;
  size_t copied = 0;
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text.view(), at);
    const std::string replacement = map(c.code);
    if (c.code != 0xFFFD && replacement != text.view().substr(at, c.size)) {
      result.append_part(text, copied, at);
      result.append_standing_for(replacement, text, at);
      copied = at + c.size;
    }
    at += c.size;
  }
  result.append_part(text, copied, text.size());
  return result;
}

}  // namespace

std::vector<Piece> split(std::string_view text, const std::string_view* separator, int64_t max_splits,
                         bool from_right) {
  auto pieces =
      separator ? split_at(text, *separator, max_splits, from_right) : split_at_space(text, max_splits, from_right);
  if (from_right) std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<Piece> split_lines(std::string_view text, bool keep_ends) {
  std::vector<Piece> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    size_t next = at + c.size;
    if (is_line_break(c.code)) {
      if (c.code == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back({begin, keep_ends ? next : at});
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.push_back({begin, text.size()});
  return lines;
}

size_t count_occurrences(std::string_view text, std::string_view old) {
  if (old.empty()) return count_characters(text) + 1;
  size_t count = 0;
  for (size_t at = 0; (at = text.find(old, at)) != std::string_view::npos; at += old.size()) ++count;
  return count;
}

MarkedString replaced(const MarkedString& text, std::string_view old, const MarkedString& replacement,
                      int64_t max_count) {
  MarkedString result;
  size_t at = 0;
  for (int64_t count = 0; max_count < 0 || count < max_count; ++count) {
    const size_t from = old.empty() && count > 0 && at < text.size() ? at + character_at(text.view(), at).size : at;
    if (old.empty() && count > 0 && at >= text.size()) break;
    const size_t found = text.view().find(old, from);
    if (found == std::string_view::npos) break;
    result.append_part(text, at, found);
    result.append(replacement);
    at = found + old.size();
  }
  result.append_part(text, at, text.size());
  return result;
}

MarkedString with_case(const MarkedString& text, Case wanted) {
  bool in_word = false;
  return mapped(text, [&](char32_t c) {
    const bool follows = std::exchange(in_word, wanted == Case::kCapital || is_upper(c) || is_lower(c) || is_title(c));
    switch (wanted) {
      case Case::kUpper:
        return upper_case(c);
      case Case::kLower:
        return lower_case(c);
      case Case::kSwapped:
        return is_upper(c) ? lower_case(c) : upper_case(c);
      case Case::kFolded:
        return c == 0xDF ? std::string("ss") : lower_case(c);
      default:
        return follows ? lower_case(c) : title_case(c);
    }
  });
}

MarkedString trimmed(const MarkedString& text, const std::string_view* stripped, bool left, bool right) {
  const Trimmed kept = trim(text.view(), stripped, left, right);
  return text.part(kept.begin, kept.end);
}

}  // namespace hone::jinja
