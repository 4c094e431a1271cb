// Regular expressions of tokenizer.json (Oniguruma syntax) on PCRE2 with its JIT compiler.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/text/pcre.h"
#include "text/aligned_text.h"
#include "text/json_cursor.h"

namespace hone {

/// The same expression in PCRE2 syntax, with Oniguruma's meaning under Unicode. Syntax without an exact counterpart
/// (class intersections, nested classes, back references, named groups, …) is a UserError at `where`.
std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where);

/// A compiled expression; immutable and thread-safe.
class Regex {
 public:
  /// `pattern` is in Oniguruma syntax; errors contain `where`. Throws UserError when it does not compile.
  Regex(std::string_view pattern, std::string where);

  /// Reads the member "pattern" of a tokenizer.json object: {"Regex": expression} or {"String": literal}.
  static Regex from_json(const JsonCursor& pattern);

 private:
  friend class RegexMatches;

  /// CPU time, bytes and number of all texts so far.
  struct Spent {
    std::atomic<int64_t> nanoseconds{0}, bytes{0}, texts{0};
  };

  std::string where_;
  Pcre code_;
  std::shared_ptr<Spent> spent_ = std::make_shared<Spent>();
};

/// Finds the matches in one text after another, left to right, without overlap; skips an empty match directly after a
/// match. Not thread-safe.
class RegexMatches {
 public:
  explicit RegexMatches(const Regex& regex);
  ~RegexMatches();
  RegexMatches(const RegexMatches&) = delete;
  RegexMatches& operator=(const RegexMatches&) = delete;

  /// Starts on `text`, valid UTF-8, which must outlive the calls of next().
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
  int64_t began_ = 0, bytes_ = 0, texts_ = 0, matches_ = 0;  // over all texts; began_ in ns of the thread's CPU time
};

}  // namespace hone
