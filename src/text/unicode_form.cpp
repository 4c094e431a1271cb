// Unicode normalisation forms (UAX #15) with utf8proc, applied only where characters may change.

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "text/normalizer.h"
#include "text/utf8.h"

namespace hone {
namespace {

struct CodeRange {
  char32_t first, last;
};

/// Characters with a combining class or a decomposition that Unicode 10 to 16 added (UnicodeData.txt). Hugging Face
/// tokenizers normalises with Unicode 9, in which they are ordinary characters.
constexpr CodeRange kAfterUnicode9[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x105C0, 0x105F3},
    {0x10781, 0x107BA}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x11241, 0x11241}, {0x1133B, 0x1133B},
    {0x11380, 0x113E2}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x16100, 0x16139}, {0x16D40, 0x16D79}, {0x16FF0, 0x16FF1}, {0x1CCD6, 0x1CCF9},
    {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

bool is_after_unicode9(char32_t code) {
  const CodeRange* range = std::upper_bound(std::begin(kAfterUnicode9), std::end(kAfterUnicode9), code,
                                            [](char32_t c, const CodeRange& r) { return c < r.first; });
  return range != std::begin(kAfterUnicode9) && code <= range[-1].last;
}

utf8proc_option_t options_of(UnicodeForm form) {
  switch (form) {
    case UnicodeForm::kNfc:
      return utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    case UnicodeForm::kNfd:
      return utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    case UnicodeForm::kNfkc:
      return utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case UnicodeForm::kNfkd:
      return utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  }
  HONE_ASSERT(false, "unknown form");
}

std::string normalize_with_utf8proc(std::string_view text, UnicodeForm form) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             utf8proc_ssize_t(text.size()), &mapped, options_of(form));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(mapped, std::free);
  HONE_ASSERT(size >= 0, utf8proc_errmsg(size));
  return std::string(reinterpret_cast<const char*>(mapped), size_t(size));
}

/// `text` decomposed, with its marks in canonical order. utf8proc orders marks by swapping neighbours, which takes
/// quadratic time for a run of marks.
std::string ordered_marks(std::string_view text, UnicodeForm form) {
  const auto apart = utf8proc_option_t((options_of(form) & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE);
  struct Character {
    utf8proc_int32_t code;
    utf8proc_propval_t mark;  // its combining class; 0: not a mark
  };
  std::vector<Character> characters;
  for (size_t position = 0; position < text.size();) {
    const Utf8Step step = utf8_step(text, position);
    position += step.length;
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(utf8proc_int32_t(step.code), parts, 32, apart, &boundary);
    HONE_ASSERT(count >= 0 && count <= 32, "a character of more than 32 parts");
    for (utf8proc_ssize_t i = 0; i < count; ++i)
      characters.push_back({parts[i], utf8proc_get_property(parts[i])->combining_class});
  }
  const auto is_mark = [](const Character& character) { return character.mark != 0; };
  for (auto begin = characters.begin(); begin != characters.end();) {
    begin = std::find_if(begin, characters.end(), is_mark);
    const auto end = std::find_if_not(begin, characters.end(), is_mark);
    std::stable_sort(begin, end, [](const Character& a, const Character& b) { return a.mark < b.mark; });
    begin = end;
  }
  std::string result;
  for (const Character& character : characters) append_utf8(result, char32_t(character.code));
  return result;
}

std::string normalize_bytes(std::string_view text, UnicodeForm form) {
  constexpr size_t kLongRun = 256;
  if (text.size() > kLongRun) {
    const std::string ordered = ordered_marks(text, form);
    return normalize_with_utf8proc(ordered, form);
  }
  return normalize_with_utf8proc(text, form);
}

/// Whether no character combines with or reorders before `code` from the left, so a text may be split before it. The
/// second half of a composition never starts a grapheme (UAX #29 keeps canonical equivalents together).
bool is_boundary(char32_t code) {
  if (code < 0x300 || is_after_unicode9(code)) return true;
  const utf8proc_property_t& property = *utf8proc_get_property(utf8proc_int32_t(code));
  if (property.combining_class != 0) return false;
  switch (property.boundclass) {
    case UTF8PROC_BOUNDCLASS_EXTEND:
    case UTF8PROC_BOUNDCLASS_SPACINGMARK:
    case UTF8PROC_BOUNDCLASS_V:
    case UTF8PROC_BOUNDCLASS_T:
      return false;
    default:
      return true;
  }
}

constexpr char32_t kCommonEnd = 0x10000;

/// Tables of is_boundary() and is_inert() for common characters; inert ones added after Unicode 9 are left to
/// is_inert().
struct CommonCharacters {
  std::vector<bool> boundary = std::vector<bool>(kCommonEnd), inert = std::vector<bool>(kCommonEnd);

  explicit CommonCharacters(UnicodeForm form) {
    for (char32_t code = 0; code < kCommonEnd; ++code) {
      boundary[code] = is_boundary(code);
      inert[code] = is_inert(code, form) && !is_after_unicode9(code);
    }
  }
};

const CommonCharacters& common_characters(UnicodeForm form) {
  // Each table is built at its first use: a tokenizer has one form.
  switch (form) {
    case UnicodeForm::kNfc: {
      static const CommonCharacters table(UnicodeForm::kNfc);
      return table;
    }
    case UnicodeForm::kNfd: {
      static const CommonCharacters table(UnicodeForm::kNfd);
      return table;
    }
    case UnicodeForm::kNfkc: {
      static const CommonCharacters table(UnicodeForm::kNfkc);
      return table;
    }
    case UnicodeForm::kNfkd: {
      static const CommonCharacters table(UnicodeForm::kNfkd);
      return table;
    }
  }
  HONE_ASSERT(false, "unknown form");
}

class UnicodeNormalizer : public Normalizer {
 public:
  explicit UnicodeNormalizer(UnicodeForm form) : form_(form), common_(common_characters(form)) {}

  void apply(AlignedText& text) const override {
    std::optional<Change> change = next_change(text.text(), 0);
    if (!change) return;
    TextRewriter rewriter(text);
    size_t kept = 0;
    for (; change; change = next_change(text.text(), kept)) {
      rewriter.copy(kept, change->begin);
      rewriter.replace(change->begin, change->end, change->with);
      kept = change->end;
    }
    rewriter.copy(kept, text.text().size());
    text = rewriter.finish();
  }

 private:
  /// Replaces bytes [begin, end) with `with`.
  struct Change {
    size_t begin, end;
    std::string with;
  };

  /// The first part of the text at or after `from` that normalisation changes.
  std::optional<Change> next_change(std::string_view text, size_t from) const {
    size_t start = from;  // where the characters that may combine begin
    for (size_t position = from; position < text.size();) {
      if (uint8_t(text[position]) < 0x80) {
        start = position++;
        continue;
      }
      const Utf8Step step = utf8_step(text, position);
      const size_t next = position + step.length;
      if (step.code < kCommonEnd && common_.inert[step.code]) {
        if (common_.boundary[step.code]) start = position;
        position = next;
        continue;
      }
      if (is_boundary(step.code)) start = position;
      if (is_inert(step.code, form_)) {
        if (is_after_unicode9(step.code)) start = next;
        position = next;
        continue;
      }
      const size_t end = next_boundary(text, next);
      const std::string_view region = text.substr(start, end - start);
      std::string normalized = normalize_bytes(region, form_);
      if (normalized != region) return trimmed({start, end, std::move(normalized)}, text);
      position = start = end;
    }
    return std::nullopt;
  }

  /// The change without the characters at its beginning and end that it does not change.
  static Change trimmed(Change change, std::string_view text) {
    const auto is_start = [](char byte) { return (uint8_t(byte) & 0xC0) != 0x80; };
    const std::string_view old = text.substr(change.begin, change.end - change.begin);
    const size_t shorter = std::min(old.size(), change.with.size());
    size_t head = 0, tail = 0;
    for (size_t i = 1; i <= shorter && old[i - 1] == change.with[i - 1]; ++i)
      if ((i == old.size() || is_start(old[i])) && (i == change.with.size() || is_start(change.with[i]))) head = i;
    for (size_t i = 1; head + i <= shorter && old[old.size() - i] == change.with[change.with.size() - i]; ++i)
      if (is_start(old[old.size() - i])) tail = i;
    return {change.begin + head, change.end - tail, change.with.substr(head, change.with.size() - head - tail)};
  }

  static size_t next_boundary(std::string_view text, size_t position) {
    while (position < text.size()) {
      const Utf8Step step = utf8_step(text, position);
      if (is_boundary(step.code)) break;
      position += step.length;
    }
    return position;
  }

  UnicodeForm form_;
  const CommonCharacters& common_;
};

}  // namespace

bool is_inert(char32_t code, UnicodeForm form) {
  const bool composed = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  if (code < 0x80 || (code < 0x300 && form == UnicodeForm::kNfc)) return true;
  // Hangul syllables decompose by arithmetic, so their property has no decomposition.
  if (code >= 0xAC00 && code <= 0xD7A3) return composed;
  if (is_after_unicode9(code)) return true;
  return is_boundary(code) && utf8proc_get_property(utf8proc_int32_t(code))->decomp_seqindex == UINT16_MAX;
}

std::unique_ptr<Normalizer> make_unicode_normalizer(UnicodeForm form) {
  return std::make_unique<UnicodeNormalizer>(form);
}

}  // namespace hone
