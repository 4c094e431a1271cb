#include "report/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>

#include <array>
#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

#include "core/error.h"
#include "report/terminal.h"

namespace hone {
namespace {

// Messages said before run.log is open are few; the bound only guards against a loop that logs.
constexpr size_t kMostEarlyMessages = 10'000;

spdlog::level::level_enum spdlog_level(LogLevel level) {
  static constexpr std::array kLevels = {spdlog::level::trace, spdlog::level::debug, spdlog::level::info,
                                         spdlog::level::warn,  spdlog::level::err,   spdlog::level::off};
  return kLevels[static_cast<size_t>(level)];
}

// Each line made harmless; lines after the first are indented below it.
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
    const bool color = console_.color();
    if (message.level >= spdlog::level::err) {
      console_.line(styled("error: ", Style::kRed, color) + printable(text, "  "));
    } else if (message.level == spdlog::level::warn) {
      console_.line(styled("warning: ", Style::kYellow, color) + printable(text, "  "));
    } else if (message.level == spdlog::level::info) {
      console_.line(printable(text, ""));
    } else {
      console_.line(styled(printable(text, ""), Style::kDim, color));
    }
  }
  void flush_() override {}

 private:
  Console& console_;
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
  try {
    sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, /*truncate=*/false);
  } catch (const spdlog::spdlog_ex& error) {
    throw UserError(error.what(), path, "make the folder writable or choose another output_dir");
  }
  sink->set_pattern("%Y-%m-%d %H:%M:%S.%e  %-7l  %v");
  const std::scoped_lock lock(sinks_->mutex);
  sinks_->file = std::make_shared<spdlog::logger>("file", std::move(sink));
  sinks_->file->set_level(spdlog_level(level));
  sinks_->file->flush_on(spdlog::level::trace);
  sinks_->file->set_error_handler([this, path, warned = false](const std::string& what) mutable {
    if (std::exchange(warned, true)) return;
    if (console_.seen()) return sinks_->console->warn("{} cannot be written: {}", path, what);
    fmt::print(stderr, "warning: {} cannot be written: {}\n", path, what);  // of a rank that prints nothing else
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

void Logger::file_only(std::string_view message) {
  const std::scoped_lock lock(sinks_->mutex);
  for (const auto& line : split_lines(strip_color(message))) {
    sinks_->to_file(spdlog::log_clock::now(), spdlog::level::info, one_line(line));
  }
}

}  // namespace hone
