#include "report/log.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/files/descriptor.h"
#include "core/files/durable_file.h"
#include "report/collected_log.h"
#include "report/terminal.h"

namespace hone {
namespace {

// There are few messages before run.log is open; the limit only guards against a loop that logs.
constexpr size_t kMostEarlyMessages = 10'000;

/// What a full disk does not take is kept up to this size.
constexpr size_t kMostUnwritten = 64 << 10;

using LogClock = std::chrono::system_clock;

// Makes each line printable; indents the lines after the first.
std::string printable(std::string_view message, std::string_view indent) {
  std::string result;
  for (const auto& line : split_lines(message)) {
    if (!result.empty()) result.append("\n").append(indent);
    result += one_line(line);
  }
  return result;
}

class ConsoleSink {
 public:
  ConsoleSink(Console& console, LogLevel least) : console_(console), least_(least) {}

  bool takes(LogLevel level) const { return level >= least_; }
  bool seen() const { return console_.seen(); }
  void write(LogLevel level, std::string_view message) const {
    if (!takes(level)) return;
    if (level >= LogLevel::kError) {
      console_.line(styled(error_label(), Style::kRed, console_.color()) +
                    fitting(printable(message, "  "), error_label()));
    } else if (level == LogLevel::kWarning) {
      console_.line(styled(warning_label(), Style::kYellow, console_.color()) +
                    fitting(printable(message, "  "), warning_label()));
    } else {
      console_.line(fitting(printable(message, ""), ""));
    }
  }

 private:
  /// On a terminal, breaks lines between words.
  std::string fitting(const std::string& text, std::string_view before) const {
    if (!console_.interactive()) return text;
    const std::string wrapped = wrap(std::string(before) + text, console_.width(), "  ");
    return wrapped.substr(before.size());
  }

  Console& console_;
  LogLevel least_;
};

struct LogLine {
  LogClock::time_point time;
  LogLevel level;
  std::string text;
};

/// "2026-11-28 09:05:00.123  WARNING  the text": local time, and the usual words to search a log for.
std::string formatted(const LogLine& line) {
  static constexpr std::string_view kNames[] = {"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", ""};
  const auto since_epoch = std::chrono::floor<std::chrono::milliseconds>(line.time).time_since_epoch().count();
  const std::time_t seconds = since_epoch / 1000;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:03}  {:<7}  {}\n", local.tm_year + 1900, local.tm_mon + 1,
                     local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec, since_epoch % 1000,
                     kNames[static_cast<size_t>(line.level)], line.text);
}

/// Each line reaches the file before write() returns. What a full disk does not take is tried again with the next line,
/// so no line is cut.
class FileSink {
 public:
  FileSink(Descriptor file, std::string path, LogLevel least)
      : file_(std::move(file)), path_(std::move(path)), least_(least) {}

  /// Returns why the file does not take all, the first time; else "".
  std::string write(const LogLine& line) {
    if (line.level < least_) return "";
    const std::string text = formatted(line);
    if (unwritten_.empty() || unwritten_.size() + text.size() <= kMostUnwritten) unwritten_ += text;
    while (!unwritten_.empty()) {
      const ssize_t written = ::write(file_.descriptor(), unwritten_.data(), unwritten_.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        return std::exchange(warned_, true) ? "" : fmt::format("{} cannot be written: {}", path_, std::strerror(errno));
      }
      unwritten_.erase(0, static_cast<size_t>(written));
    }
    return "";
  }

 private:
  Descriptor file_;
  std::string path_;
  LogLevel least_;
  std::string unwritten_;
  bool warned_ = false;
};

}  // namespace

struct Logger::Sinks {
  Sinks(Console& console_of_log, LogLevel least) : console(console_of_log, least) {}

  const ConsoleSink console;
  std::optional<FileSink> file;  // empty until open_file
  std::vector<LogLine> early;
  std::mutex mutex;  // guards file and early; the console has its own

  void to_file(LogLine line) {
    if (file) {
      if (const std::string problem = file->write(line); !problem.empty()) warn(problem);
    } else if (early.size() < kMostEarlyMessages) {
      early.push_back(std::move(line));
    }
  }

 private:
  void warn(const std::string& problem) const {
    if (console.seen()) return console.write(LogLevel::kWarning, problem);
    fmt::print(stderr, "{}{}\n", warning_label(), problem);  // the console of this rank is not shown otherwise
  }
};

std::optional<LogLevel> parse_log_level(std::string_view name) {
  static constexpr std::string_view kNames[] = {"trace", "debug", "info", "warning", "error", "off"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

Logger::Logger(Console& console, LogLevel console_level)
    : console_(console), sinks_(std::make_unique<Sinks>(console, console_level)) {}

Logger::~Logger() = default;

void Logger::open_file(const std::string& path, LogLevel level) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  Descriptor file(open_to_append(path));  // replaces a link, does not wait for a pipe
  if (!file.open()) {
    throw UserError("the log cannot be written: " + std::string(std::strerror(errno)), path,
                    "make the folder writable, move the existing file away, or choose another output_dir");
  }
  const std::scoped_lock lock(sinks_->mutex);
  sinks_->file.emplace(std::move(file), path, level);
  for (LogLine& line : sinks_->early) sinks_->to_file(std::move(line));
  sinks_->early.clear();
}

void Logger::log(LogLevel level, std::string_view message) {
  const auto now = LogClock::now();
  sinks_->console.write(level, message);
  const std::scoped_lock lock(sinks_->mutex);
  sinks_->to_file({now, level, printable(message, "  ")});
}

void Logger::block(std::string_view text) {
  console_.line(text);
  file_only(text);
}

void Logger::detail_block(std::string_view text) {
  if (shows(LogLevel::kDebug)) console_.line(text);
  file_only(text, LogLevel::kDebug);
}

bool Logger::shows(LogLevel level) const { return sinks_->console.takes(level); }

void Logger::file_only(std::string_view message, LogLevel level) {
  const std::scoped_lock lock(sinks_->mutex);
  for (const auto& line : split_lines(strip_color(message))) sinks_->to_file({LogClock::now(), level, one_line(line)});
}

}  // namespace hone
