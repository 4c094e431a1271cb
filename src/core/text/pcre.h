// Regular expressions on PCRE2 with limits: matching an untrusted expression ends soon and uses little memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace hone {

/// Why an expression does not compile, or fails on a text; short, for messages.
class PcreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A match took more steps than it may.
class PcreStepsError : public PcreError {
 public:
  using PcreError::PcreError;
};

/// A compiled expression; immutable and thread-safe.
class Pcre {
 public:
  enum class Engine {
    kInterpreter,  ///< for texts of a few hundred bytes
    kJit,          ///< for long texts: compiles slower, matches faster
  };
  /// `flags`: PCRE2_UTF etc. Throws PcreError if it does not compile.
  Pcre(std::string_view pattern, uint32_t flags, Engine engine);
  /// An expression of a user for well-formed UTF-8: classes such as \d are Unicode's, as in Python's re. UserErrors are
  /// the caller's: throws PcreError.
  static Pcre of_user(std::string_view pattern);

  /// The number of groups in parentheses.
  size_t groups() const;

 private:
  friend class PcreMatcher;
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

/// Matches one expression with limits on steps and memory. Not thread-safe; the expression must outlive it.
class PcreMatcher {
 public:
  /// `most_steps` is for one match: a step takes 5 to 100 ns.
  PcreMatcher(const Pcre& expression, uint32_t most_steps);

  void set_most_steps(uint32_t steps);

  struct Range {
    size_t begin, end;

    size_t size() const { return end - begin; }
  };
  /// The first match in `text` (valid UTF-8 if the expression has PCRE2_UTF) that begins at `from` or later. `flags`:
  /// PCRE2_ANCHORED etc. Throws PcreStepsError or PcreError beyond a
  /// limit.
  std::optional<Range> find(std::string_view text, size_t from, uint32_t flags = 0);

  /// The last match: itself, then its groups; an empty range for a group that took no part.
  std::vector<Range> match() const;

  /// The matches in `text`, each as match(), left to right: an empty one may follow another match, and does not repeat
  /// it, as with Python's re.finditer. Limits as find().
  std::vector<std::vector<Range>> find_all(std::string_view text);

 private:
  struct FreeContext {
    void operator()(pcre2_real_match_context_8* context) const;
  };
  struct FreeData {
    void operator()(pcre2_real_match_data_8* data) const;
  };
  const Pcre& expression_;
  std::unique_ptr<pcre2_real_match_context_8, FreeContext> limits_;
  std::unique_ptr<pcre2_real_match_data_8, FreeData> data_;
};

}  // namespace hone
