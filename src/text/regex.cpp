#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <time.h>

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/json.h"
#include "text/unicode_stand_in.h"
#include "text/utf8.h"

namespace hone {
namespace {

/// Of one match, beside what the length of the text allows: a hundred times what any published tokenizer needs, a
/// second of a hostile one.
constexpr uint32_t kMatchLimit = 10'000'000;
/// CPU time of all matches, beside kMostTime: published tokenizers take less than 100 ns a byte.
constexpr int64_t kMostTime = 3'000'000'000, kMostTimeOfByte = 2000;

int64_t thread_nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}
constexpr size_t kMaxPatternBytes = 64 * 1024;

std::string escape_literal(std::string_view literal) {
  std::string pattern;
  for (const char c : literal) {
    const bool plain = (uint8_t(c) & 0x80) || std::isalnum(uint8_t(c)) || std::isspace(uint8_t(c));
    if (!plain) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace

namespace {

Pcre compile(std::string_view pattern, const std::string& where) {
  if (pattern.size() > kMaxPatternBytes) throw UserError("the regular expression is too long", where);
  try {
    return Pcre(pcre2_from_oniguruma(pattern, where), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, Pcre::Engine::kJit);
  } catch (const PcreError& error) {
    throw UserError(fmt::format("cannot compile the regular expression '{}': {}", pattern, error.what()), where);
  }
}

}  // namespace

Regex::Regex(std::string_view pattern, std::string where) : where_(std::move(where)), code_(compile(pattern, where_)) {}

Regex Regex::from_json(const JsonCursor& pattern) {
  if (const auto regex = pattern.find("Regex")) return Regex(regex->string(), regex->where());
  const JsonCursor literal = pattern.at("String");
  if (literal.string().empty()) literal.fail("the pattern is empty");
  return Regex(escape_literal(literal.string()), literal.where());
}

RegexMatches::RegexMatches(const Regex& regex)
    : regex_(regex), matcher_(regex.code_, kMatchLimit), began_(thread_nanoseconds()) {}

RegexMatches::~RegexMatches() {
  regex_.spent_->nanoseconds += thread_nanoseconds() - began_;
  regex_.spent_->bytes += bytes_;
}

void RegexMatches::start(std::string_view text) {
  text_ = substitute_new_characters(text, shadow_) ? std::string_view(shadow_) : text;
  position_ = 0;
  last_end_.reset();
  bytes_ += int64_t(text_.size());
  // A run of white space, say, is gone through forth and back.
  const uint64_t steps = kMatchLimit + 8 * uint64_t{text_.size()};
  matcher_.set_most_steps(uint32_t(std::min<uint64_t>(steps, UINT32_MAX)));
}

void RegexMatches::check_time() const {
  const int64_t spent = regex_.spent_->nanoseconds + thread_nanoseconds() - began_;
  if (spent > kMostTime + (regex_.spent_->bytes + bytes_) * kMostTimeOfByte) throw PcreError("it takes too long");
}

std::optional<PcreMatcher::Range> RegexMatches::match_at(size_t position) {
  constexpr int64_t kBetweenChecks = 64;  // reading the clock takes as long as two matches
  try {
    if (matches_++ % kBetweenChecks == 0) check_time();
    return matcher_.find(text_, position);
  } catch (const PcreError& error) {
    throw UserError(std::string("the regular expression fails on a text: ") + error.what(), regex_.where_,
                    "write one that goes back less, or leave the text out");
  }
}

std::optional<ByteRange> RegexMatches::next() {
  while (position_ <= text_.size()) {
    const auto match = match_at(position_);
    if (!match) break;
    const ByteRange found{uint32_t(match->begin), uint32_t(match->end)};
    if (found.begin == found.end && last_end_ == found.end) {
      position_ += position_ < text_.size() ? utf8_step(text_, position_).length : 1;
      continue;
    }
    position_ = found.end;
    last_end_ = found.end;
    return found;
  }
  position_ = text_.size() + 1;
  return std::nullopt;
}

}  // namespace hone
