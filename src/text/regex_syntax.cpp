// Translates Oniguruma's syntax (its own "Oniguruma" dialect under UTF-8) to PCRE2's with PCRE2_UTF, _UCP and
// _MULTILINE. Source: Oniguruma doc/RE and pcre2pattern(3); the character sets were compared for every code point.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "core/base/error.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace hone {
namespace {

/// PCRE2's \s includes U+180E and its \w has no marks, so both are written out.
constexpr std::string_view kSpace = "\\p{White_Space}";
constexpr std::string_view kNotSpace = "\\P{White_Space}";
constexpr std::string_view kWordMembers = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
/// Outside a class Oniguruma's \w also has the Latin-1 numbers ² ³ ¹ ¼ ½ ¾.
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
constexpr std::string_view kHexMembers = "0-9a-fA-F";

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string translate() {
    if (valid_utf8_prefix(pattern_) != pattern_.size()) refuse("ill-formed UTF-8");
    while (!at_end()) {
      const char c = take();
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        character_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        interval();
      } else {
        out_ += c;
      }
    }
    return std::move(out_);
  }

 private:
  bool at_end() const { return position_ == pattern_.size(); }
  char peek() const { return at_end() ? '\0' : pattern_[position_]; }
  char take() { return pattern_[position_++]; }
  bool take_if(std::string_view text) {
    if (pattern_.substr(position_, text.size()) != text) return false;
    position_ += text.size();
    return true;
  }

  [[noreturn]] void refuse(std::string_view what) const {
    throw UserError(fmt::format("the regular expression '{}' uses {}, which is not supported", pattern_, what), where_);
  }

  void escape() {
    if (at_end()) refuse("a backslash at its end");
    const char c = take();
    switch (c) {
      case 'w':
        out_ += fmt::format("[{}]", kWord);
        break;
      case 'W':
        out_ += fmt::format("[^{}]", kWord);
        break;
      case 'h':
        out_ += fmt::format("[{}]", kHexMembers);
        break;
      case 'H':
        out_ += fmt::format("[^{}]", kHexMembers);
        break;
      case 'b':
        out_ += fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWord);
        break;
      case 'B':
        out_ += fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWord);
        break;
      case 'A':
      case 'z':
      case 'Z':
        out_ += '\\', out_ += c;
        break;
      default:
        shared_escape(c);
    }
  }

  /// An escape with the same meaning inside and outside a class.
  void shared_escape(char c) {
    switch (c) {
      case 's':
        out_ += kSpace;
        break;
      case 'S':
        out_ += kNotSpace;
        break;
      case 'd':
        out_ += "\\p{Nd}";
        break;
      case 'D':
        out_ += "\\P{Nd}";
        break;
      case 'p':
      case 'P':
        property(c);
        break;
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        out_ += '\\', out_ += c;
        break;
      case 'v':
        out_ += "\\x{B}";
        break;
      case 'x':
      case 'u':
        code_point(c);
        break;
      default:
        if (std::isalnum(uint8_t(c))) refuse(fmt::format("\\{}", c));
        if (!(uint8_t(c) & 0x80)) out_ += '\\';
        out_ += c;
    }
  }

  /// \uHHHH, \xHH (a byte, so ASCII only) and \x{H…}.
  void code_point(char kind) {
    const bool braces = kind == 'x' && take_if("{");
    const size_t wanted = braces ? 8 : kind == 'u' ? 4 : 2;
    uint32_t code = 0;
    size_t digits = 0;
    for (; digits < wanted && std::isxdigit(uint8_t(peek())); ++digits) {
      const char c = char(std::tolower(take()));
      code = code * 16 + uint32_t(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (digits == 0 || (braces && !take_if("}")) || (!braces && digits != wanted)) refuse("a broken code point");
    if (code > 0x10FFFF || (kind == 'x' && !braces && code > 0x7F)) refuse("a code point out of range");
    out_ += fmt::format("\\x{{{:X}}}", code);
  }

  /// \p{Name}, \p{^Name}, \P{Name}. A bare script name is script extensions in PCRE2 and the script in Oniguruma.
  void property(char kind) {
    if (!take_if("{")) refuse("\\p without braces");
    if (take_if("^")) kind = kind == 'p' ? 'P' : 'p';
    std::string name;
    while (!at_end() && peek() != '}') name += take();
    if (!take_if("}")) refuse("an unclosed \\p{");
    out_ += fmt::format("\\{}{{{}}}", kind, pcre2_property(name));
  }

  std::string pcre2_property(const std::string& name) const {
    std::string key;
    for (const char c : name)
      if (std::isalnum(uint8_t(c))) key += char(std::tolower(c));
    if (key.size() <= 2) return name;  // a general category
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kCategories{{
        {"any", "Any"},
        {"letter", "L"},
        {"uppercaseletter", "Lu"},
        {"lowercaseletter", "Ll"},
        {"titlecaseletter", "Lt"},
        {"modifierletter", "Lm"},
        {"otherletter", "Lo"},
        {"mark", "M"},
        {"number", "N"},
        {"decimalnumber", "Nd"},
        {"punctuation", "P"},
        {"symbol", "S"},
        {"separator", "Z"},
        {"other", "C"},
    }};
    for (const auto& [long_name, category] : kCategories)
      if (key == long_name) return std::string(category);
    static constexpr std::array<std::string_view, 5> kBinary{"alphabetic", "whitespace", "uppercase", "lowercase",
                                                             "ideographic"};
    if (std::find(kBinary.begin(), kBinary.end(), key) != kBinary.end()) return name;
    return "sc:" + name;
  }

  void character_class() {
    out_ += '[';
    if (take_if("^")) out_ += '^';
    if (take_if("]")) out_ += "\\]";
    while (true) {
      if (at_end()) refuse("an unclosed class");
      const char c = take();
      if (c == ']') break;
      if (c == '[') refuse("a class inside a class");
      if (c == '&' && peek() == '&') refuse("an intersection of classes");
      if (c == '\\') {
        class_escape();
      } else {
        out_ += c;
      }
    }
    out_ += ']';
  }

  void class_escape() {
    if (at_end()) refuse("a backslash at its end");
    const char c = take();
    switch (c) {
      case 'w':
        out_ += kWordMembers;
        break;
      case 'h':
        out_ += kHexMembers;
        break;
      case 'b':
        out_ += "\\x{8}";
        break;
      default:
        shared_escape(c);
    }
  }

  void group() {
    const bool leading = position_ == 1;
    out_ += '(';
    if (peek() == '*') refuse("(*");  // PCRE2 would read it as a verb
    if (!take_if("?")) return;
    out_ += '?';
    for (const std::string_view kind : {":", "=", "!", ">", "<=", "<!"}) {
      if (!take_if(kind)) continue;
      out_ += kind;
      return;
    }
    while (peek() == 'i' || peek() == 'x' || peek() == '-') out_ += take();
    if (peek() != ':' && peek() != ')') refuse("a group of another kind than (?:…), look-around and (?i)");
    // Oniguruma's "a(?i)b|c" is "a(?i:b|c)", PCRE2's is "a(?i:b)|(?i:c)": alike only at the start.
    if (peek() == ')' && !leading) refuse("an option in its middle; write (?i:…)");
    out_ += take();
  }

  /// {n}, {n,}, {n,m}, {,m}; anything else is literal in both.
  void interval() {
    const size_t start = position_;
    std::string digits[2];
    bool comma = false;
    while (!at_end() && (std::isdigit(uint8_t(peek())) || (peek() == ',' && !comma))) {
      const char c = take();
      if (c == ',') {
        comma = true;
      } else {
        digits[comma] += c;
      }
    }
    const bool is_interval = peek() == '}' && (!digits[0].empty() || !digits[1].empty());
    if (!is_interval) {
      position_ = start;
      out_ += "\\{";
      return;
    }
    take();
    if (peek() == '+') refuse("a repeated interval {n,m}+");  // possessive in PCRE2, a second repetition in Oniguruma
    out_ += fmt::format("{{{}{}{}}}", digits[0].empty() ? "0" : digits[0], comma ? "," : "", digits[1]);
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t position_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).translate();
}

}  // namespace hone
