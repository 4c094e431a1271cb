// Messages with levels: to the console, and with time stamps to run.log.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "report/console.h"

namespace hone {

enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kOff };

/// "trace", "debug", "info", "warning", "error" or "off".
std::optional<LogLevel> parse_log_level(std::string_view name);

/// Passed to whoever has something to say; there is no global one. Safe to call from several threads.
/// Control characters in a message are shown, not executed; its line ends stay. A run.log that can no longer be
/// written gives one warning on the console and does not stop the run.
class Logger {
 public:
  explicit Logger(Console& console, LogLevel console_level = LogLevel::kInfo);
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  /// Starts to append to run.log at `path`; what was said before is written first. Errors: UserError.
  void open_file(const std::string& path, LogLevel level = LogLevel::kDebug);

  void log(LogLevel level, std::string_view message);

  /// A block that is already laid out (tables, charts, coloured lines): to the console as it is, to run.log without
  /// its colour sequences.
  void block(std::string_view text);

  /// The same at level debug: the console shows it if it shows that, run.log always has it.
  void detail_block(std::string_view text);

  /// Whether the console shows messages of this level.
  bool shows(LogLevel level) const;

  /// Only to run.log.
  void file_only(std::string_view message, LogLevel level = LogLevel::kInfo);

  template <class... Args>
  void trace(fmt::format_string<Args...> format, Args&&... args) {
    log(LogLevel::kTrace, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) {
    log(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    log(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) {
    log(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    log(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
  }

  Console& console() { return console_; }

 private:
  struct Sinks;

  Console& console_;
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace hone
