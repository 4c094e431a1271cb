#include "app/convert_config/python_tokens.h"

#include <algorithm>
#include <cctype>

namespace hone {
namespace {

using Kind = PythonToken::Kind;

class Tokens {
 public:
  explicit Tokens(const std::string& text) : text_(text) {}

  std::vector<PythonToken> all() {
    while (at_ < text_.size()) step();
    add(Kind::kLineEnd, "");
    add(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
  void add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void step() {
    const char c = peek();
    if (c == '#') {
      while (at_ < text_.size() && peek() != '\n') ++at_;
    } else if (c == '\\' && peek(1) == '\n') {
      at_ += 2;
      ++line_;
    } else if (c == '\n') {
      if (depth_ == 0) add(Kind::kLineEnd, "");
      ++at_;
      ++line_;
    } else if (std::isspace(static_cast<unsigned char>(c))) {
      ++at_;
    } else if (c == '"' || c == '\'') {
      string("");
    } else if (std::isdigit(static_cast<unsigned char>(c)) ||
               (c == '.' && std::isdigit(static_cast<unsigned char>(peek(1))))) {
      number();
    } else if (is_word(c)) {
      word();
    } else {
      operation(c);
    }
  }

  void number() {
    const size_t begin = at_;
    while (is_word(peek()) || peek() == '.' ||
           ((peek() == '-' || peek() == '+') && (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E'))) {
      ++at_;
    }
    add(Kind::kNumber, text_.substr(begin, at_ - begin));
  }

  void word() {
    const size_t begin = at_;
    while (is_word(peek())) ++at_;
    const std::string word = text_.substr(begin, at_ - begin);
    const bool prefix = word.size() <= 2 && word.find_first_not_of("rRbBuUfF") == std::string::npos;
    if (prefix && (peek() == '"' || peek() == '\'')) return string(word);
    add(Kind::kName, word);
  }

  void operation(char c) {
    if (c == '(' || c == '[' || c == '{') ++depth_;
    if (c == ')' || c == ']' || c == '}') depth_ = std::max(0, depth_ - 1);
    const bool power = c == '*' && peek(1) == '*', equal = (c == '=' || c == '!') && peek(1) == '=';
    add(Kind::kOperator, text_.substr(at_, power || equal ? 2 : 1));
    at_ += power || equal ? 2 : 1;
  }

  void string(const std::string& prefix) {
    const bool raw = prefix.find_first_of("rR") != std::string::npos;
    const Kind kind = prefix.find_first_of("fF") != std::string::npos ? Kind::kFormatted : Kind::kString;
    const int line = line_;
    const char quote = peek();
    const bool triple = peek(1) == quote && peek(2) == quote;
    at_ += triple ? 3 : 1;
    std::string value;
    while (at_ < text_.size()) {
      if (peek() == quote && (!triple || (peek(1) == quote && peek(2) == quote))) break;
      if (!triple && peek() == '\n') break;
      if (peek() == '\n') ++line_;
      if (peek() == '\\' && !raw && at_ + 1 < text_.size()) {
        ++at_;
        escape(value);
      } else {
        value += text_[at_++];
      }
    }
    at_ = std::min(text_.size(), at_ + (triple ? 3 : 1));
    tokens_.push_back({kind, std::move(value), line});
  }

  void escape(std::string& value) {
    const char c = text_[at_++];
    static constexpr std::pair<char, char> kEscapes[] = {{'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'0', '\0'}};
    if (c == '\n') {
      ++line_;
      return;
    }
    for (const auto& [letter, meant] : kEscapes) {
      if (letter == c) {
        value += meant;
        return;
      }
    }
    if (c != '\\' && c != '"' && c != '\'') value += '\\';
    value += c;
  }

  const std::string& text_;
  size_t at_ = 0;
  int line_ = 1, depth_ = 0;
  std::vector<PythonToken> tokens_;
};

}  // namespace

std::vector<PythonToken> python_tokens(const std::string& text) { return Tokens(text).all(); }

}  // namespace hone
