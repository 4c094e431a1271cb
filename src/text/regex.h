// Regular expressions of tokenizer.json (Oniguruma syntax) on PCRE2 with its JIT compiler.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/aligned_text.h"
#include "text/json_cursor.h"

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace hone {

/// The same expression in PCRE2 syntax with the meaning Oniguruma gives it under Unicode. What has no exact counterpart
/// (class intersections, nested classes, back references, named groups, …) is a UserError at `where`.
std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where);

/// A compiled expression; immutable, shared by threads.
class Regex {
 public:
  /// `pattern` in Oniguruma syntax; `where` names it in errors. Throws UserError when it does not compile.
  Regex(std::string_view pattern, std::string where);

  /// The member "pattern" of a tokenizer.json object: {"Regex": expression} or {"String": literal}.
  static Regex from_json(const JsonCursor& pattern);

 private:
  friend class RegexMatches;

  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  struct FreeContext {
    void operator()(pcre2_real_match_context_8* context) const;
  };

  std::string where_;
  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
  std::unique_ptr<pcre2_real_match_context_8, FreeContext> limits_;
};

/// Walks the matches of one text after another, left to right, without overlap; an empty match directly after a match
/// is passed over. For one thread.
class RegexMatches {
 public:
  explicit RegexMatches(const Regex& regex);

  /// Starts over on `text`, valid UTF-8, which must stay alive while next() is called.
  void start(std::string_view text);
  /// The next match, or nothing. Throws UserError when the expression exceeds its limit of steps.
  std::optional<ByteRange> next();

 private:
  struct FreeData {
    void operator()(pcre2_real_match_data_8* data) const;
  };

  int match_at(size_t position);

  const Regex& regex_;
  std::unique_ptr<pcre2_real_match_data_8, FreeData> data_;
  std::string shadow_;
  std::string_view text_;
  size_t position_ = 0;
  std::optional<uint32_t> last_end_;
};

}  // namespace hone
