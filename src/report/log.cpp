#include "report/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

#include "core/durable_file.h"
#include "core/error.h"
#include "report/terminal.h"

namespace hone {
namespace {

// There are few messages before run.log is open; the limit only guards against a loop that logs.
constexpr size_t kMostEarlyMessages = 10'000;

spdlog::level::level_enum spdlog_level(LogLevel level) {
  static constexpr std::array kLevels = {spdlog::level::trace, spdlog::level::debug, spdlog::level::info,
                                         spdlog::level::warn,  spdlog::level::err,   spdlog::level::off};
  return kLevels[static_cast<size_t>(level)];
}

// Makes each line printable; indents the lines after the first.
std::string printable(std::string_view message, std::string_view indent) {
  std::string result;
  for (const auto& line : split_lines(message)) {
    if (!result.empty()) result.append("\n").append(indent);
    result += one_line(line);
  }
  return result;
}

class ConsoleSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit ConsoleSink(Console& console) : console_(console) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string_view text(message.payload.data(), message.payload.size());
    if (message.level >= spdlog::level::err) {
      console_.line(styled("error: ", Style::kRed, console_.color()) + fitting(printable(text, "  "), "error: "));
    } else if (message.level == spdlog::level::warn) {
      console_.line(styled("warning: ", Style::kYellow, console_.color()) +
                    fitting(printable(text, "  "), "warning: "));
    } else {
      console_.line(fitting(printable(text, ""), ""));
    }
  }
  void flush_() override {}

 private:
  /// On a terminal, breaks lines between words.
  std::string fitting(const std::string& text, std::string_view before) const {
    if (!console_.interactive()) return text;
    const std::string wrapped = wrap(std::string(before) + text, console_.width(), "  ");
    return wrapped.substr(before.size());
  }

  Console& console_;
};

/// INFO, WARNING, ERROR: the usual words to search a log for.
class LevelName : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    static constexpr std::string_view kNames[] = {"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "ERROR", ""};
    fmt::format_to(std::back_inserter(out), "{:<7}", kNames[static_cast<size_t>(message.level)]);
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<LevelName>(); }
};

struct EarlyMessage {
  spdlog::log_clock::time_point time;
  spdlog::level::level_enum level;
  std::string text;
};

}  // namespace

struct Logger::Sinks {
  std::shared_ptr<spdlog::logger> console, file;  // file is null until open_file
  std::vector<EarlyMessage> early;
  std::mutex mutex;

  void to_file(spdlog::log_clock::time_point time, spdlog::level::level_enum level, std::string text) {
    if (file) {
      file->log(time, spdlog::source_loc{}, level, text);
    } else if (early.size() < kMostEarlyMessages) {
      early.push_back({time, level, std::move(text)});
    }
  }
};

std::optional<LogLevel> parse_log_level(std::string_view name) {
  static constexpr std::string_view kNames[] = {"trace", "debug", "info", "warning", "error", "off"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

Logger::Logger(Console& console, LogLevel console_level) : console_(console), sinks_(std::make_unique<Sinks>()) {
  sinks_->console = std::make_shared<spdlog::logger>("console", std::make_shared<ConsoleSink>(console));
  sinks_->console->set_level(spdlog_level(console_level));
}

Logger::~Logger() = default;

void Logger::open_file(const std::string& path, LogLevel level) {
  std::shared_ptr<spdlog::sinks::basic_file_sink_mt> sink;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const int opened = open_to_append(path);  // replaces a link, does not wait for a pipe
  if (opened < 0) {
    throw UserError("the log cannot be written: " + std::string(std::strerror(errno)), path,
                    "make the folder writable, move the existing file away, or choose another output_dir");
  }
  close(opened);
  try {
    sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, /*truncate=*/false);
  } catch (const spdlog::spdlog_ex& error) {
    throw UserError(error.what(), path, "make the folder writable or choose another output_dir");
  }
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<LevelName>('*').set_pattern("%Y-%m-%d %H:%M:%S.%e  %*  %v");
  sink->set_formatter(std::move(formatter));
  const std::scoped_lock lock(sinks_->mutex);
  sinks_->file = std::make_shared<spdlog::logger>("file", std::move(sink));
  sinks_->file->set_level(spdlog_level(level));
  sinks_->file->flush_on(spdlog::level::trace);
  sinks_->file->set_error_handler([this, path, warned = false](const std::string& what) mutable {
    if (std::exchange(warned, true)) return;
    if (console_.seen()) return sinks_->console->warn("{} cannot be written: {}", path, what);
    fmt::print(stderr, "warning: {} cannot be written: {}\n", path, what);  // of a rank whose console is not shown
  });
  for (auto& message : sinks_->early) sinks_->to_file(message.time, message.level, std::move(message.text));
  sinks_->early.clear();
}

void Logger::log(LogLevel level, std::string_view message) {
  const auto spd = spdlog_level(level);
  const auto now = spdlog::log_clock::now();
  sinks_->console->log(now, spdlog::source_loc{}, spd, spdlog::string_view_t(message.data(), message.size()));
  const std::scoped_lock lock(sinks_->mutex);
  sinks_->to_file(now, spd, printable(message, "  "));
}

void Logger::block(std::string_view text) {
  console_.line(text);
  file_only(text);
}

void Logger::detail_block(std::string_view text) {
  if (shows(LogLevel::kDebug)) console_.line(text);
  file_only(text, LogLevel::kDebug);
}

bool Logger::shows(LogLevel level) const { return sinks_->console->should_log(spdlog_level(level)); }

void Logger::file_only(std::string_view message, LogLevel level) {
  const std::scoped_lock lock(sinks_->mutex);
  for (const auto& line : split_lines(strip_color(message))) {
    sinks_->to_file(spdlog::log_clock::now(), spdlog_level(level), one_line(line));
  }
}

}  // namespace hone
