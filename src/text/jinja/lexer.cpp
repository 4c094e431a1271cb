#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "text/jinja/characters.h"
#include "text/jinja/value.h"

namespace hone::jinja {

namespace {

using Type = Token::Type;

std::string normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80); }
bool is_digit_char(char c) { return c >= '0' && c <= '9'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit_char(c); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(normalized(source)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) next_piece();
    add(Type::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool follows(std::string_view expected) const { return text_.compare(at_, expected.size(), expected) == 0; }

  void add(Type type, std::string text) { tokens_.push_back({type, std::move(text), line_}); }

  /// Advances by `size` bytes and counts lines.
  void advance(size_t size) {
    line_ += static_cast<int>(std::count(text_.begin() + at_, text_.begin() + at_ + size, '\n'));
    at_ += size;
  }

  void skip_space() {
    size_t end = at_;
    while (end < text_.size()) {
      const Character c = character_at(text_, end);
      if (!is_space(c.code)) break;
      end += c.size;
    }
    advance(end - at_);
  }

  /// Adds the data up to `end` without the white space that the tag at `end` strips: all of it for '-', else, before
  /// blocks and comments, the blanks from the start of the line ('+' keeps them).
  void add_data(size_t end, char sign, bool is_variable) {
    std::string_view data = std::string_view(text_).substr(at_, end - at_);
    if (sign == '-') {
      data = data.substr(0, trim(data, nullptr, false, true).end);
    } else if (sign != '+' && !is_variable) {
      const size_t newline = data.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      const std::string_view head = data.substr(line_begin);
      const Trimmed kept = trim(head, nullptr, true, false);
      if ((line_begin > 0 || line_starting_) && kept.begin == head.size()) data = data.substr(0, line_begin);
    }
    if (!data.empty()) add(Type::kData, std::string(data));
    advance(end - at_);
  }

  char sign_at(size_t position) const {
    const char c = position < text_.size() ? text_[position] : '\0';
    return c == '-' || c == '+' ? c : '\0';
  }

  void next_piece() {
    size_t begin = at_;
    while (true) {
      begin = text_.find('{', begin);
      if (begin == std::string::npos || begin + 1 >= text_.size()) {
        add(Type::kData, text_.substr(at_));
        advance(text_.size() - at_);
        return;
      }
      const char kind = text_[begin + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
      ++begin;
    }
    const char kind = text_[begin + 1];
    const char sign = sign_at(begin + 2);
    add_data(begin, sign, kind == '{');
    if (kind == '#') {
      skip_comment(sign);
    } else if (size_t size = raw_tag_size("raw", false); kind == '%' && size > 0) {
      advance(size);
      line_starting_ = text_[at_ - 1] == '\n';
      raw_text();
    } else {
      add(kind == '%' ? Type::kBlockBegin : Type::kVariableBegin, "");
      advance(sign ? 3 : 2);
      kind == '%' ? tag("%}", Type::kBlockEnd) : tag("}}", Type::kVariableEnd);
    }
    line_starting_ = text_[at_ - 1] == '\n';
  }

  void skip_comment(char sign) {
    const size_t begin = at_ + (sign ? 3 : 2);
    const size_t end = text_.find("#}", begin);
    if (end == std::string::npos) throw TemplateError("the comment '{#' is never closed", line_);
    const char end_sign = end > begin ? sign_at(end - 1) : '\0';
    advance(end + 2 - at_);
    after_tag(end_sign, true);
  }

  /// Skips white space after a tag: all of it for '-', one newline after blocks and comments unless '+'.
  void after_tag(char sign, bool trims_newline) {
    if (sign == '-') {
      skip_space();
    } else if (trims_newline && sign != '+' && follows("\n")) {
      advance(1);
    }
  }

  /// The size in bytes of the tag {% name %} at the current position, with the white space after -%}; 0 if there is no
  /// such tag.
  size_t raw_tag_size(std::string_view name, bool plus_end) const {
    size_t p = at_;
    const auto blanks = [&] {
      while (p < text_.size() && is_space(character_at(text_, p).code)) p += character_at(text_, p).size;
    };
    if (!follows("{%")) return 0;
    p += 2;
    if (sign_at(p)) ++p;
    blanks();
    if (text_.compare(p, name.size(), name) != 0) return 0;
    p += name.size();
    blanks();
    const char sign = sign_at(p);
    if (sign == '+' && !plus_end) return 0;
    if (sign) ++p;
    if (text_.compare(p, 2, "%}") != 0) return 0;
    p += 2;
    if (sign == '-') blanks();
    if (plus_end && !sign && p < text_.size() && text_[p] == '\n') ++p;
    return p - at_;
  }

  void raw_text() {
    const size_t begin = at_;
    const int begin_line = line_;
    for (size_t end = begin; (end = text_.find("{%", end)) != std::string::npos; end += 2) {
      at_ = end;
      const size_t size = raw_tag_size("endraw", true);
      at_ = begin;
      if (size == 0) continue;
      add_data(end, sign_at(end + 2), false);
      advance(size);
      return;
    }
    throw TemplateError("the block '{% raw %}' is never closed with '{% endraw %}'", begin_line);
  }

  /// Adds the tokens of one tag up to its end; `end` is the closing delimiter.
  void tag(std::string_view end, Type end_type) {
    const int begin_line = line_;
    const bool is_block = end_type == Type::kBlockEnd;
    std::string open;
    while (true) {
      if (at_ >= text_.size()) throw TemplateError(fmt::format("the tag is never closed with '{}'", end), begin_line);
      if (open.empty()) {
        const char sign = sign_at(at_);
        const bool signed_end = (sign == '-' || (sign == '+' && is_block)) && text_.compare(at_ + 1, 2, end) == 0;
        if (signed_end || follows(end)) {
          add(end_type, "");
          advance(signed_end ? 3 : 2);
          after_tag(signed_end ? sign : '\0', is_block);
          return;
        }
      }
      if (is_space(character_at(text_, at_).code)) {
        skip_space();
      } else if (is_digit_char(text_[at_])) {
        number();
      } else if (is_name_start(text_[at_])) {
        name();
      } else if (text_[at_] == '\'' || text_[at_] == '"') {
        string();
      } else {
        operation(open);
      }
    }
  }

  void name() {
    size_t end = at_;
    while (end < text_.size() && is_name_part(text_[end])) ++end;
    add(Type::kName, text_.substr(at_, end - at_));
    advance(end - at_);
  }

  /// The end of the digits from `p` (single '_' between them allowed); `p` itself if there are none.
  template <class IsDigit>
  size_t digits_end(size_t p, IsDigit is_member) const {
    const auto member = [&](size_t q) { return q < text_.size() && is_member(text_[q]); };
    if (!member(p)) return p;
    while (member(p) || (p < text_.size() && text_[p] == '_' && member(p + 1))) ++p;
    return p;
  }

  void add_number(Type type, size_t end) {
    std::string digits = text_.substr(at_, end - at_);
    std::erase(digits, '_');
    add(type, std::move(digits));
    advance(end - at_);
  }

  void number() {
    const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';
    size_t end = digits_end(at_, is_digit_char);
    bool is_float = false;
    if (!after_dot) {
      if (end + 1 < text_.size() && text_[end] == '.' && is_digit_char(text_[end + 1])) {
        end = digits_end(end + 1, is_digit_char);
        is_float = true;
      }
      if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
        const size_t digits = end + 1 + (sign_at(end + 1) ? 1 : 0);
        const size_t exponent_end = digits_end(digits, is_digit_char);
        if (exponent_end > digits) end = exponent_end, is_float = true;
      }
    }
    if (is_float) return add_number(Type::kFloat, end);
    if (text_[at_] == '0' && at_ + 2 < text_.size()) {
      const char base = static_cast<char>(std::tolower(static_cast<unsigned char>(text_[at_ + 1])));
      const auto in_base = [base](char c) {
        if (base == 'x') return std::isxdigit(static_cast<unsigned char>(c)) != 0;
        return c >= '0' && c <= (base == 'o' ? '7' : '1');
      };
      if (base == 'x' || base == 'o' || base == 'b') {
        const size_t prefixed_end = digits_end(at_ + 2, in_base);
        if (prefixed_end > at_ + 2) return add_number(Type::kInteger, prefixed_end);
      }
    }
    const std::string_view digits = std::string_view(text_).substr(at_, end - at_);
    if (digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of("0_") != std::string_view::npos) {
      throw TemplateError("an integer does not begin with 0", line_);
    }
    add_number(Type::kInteger, end);
  }

  void string() {
    const char quote = text_[at_];
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) throw TemplateError(fmt::format("the string {} is never closed", quote), line_);
    add(Type::kString, unescaped(std::string_view(text_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1 - at_);
  }

  std::string unescaped(std::string_view raw) const {
    std::string result;
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\') {
        result += raw[i];
        continue;
      }
      i += escape(raw.substr(i + 1), result);
    }
    return result;
  }

  /// Appends the character of an escape (`rest` starts after the backslash); returns how many bytes of `rest` it used.
  size_t escape(std::string_view rest, std::string& result) const {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"";
    static constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char letter = rest[0];
    if (const size_t simple = kLetters.find(letter); simple != std::string_view::npos) {
      result += kMeanings[simple];
      return 1;
    }
    if (letter == '\n') return 1;
    const auto coded = [&](size_t begin, size_t max_digits, int base, bool exact) -> size_t {
      size_t end = begin;
      const auto digit = [&](char c) {
        return base == 16 ? std::isxdigit(static_cast<unsigned char>(c)) != 0 : c >= '0' && c <= '7';
      };
      while (end < rest.size() && end - begin < max_digits && digit(rest[end])) ++end;
      if (exact && end - begin != max_digits) {
        throw TemplateError(fmt::format("the escape '\\{}' needs {} hexadecimal digits", letter, max_digits), line_);
      }
      append_utf8(result,
                  static_cast<char32_t>(std::stoul(std::string(rest.substr(begin, end - begin)), nullptr, base)));
      return end;
    };
    if (letter == 'x') return coded(1, 2, 16, true);
    if (letter == 'u') return coded(1, 4, 16, true);
    if (letter == 'U') return coded(1, 8, 16, true);
    if (letter >= '0' && letter <= '7') return coded(0, 3, 8, false);
    if (letter == 'N') throw TemplateError("the escape '\\N{...}' is not supported; write the character", line_);
    result += '\\';
    return 0;
  }

  void operation(std::string& open) {
    static constexpr std::array<std::string_view, 27> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                                    "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                                    ">",  "<",  "=",  ".",  ":",  "|",  ",", ";", ""};
    const auto found = std::find_if(kOperators.begin(), kOperators.end(), [&](auto op) { return follows(op); });
    if (found->empty()) {
      const size_t size = character_at(text_, at_).size;
      throw TemplateError(fmt::format("unexpected character '{}'", text_.substr(at_, size)), line_);
    }
    const char c = (*found)[0];
    if (c == '(' || c == '[' || c == '{') open += c;
    if (c == ')' || c == ']' || c == '}') {
      const char expected = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open.empty() || open.back() != expected) throw TemplateError(fmt::format("unexpected '{}'", c), line_);
      open.pop_back();
    }
    add(Type::kOperator, std::string(*found));
    advance(found->size());
  }

  std::string text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace hone::jinja
