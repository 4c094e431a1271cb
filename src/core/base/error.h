// Errors: a user's mistake is an exception with what, where and how to fix it; a bug is an assertion.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace hone {

/// Exit codes of the program (docs/troubleshooting.md lists them).
enum class ExitCode : int {
  kOk = 0,            ///< done
  kCheckFailed = 1,   ///< a check did not hold (verify, merge)
  kUserInput = 2,     ///< the user's input: config, data, files
  kNumbersLost = 3,   ///< NaN or Inf
  kDeviceFailed = 4,  ///< a rank or a device failed
  kResumable = 75,    ///< stopped by SIGTERM or SIGINT after saving; resume continues the same run
};

/// An error that ends the program with `code` and is printed as:
///   error: WHAT
///     where: WHERE      (file:line, config key, tensor name; may be empty)
///     fix:   FIX        (what to change; may be empty)
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string what, std::string where, std::string fix);

  ExitCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& where() const { return where_; }
  const std::string& fix() const { return fix_; }

 private:
  ExitCode code_;
  std::string message_, where_, fix_;
};

/// A mistake of the user: exit code 2.
class UserError : public Error {
 public:
  explicit UserError(std::string what, std::string where = {}, std::string fix = {})
      : Error(ExitCode::kUserInput, std::move(what), std::move(where), std::move(fix)) {}
};

/// Up to three of `candidates` that are similar to `name` (edit distance), as " Did you mean 'a', 'b'?" or "".
template <class Range>
std::string did_you_mean(std::string_view name, const Range& candidates);

/// Edit distance (insert, delete, substitute, swap neighbours) between two strings; their length if over 256 bytes.
size_t edit_distance(std::string_view a, std::string_view b);

/// Throws the error of a bug in Hone: file, line and the condition that does not hold.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line, const std::string& detail);

}  // namespace hone

/// Checks an invariant of Hone's code, in every build. For mistakes of the user throw UserError.
#define HONE_ASSERT(condition, ...)                                                                         \
  do {                                                                                                      \
    if (!(condition)) ::hone::assertion_failed(#condition, __FILE__, __LINE__, ::std::string{__VA_ARGS__}); \
  } while (false)

#include <algorithm>
#include <vector>

namespace hone {

template <class Range>
std::string did_you_mean(std::string_view name, const Range& candidates) {
  std::vector<std::pair<size_t, std::string>> near;
  for (const auto& candidate : candidates) {
    const std::string_view text(candidate);
    const size_t distance = edit_distance(name, text);
    const bool prefix = name.size() >= 4 && text.substr(0, name.size()) == name;
    if (distance <= std::max<size_t>(2, name.size() / 4) || prefix) near.emplace_back(prefix ? 1 : distance, text);
  }
  std::sort(near.begin(), near.end());
  std::string result;
  for (size_t i = 0; i < near.size() && i < 3; ++i) result += (i ? ", '" : " Did you mean '") + near[i].second + "'";
  return result.empty() ? result : result + "?";
}

}  // namespace hone
