// Regular expressions of tokenizer.json (Oniguruma syntax) on PCRE2 with its JIT compiler.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/pcre.h"
#include "text/aligned_text.h"
#include "text/json_cursor.h"

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

  /// Time and bytes of all texts so far.
  struct Spent {
    std::atomic<int64_t> nanoseconds{0}, bytes{0};
  };

  std::string where_;
  Pcre code_;
  std::shared_ptr<Spent> spent_ = std::make_shared<Spent>();
};

/// Walks the matches of one text after another, left to right, without overlap; an empty match directly after a match
/// is passed over. For one thread.
class RegexMatches {
 public:
  explicit RegexMatches(const Regex& regex);
  ~RegexMatches();
  RegexMatches(const RegexMatches&) = delete;
  RegexMatches& operator=(const RegexMatches&) = delete;

  /// Starts over on `text`, valid UTF-8, which must stay alive while next() is called.
  void start(std::string_view text);
  /// The next match, or nothing. Throws UserError when the expression exceeds its limit of steps or of memory, or takes
  /// far more time than texts of this length need.
  std::optional<ByteRange> next();

 private:
  std::optional<PcreMatcher::Range> match_at(size_t position);
  void check_time() const;

  const Regex& regex_;
  PcreMatcher matcher_;
  std::string shadow_;
  std::string_view text_;
  size_t position_ = 0;
  std::optional<uint32_t> last_end_;
  int64_t began_ = 0, bytes_ = 0, matches_ = 0;  // of all texts of this walk; began_ in ns of the thread's CPU time
};

}  // namespace hone
