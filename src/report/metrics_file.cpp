#include "report/metrics_file.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"

namespace hone {
namespace {

[[noreturn]] void fail(int error, const std::string& path) {
  throw std::system_error(error, std::generic_category(), "cannot write " + path);
}

}  // namespace

AppendFile::AppendFile(std::string path, bool exclusive) : path_(std::move(path)) {
  const auto folder = std::filesystem::path(path_).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) fail(error.value(), folder.string());
  fd_ = open_to_append(path_, exclusive);
  if (fd_ < 0) fail(errno, path_);
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept : path_(std::move(other.path_)), fd_(other.fd_) { other.fd_ = -1; }

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

void AppendFile::write(std::string_view record) {
  while (!record.empty()) {
    const ssize_t written = ::write(fd_, record.data(), record.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno, path_);
    record.remove_prefix(static_cast<size_t>(written));
  }
}

namespace {

// A line of metrics has some kilobytes; a file with a longer one is not a metrics file.
constexpr size_t kMaxLine = size_t{1} << 20;

template <class Action>
auto or_user_error(const std::string& path, Action action) {
  try {
    return action();
  } catch (const std::system_error& error) {
    const bool full = error.code() == std::errc::no_space_on_device;
    throw UserError(error.what(), path,
                    full ? "free space on the disk, then continue with resume_from_checkpoint: auto"
                         : "make the folder writable or choose another output_dir");
  }
}

// A parsed line; nothing if it is not a JSON object.
std::optional<Json> parse_line(std::string_view line) {
  Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return object.is_object() ? std::optional(std::move(object)) : std::nullopt;
}

bool is_later(const Json& object, const ResumePoint& point) {
  const auto at = object.find("step");
  if (at == object.end() || !at->is_number()) return false;
  const double step = at->get<double>(), last = static_cast<double>(point.step);
  return step > last || (step == last && point.evaluation_due && !object.contains("loss"));
}

}  // namespace

const char* nonfinite_name(double value) { return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity"; }

Json metrics_object(std::span<const Metric> metrics) {
  Json object = Json::object(), nonfinite = Json::object();
  for (const auto& [name, value, is_count] : metrics) {
    if (!std::isfinite(value)) {
      object[name] = nullptr;
      nonfinite[name] = nonfinite_name(value);
    } else if (is_count && std::abs(value) < 9e15) {
      object[name] = static_cast<int64_t>(std::llround(value));
    } else {
      object[name] = value;
    }
  }
  if (!nonfinite.empty()) object["nonfinite"] = std::move(nonfinite);
  return object;
}

MetricsFile MetricsFile::create(const std::string& path) {
  return or_user_error(path, [&] {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    return MetricsFile(AppendFile(path));
  });
}

MetricsFile MetricsFile::resume(const std::string& path, const ResumePoint& point, ResumedMetrics& found) {
  found = {};
  std::string kept, buffer(kMaxLine, '\0');
  std::error_code error;
  const bool there = std::filesystem::is_regular_file(std::filesystem::symlink_status(path, error));
  std::ifstream in;
  if (there) in.open(path, std::ios::binary);  // a link is replaced, a pipe rejected below
  while (there && (in.getline(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0)) {
    const std::string_view line(buffer.data());
    if (in.fail()) {
      throw UserError("the metrics file of the run to resume has a line that is too long", path,
                      "move this file away; the run then starts a new one");
    }
    if (line.empty()) continue;
    auto object = parse_line(line);
    if (!object) {
      ++found.dropped_broken;
    } else if (is_later(*object, point)) {
      ++found.dropped_later;
    } else {
      kept.append(line) += '\n';
      found.history->push_back(std::move(*object));
    }
  }
  in.close();
  return or_user_error(path, [&] {
    // Rewritten in any case: a last line without a line end would be joined with the next one.
    if (there) write_durably(path, kept);
    return MetricsFile(AppendFile(path));
  });
}

void MetricsFile::append(const Json& object) {
  const std::string line = object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  or_user_error(file_.path(), [&] { file_.write(line); });
}

namespace {

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace

Json to_json(const TrainerState& state) {
  const bool saved = state.best && !state.best->checkpoint.empty();
  Json json;
  json["best_global_step"] = state.best ? Json(state.best->step) : Json(nullptr);
  json["best_metric"] = state.best ? number_or_null(state.best->metric) : Json(nullptr);
  json["best_model_checkpoint"] = saved ? Json(state.best->checkpoint) : Json(nullptr);
  json["epoch"] = number_or_null(state.epoch);
  json["eval_steps"] = state.eval_steps;
  json["global_step"] = state.global_step;
  json["is_hyper_param_search"] = false;
  json["is_local_process_zero"] = true;
  json["is_world_process_zero"] = true;
  json["log_history"] = state.log_history;
  json["logging_steps"] = state.logging_steps;
  json["max_steps"] = state.max_steps;
  json["num_input_tokens_seen"] = state.num_input_tokens_seen;
  json["num_train_epochs"] = number_or_null(std::ceil(state.num_train_epochs));
  json["save_steps"] = state.save_steps;
  json["stateful_callbacks"] = Json::object();
  json["total_flos"] = 0;
  json["train_batch_size"] = state.train_batch_size;
  json["trial_name"] = nullptr;
  json["trial_params"] = nullptr;
  return json;
}

void write_trainer_state(const TrainerState& state, const std::string& folder) {
  const std::string path = folder + "/trainer_state.json";
  write_durably(path, to_json(state).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace hone
