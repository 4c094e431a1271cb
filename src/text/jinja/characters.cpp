#include "text/jinja/characters.h"

#include <utf8proc.h>

namespace hone::jinja {

namespace {

constexpr char32_t kReplacement = 0xFFFD;

bool category_is(char32_t code, std::initializer_list<utf8proc_category_t> categories) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  for (auto candidate : categories) {
    if (candidate == category) return true;
  }
  return false;
}

std::string encoded(utf8proc_int32_t code) {
  std::string text;
  append_utf8(text, static_cast<char32_t>(code));
  return text;
}

}  // namespace

Character character_at(std::string_view text, size_t position) {
  const auto lead = static_cast<unsigned char>(text[position]);
  if (lead < 0x80) return {lead, 1};
  utf8proc_int32_t code = 0;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + position;
  const auto size = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - position), &code);
  if (size < 1) return {kReplacement, 1};
  return {static_cast<char32_t>(code), static_cast<size_t>(size)};
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += character_at(text, at).size) ++count;
  return count;
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t at = 0;
  while (index > 0 && at < text.size()) {
    at += character_at(text, at).size;
    --index;
  }
  return at;
}

void append_utf8(std::string& text, char32_t code) {
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) code = kReplacement;
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

bool is_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x1F);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_line_break(char32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

bool is_printable(char32_t code) {
  if (code < 0x80) return code >= 0x20 && code < 0x7F;
  return !category_is(code, {UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CF, UTF8PROC_CATEGORY_CS, UTF8PROC_CATEGORY_CO,
                             UTF8PROC_CATEGORY_CN, UTF8PROC_CATEGORY_ZL, UTF8PROC_CATEGORY_ZP, UTF8PROC_CATEGORY_ZS});
}

bool is_alphabetic(char32_t code) {
  return category_is(code, {UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LT, UTF8PROC_CATEGORY_LM,
                            UTF8PROC_CATEGORY_LO});
}

bool is_decimal(char32_t code) { return category_is(code, {UTF8PROC_CATEGORY_ND}); }

bool is_digit(char32_t code) {
  const bool superscript = code == 0xB2 || code == 0xB3 || code == 0xB9 || code == 0x2070 ||
                           (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089);
  return superscript || is_decimal(code);
}

bool is_numeric(char32_t code) {
  return category_is(code, {UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NL, UTF8PROC_CATEGORY_NO});
}

bool is_upper(char32_t code) { return category_is(code, {UTF8PROC_CATEGORY_LU}); }
bool is_lower(char32_t code) { return category_is(code, {UTF8PROC_CATEGORY_LL}); }
bool is_title(char32_t code) { return category_is(code, {UTF8PROC_CATEGORY_LT}); }

std::string upper_case(char32_t code) {
  if (code == 0xDF) return "SS";
  return encoded(utf8proc_toupper(static_cast<utf8proc_int32_t>(code)));
}

std::string lower_case(char32_t code) { return encoded(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))); }

std::string title_case(char32_t code) {
  if (code == 0xDF) return "Ss";
  return encoded(utf8proc_totitle(static_cast<utf8proc_int32_t>(code)));
}

Trimmed trim(std::string_view text, const std::string_view* stripped, bool left, bool right) {
  const auto strips = [&](size_t at, Character c) {
    return stripped ? stripped->find(text.substr(at, c.size)) != std::string_view::npos : is_space(c.code);
  };
  Trimmed result{0, text.size()};
  while (left && result.begin < result.end) {
    const Character c = character_at(text, result.begin);
    if (!strips(result.begin, c)) break;
    result.begin += c.size;
  }
  while (right && result.end > result.begin) {
    size_t at = result.end - 1;
    while (at > result.begin && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    Character c = character_at(text, at);
    if (at + c.size != result.end) c = {kReplacement, 1}, at = result.end - 1;
    if (!strips(at, c)) break;
    result.end = at;
  }
  return result;
}

}  // namespace hone::jinja
