#include "text/jinja/marked_string.h"

#include <algorithm>

#include "core/error.h"

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

}  // namespace hone::jinja
