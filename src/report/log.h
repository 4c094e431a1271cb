// Messages with levels: to the console, and with timestamps to run.log.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "report/console.h"

namespace hone {

enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kOff };

/// Parses "trace", "debug", "info", "warning", "error" or "off".
std::optional<LogLevel> parse_log_level(std::string_view name);

/// Passed as an argument; there is no global logger. Thread-safe. Makes control characters in a message visible, except
/// line ends. If run.log can no longer be written, the console shows one warning and the run continues.
class Logger {
 public:
  explicit Logger(Console& console, LogLevel console_level = LogLevel::kInfo);
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  /// Starts appending to run.log at `path`; writes the earlier messages first. Throws UserError on failure.
  void open_file(const std::string& path, LogLevel level = LogLevel::kDebug);

  void log(LogLevel level, std::string_view message);

  /// Writes a formatted block (tables, coloured lines): to the console unchanged, to run.log without colour
  /// sequences.
  void block(std::string_view text);

  /// block() at level debug: run.log always contains it.
  void detail_block(std::string_view text);

  /// Whether the console shows messages of this level.
  bool shows(LogLevel level) const;

  /// Writes only to run.log.
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
