#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <time.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/utf8.h"

namespace hone {
namespace {

// Letters, marks, digits and symbols added in Unicode 15 to 16, for a regular expression engine of an older Unicode.

enum Category : uint8_t { kLu, kLl, kLm, kLo, kMn, kMc, kNd, kNo, kPd, kPo, kSm, kSo, kHan };

struct NewRange {
  char32_t first, last;
  Category category;
};

/// Code points whose general category differs between Unicode 14 and 16 (UnicodeData.txt), without Cf, ascending.
constexpr NewRange kNewRanges[] = {
    {0x897, 0x897, kMn},     {0xCF3, 0xCF3, kMc},     {0xECE, 0xECE, kMn},      {0x1B4E, 0x1B4F, kPo},
    {0x1B7F, 0x1B7F, kPo},   {0x1C89, 0x1C89, kLu},   {0x1C8A, 0x1C8A, kLl},    {0x2427, 0x2429, kSo},
    {0x2FFC, 0x2FFF, kSo},   {0x31E4, 0x31E5, kSo},   {0x31EF, 0x31EF, kSo},    {0xA7CB, 0xA7CC, kLu},
    {0xA7CD, 0xA7CD, kLl},   {0xA7DA, 0xA7DA, kLu},   {0xA7DB, 0xA7DB, kLl},    {0xA7DC, 0xA7DC, kLu},
    {0x105C0, 0x105F3, kLo}, {0x10D40, 0x10D49, kNd}, {0x10D4A, 0x10D4D, kLo},  {0x10D4E, 0x10D4E, kLm},
    {0x10D4F, 0x10D4F, kLo}, {0x10D50, 0x10D65, kLu}, {0x10D69, 0x10D6D, kMn},  {0x10D6E, 0x10D6E, kPd},
    {0x10D6F, 0x10D6F, kLm}, {0x10D70, 0x10D85, kLl}, {0x10D8E, 0x10D8F, kSm},  {0x10EC2, 0x10EC4, kLo},
    {0x10EFC, 0x10EFF, kMn}, {0x1123F, 0x11240, kLo}, {0x11241, 0x11241, kMn},  {0x11380, 0x11389, kLo},
    {0x1138B, 0x1138B, kLo}, {0x1138E, 0x1138E, kLo}, {0x11390, 0x113B5, kLo},  {0x113B7, 0x113B7, kLo},
    {0x113B8, 0x113BA, kMc}, {0x113BB, 0x113C0, kMn}, {0x113C2, 0x113C2, kMc},  {0x113C5, 0x113C5, kMc},
    {0x113C7, 0x113CA, kMc}, {0x113CC, 0x113CD, kMc}, {0x113CE, 0x113CE, kMn},  {0x113CF, 0x113CF, kMc},
    {0x113D0, 0x113D0, kMn}, {0x113D1, 0x113D1, kLo}, {0x113D2, 0x113D2, kMn},  {0x113D3, 0x113D3, kLo},
    {0x113D4, 0x113D5, kPo}, {0x113D7, 0x113D8, kPo}, {0x113E1, 0x113E2, kMn},  {0x116D0, 0x116E3, kNd},
    {0x11B00, 0x11B09, kPo}, {0x11BC0, 0x11BE0, kLo}, {0x11BE1, 0x11BE1, kPo},  {0x11BF0, 0x11BF9, kNd},
    {0x11F00, 0x11F01, kMn}, {0x11F02, 0x11F02, kLo}, {0x11F03, 0x11F03, kMc},  {0x11F04, 0x11F10, kLo},
    {0x11F12, 0x11F33, kLo}, {0x11F34, 0x11F35, kMc}, {0x11F36, 0x11F3A, kMn},  {0x11F3E, 0x11F3F, kMc},
    {0x11F40, 0x11F40, kMn}, {0x11F41, 0x11F41, kMc}, {0x11F42, 0x11F42, kMn},  {0x11F43, 0x11F4F, kPo},
    {0x11F50, 0x11F59, kNd}, {0x11F5A, 0x11F5A, kMn}, {0x1342F, 0x1342F, kLo},  {0x13440, 0x13440, kMn},
    {0x13441, 0x13446, kLo}, {0x13447, 0x13455, kMn}, {0x13460, 0x143FA, kLo},  {0x16100, 0x1611D, kLo},
    {0x1611E, 0x16129, kMn}, {0x1612A, 0x1612C, kMc}, {0x1612D, 0x1612F, kMn},  {0x16130, 0x16139, kNd},
    {0x16D40, 0x16D42, kLm}, {0x16D43, 0x16D6A, kLo}, {0x16D6B, 0x16D6C, kLm},  {0x16D6D, 0x16D6F, kPo},
    {0x16D70, 0x16D79, kNd}, {0x18CFF, 0x18CFF, kLo}, {0x1B132, 0x1B132, kLo},  {0x1B155, 0x1B155, kLo},
    {0x1CC00, 0x1CCEF, kSo}, {0x1CCF0, 0x1CCF9, kNd}, {0x1CD00, 0x1CEB3, kSo},  {0x1D2C0, 0x1D2D3, kNo},
    {0x1DF25, 0x1DF2A, kLl}, {0x1E030, 0x1E06D, kLm}, {0x1E08F, 0x1E08F, kMn},  {0x1E4D0, 0x1E4EA, kLo},
    {0x1E4EB, 0x1E4EB, kLm}, {0x1E4EC, 0x1E4EF, kMn}, {0x1E4F0, 0x1E4F9, kNd},  {0x1E5D0, 0x1E5ED, kLo},
    {0x1E5EE, 0x1E5EF, kMn}, {0x1E5F0, 0x1E5F0, kLo}, {0x1E5F1, 0x1E5FA, kNd},  {0x1E5FF, 0x1E5FF, kPo},
    {0x1F6DC, 0x1F6DC, kSo}, {0x1F774, 0x1F776, kSo}, {0x1F77B, 0x1F77F, kSo},  {0x1F7D9, 0x1F7D9, kSo},
    {0x1F8B2, 0x1F8BB, kSo}, {0x1F8C0, 0x1F8C1, kSo}, {0x1FA75, 0x1FA77, kSo},  {0x1FA87, 0x1FA89, kSo},
    {0x1FA8F, 0x1FA8F, kSo}, {0x1FAAD, 0x1FAAF, kSo}, {0x1FABB, 0x1FABF, kSo},  {0x1FAC6, 0x1FAC6, kSo},
    {0x1FACE, 0x1FACF, kSo}, {0x1FADA, 0x1FADC, kSo}, {0x1FADF, 0x1FADF, kSo},  {0x1FAE8, 0x1FAE9, kSo},
    {0x1FAF7, 0x1FAF8, kSo}, {0x1FBCB, 0x1FBEF, kSo}, {0x2B739, 0x2B739, kHan}, {0x2EBF0, 0x2EE5D, kHan},
    {0x31350, 0x323AF, kHan}};

/// A character of Unicode 14 with this category, of three and of four UTF-8 bytes. Categories without new characters of
/// three bytes repeat that of four, which is then not used.
constexpr char32_t kStandIns[][2] = {
    {0x1E00, 0x10400},   // Lu
    {0x1E01, 0x10428},   // Ll
    {0x16B40, 0x16B40},  // Lm
    {0x10000, 0x10000},  // Lo
    {0x1AB0, 0x101FD},   // Mn
    {0x0903, 0x11000},   // Mc
    {0x1D7CE, 0x1D7CE},  // Nd
    {0x10107, 0x10107},  // No
    {0x10EAD, 0x10EAD},  // Pd
    {0x1B5A, 0x10100},   // Po
    {0x1D6C1, 0x1D6C1},  // Sm
    {0x2600, 0x1F600},   // So
    {0x20000, 0x20000},  // Lo of the Han script
};

const NewRange* find_range(char32_t code) {
  const NewRange* range = std::upper_bound(std::begin(kNewRanges), std::end(kNewRanges), code,
                                           [](char32_t c, const NewRange& r) { return c < r.first; });
  return range != std::begin(kNewRanges) && code <= range[-1].last ? range - 1 : nullptr;
}

/// Which blocks of 64 characters below U+10000 have a character in the table: few texts contain one, and the others
/// need no further look-up.
class NewBlocks {
 public:
  NewBlocks() {
    for (const NewRange& range : kNewRanges)
      for (char32_t code = range.first; code <= range.last && code < 0x10000; ++code) blocks_[code >> 6] = true;
  }
  bool has(char32_t code) const { return code >= 0x10000 || blocks_[code >> 6]; }

 private:
  std::array<bool, 0x10000 / 64> blocks_{};
};

/// PCRE2 10.42 implements Unicode 14, Hugging Face tokenizers Unicode 16. Writes `text` to `shadow` with each character
/// added since Unicode 14 replaced by an older one of the same general category and UTF-8 length (an ideograph by an
/// ideograph), so matches in `shadow` are matches in `text`. Returns false without changing `shadow` when there is none
/// (nearly always). `text` is valid UTF-8.
bool substitute_new_characters(std::string_view text, std::string& shadow) {
  static const NewBlocks new_blocks;
  bool changed = false;
  for (size_t position = 0; position < text.size(); ++position) {
    if (uint8_t(text[position]) < 0xE0) continue;  // no lead byte of U+0800 or above
    const Utf8Step step = utf8_step(text, position);
    if (!new_blocks.has(step.code)) continue;
    const NewRange* range = find_range(step.code);
    if (range == nullptr) continue;
    if (!changed) shadow.assign(text);
    changed = true;
    std::string stand_in;
    append_utf8(stand_in, kStandIns[range->category][step.length - 3]);
    shadow.replace(position, stand_in.size(), stand_in);
  }
  return changed;
}

/// Steps of one match, in addition to those allowed by the length of the text: 100 times what any published tokenizer
/// needs, one second of a malicious one.
constexpr uint32_t kMatchLimit = 10'000'000;
/// CPU time of all matches, in addition to kMostTimeOfByte per byte and kMostTimeOfText per text: published tokenizers
/// take less than 100 ns per byte and 2 µs per text. It stops an expression that scans the rest of a text at every
/// place, which takes no steps; on a slow or busy machine, good data stay far below.
constexpr int64_t kMostTime = 3'000'000'000, kMostTimeOfByte = 2000, kMostTimeOfText = 100'000;

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
  regex_.spent_->texts += texts_;
}

void RegexMatches::start(std::string_view text) {
  text_ = substitute_new_characters(text, shadow_) ? std::string_view(shadow_) : text;
  position_ = 0;
  last_end_.reset();
  bytes_ += int64_t(text_.size());
  ++texts_;
  // A run of white space, for example, is scanned forward and back.
  const uint64_t steps = kMatchLimit + 8 * uint64_t{text_.size()};
  matcher_.set_most_steps(uint32_t(std::min<uint64_t>(steps, UINT32_MAX)));
}

void RegexMatches::check_time() const {
  const Regex::Spent& spent = *regex_.spent_;
  const int64_t taken = spent.nanoseconds + thread_nanoseconds() - began_;
  const int64_t allowed = (spent.bytes + bytes_) * kMostTimeOfByte + (spent.texts + texts_) * kMostTimeOfText;
  if (taken > kMostTime + allowed) throw PcreError("it takes too long");
}

std::optional<PcreMatcher::Range> RegexMatches::match_at(size_t position) {
  constexpr int64_t kBetweenChecks = 64;  // reading the clock takes as long as two matches
  try {
    if (matches_++ % kBetweenChecks == 0) check_time();
    return matcher_.find(text_, position);
  } catch (const PcreError& error) {
    throw UserError(std::string("the regular expression fails on a text: ") + error.what(), regex_.where_,
                    "use an expression with less backtracking, or remove the text");
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
