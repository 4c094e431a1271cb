#include "data/readers/code/language.h"

#include <array>
#include <cctype>
#include <utility>

namespace hone {
namespace {

/// Copies a text and replaces the masked characters with spaces.
class Masker {
 public:
  explicit Masker(std::string_view text) : text_(text), structure_(text) {}

  std::string run(CodeLanguage language) {
    while (at_ < text_.size()) {
      switch (language) {
        case CodeLanguage::kRust:
          rust();
          break;
        case CodeLanguage::kCpp:
          cpp();
          break;
        case CodeLanguage::kPython:
          python();
          break;
      }
    }
    return std::move(structure_);
  }

 private:
  char at(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool starts(std::string_view what) const { return text_.substr(at_, what.size()) == what; }
  char before() const { return at_ > 0 ? text_[at_ - 1] : '\0'; }

  void mask(size_t count) {
    for (; count > 0 && at_ < text_.size(); --count, ++at_) {
      if (text_[at_] != '\n') structure_[at_] = ' ';
    }
  }

  void mask_to(size_t end) { mask(end > at_ ? end - at_ : 0); }

  void mask_line() { mask_to(std::min(text_.find('\n', at_), text_.size())); }

  /// Masks a comment /* … */, nested in Rust.
  void block_comment(bool nested) {
    int depth = 0;
    while (at_ < text_.size()) {
      if (starts("/*") && (nested || depth == 0)) {
        ++depth;
        mask(2);
      } else if (starts("*/")) {
        --depth;
        mask(2);
        if (depth == 0) return;
      } else {
        mask(1);
      }
    }
  }

  /// Masks from an opening quote to the closing one; `lines`: it may contain line ends.
  void quoted(char quote, bool lines) {
    mask(1);
    while (at_ < text_.size() && at() != quote) {
      if (at() == '\n' && !lines) return;
      mask(at() == '\\' ? 2 : 1);
    }
    mask(1);
  }

  /// Copies a run of word characters, including numbers.
  void word() {
    while (at_ < text_.size() && is_word(at())) ++at_;
  }

  void rust() {
    if (starts("//")) return mask_line();
    if (starts("/*")) return block_comment(true);
    if (at() == '"') return quoted('"', true);
    if (at() == '\'') return rust_character();
    if (is_word(at())) return is_word(before()) || !rust_prefix() ? word() : void();
    ++at_;
  }

  /// Masks r"…", r#"…"#, b"…", br"…", c"…", cr"…", b'…'; returns false if none begins here.
  bool rust_prefix() {
    size_t length = 0;
    if (at() == 'b' || at() == 'c') ++length;
    const bool raw = at(length) == 'r';
    if (raw) ++length;
    size_t hashes = 0;
    while (raw && at(length + hashes) == '#') ++hashes;
    if (length == 0) return false;
    if (at(length + hashes) == '"') {
      if (!raw) {
        mask(length);
        quoted('"', true);
        return true;
      }
      const size_t end = text_.find("\"" + std::string(hashes, '#'), at_ + length + hashes + 1);
      mask_to(end == std::string_view::npos ? text_.size() : end + 1 + hashes);
      return true;
    }
    if (at() == 'b' && at(1) == '\'') {
      mask(1);
      quoted('\'', false);
      return true;
    }
    return false;
  }

  /// 'x' and '\n' are characters, 'a of a lifetime is not.
  void rust_character() {
    if (at(1) == '\\') return quoted('\'', false);
    size_t length = 1;  // bytes of the character in UTF-8
    while ((at(1 + length) & 0xC0) == 0x80) ++length;
    if (at(1 + length) == '\'' && at(1) != '\'') return mask(2 + length);
    ++at_;
  }

  void cpp() {
    const bool line_begins = at_ == 0 || before() == '\n';
    if (line_begins && directive()) return;
    if (starts("//")) return mask_continued_line();
    if (starts("/*")) return block_comment(false);
    if (at() == '"') return is_raw_prefix() ? raw_string() : quoted('"', false);
    if (at() == '\'') return quoted('\'', false);
    if (std::isdigit(static_cast<unsigned char>(at()))) return number();
    if (is_word(at())) return word();
    ++at_;
  }

  void mask_continued_line() {
    while (at_ < text_.size() && at() != '\n') {
      const bool continued = at() == '\\' && (at(1) == '\n' || (at(1) == '\r' && at(2) == '\n'));
      mask(continued ? (at(1) == '\r' ? 3 : 2) : 1);
    }
  }

  void number() {
    while (at_ < text_.size() && (is_word(at()) || at() == '.' || (at() == '\'' && is_word(at(1))))) {
      if (at() == '\'') structure_[at_] = '_';
      ++at_;
    }
  }

  /// Whether the word before a quote is R, LR, uR, UR or u8R.
  bool is_raw_prefix() const {
    size_t begin = at_;
    while (begin > 0 && is_word(text_[begin - 1])) --begin;
    const std::string_view prefix = text_.substr(begin, at_ - begin);
    return prefix == "R" || prefix == "LR" || prefix == "uR" || prefix == "UR" || prefix == "u8R";
  }

  void raw_string() {
    const size_t open = text_.find('(', at_);
    if (open == std::string_view::npos || open - at_ > 17) return quoted('"', false);
    const std::string close = ")" + std::string(text_.substr(at_ + 1, open - at_ - 1)) + "\"";
    const size_t end = text_.find(close, open);
    mask_to(end == std::string_view::npos ? text_.size() : end + close.size());
  }

  /// Masks a preprocessor line, and the code in branches other than the first.
  bool directive() {
    size_t hash = at_;
    while (hash < text_.size() && (text_[hash] == ' ' || text_[hash] == '\t')) ++hash;
    if (hash == text_.size() || text_[hash] != '#') return false;
    const std::string name = directive_name(hash);
    mask_continued_line();
    if (name == "else" || name == "elif" || name == "elifdef" || name == "elifndef") skip_branches();
    return true;
  }

  std::string directive_name(size_t hash) const {
    size_t begin = hash + 1;
    while (begin < text_.size() && (text_[begin] == ' ' || text_[begin] == '\t')) ++begin;
    size_t end = begin;
    while (end < text_.size() && is_word(text_[end])) ++end;
    return std::string(text_.substr(begin, end - begin));
  }

  /// Masks up to the #endif of the current #if.
  void skip_branches() {
    int depth = 1;
    while (at_ < text_.size() && depth > 0) {
      if (at() == '\n') ++at_;
      size_t hash = at_;
      while (hash < text_.size() && (text_[hash] == ' ' || text_[hash] == '\t')) ++hash;
      if (hash < text_.size() && text_[hash] == '#') {
        const std::string name = directive_name(hash);
        if (name.starts_with("if")) ++depth;
        if (name == "endif") --depth;
      }
      mask_line();
    }
  }

  void python() {
    if (at() == '#') return mask_line();
    if (at() == '"' || at() == '\'') return python_string();
    if (is_word(at())) return word();
    ++at_;
  }

  /// Quotes stay, so a docstring remains visible.
  void python_string() {
    const char quote = at();
    const std::string triple(3, quote);
    const bool is_triple = starts(triple);
    at_ += is_triple ? 3 : 1;
    while (at_ < text_.size()) {
      if (is_triple ? starts(triple) : at() == quote) {
        at_ += is_triple ? 3 : 1;
        return;
      }
      if (at() == '\n' && !is_triple) return;
      mask(at() == '\\' ? 2 : 1);
    }
  }

  std::string_view text_;
  std::string structure_;
  size_t at_ = 0;
};

}  // namespace

std::optional<CodeLanguage> language_of_file(std::string_view path) {
  static constexpr std::array<std::pair<std::string_view, CodeLanguage>, 15> kExtensions = {{
      {".rs", CodeLanguage::kRust},
      {".cpp", CodeLanguage::kCpp},
      {".cc", CodeLanguage::kCpp},
      {".cxx", CodeLanguage::kCpp},
      {".c", CodeLanguage::kCpp},
      {".h", CodeLanguage::kCpp},
      {".hpp", CodeLanguage::kCpp},
      {".hh", CodeLanguage::kCpp},
      {".hxx", CodeLanguage::kCpp},
      {".inl", CodeLanguage::kCpp},
      {".ipp", CodeLanguage::kCpp},
      {".cu", CodeLanguage::kCpp},
      {".cuh", CodeLanguage::kCpp},
      {".py", CodeLanguage::kPython},
      {".pyi", CodeLanguage::kPython},
  }};
  const size_t dot = path.rfind('.');
  if (dot == std::string_view::npos || path.find('/', dot) != std::string_view::npos) return std::nullopt;
  for (const auto& [extension, language] : kExtensions) {
    if (path.substr(dot) == extension) return language;
  }
  return std::nullopt;
}

std::string_view name_of(CodeLanguage language) { return kCodeLanguages[static_cast<size_t>(language)]; }

std::string code_structure(std::string_view text, CodeLanguage language) { return Masker(text).run(language); }

}  // namespace hone
