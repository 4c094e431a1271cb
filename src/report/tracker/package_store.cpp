#include "report/tracker/package_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

extern char** environ;

namespace hone {

namespace {

namespace fs = std::filesystem;

/// A line of JSON is a call, a line of JSON on descriptor 3 its answer. What the package prints goes to the program's
/// standard error, or nowhere.
constexpr const char* kScript = R"PY(
import json, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run ends first, and closes
channel = os.fdopen(3, "r+b", buffering=0)
def answer(**values):
    channel.write((json.dumps(values) + "\n").encode())
run = None
for line in os.fdopen(os.dup(3), "r", encoding="utf-8"):
    call = json.loads(line)
    try:
        if call["call"] == "open":
            o = call["options"]
            package = __import__(o["package"])
            stated = {key: o[key] for key in ("project", "name") if o[key]}
            stated.update(o["settings"])
            if o["package"] == "wandb":
                if o["id"]:
                    stated.update(id=o["id"], resume="allow")
                run = package.init(dir=o["dir"], tags=o["tags"] or None, **stated)
                answer(id=run.id, location=run.url or run.dir)
            else:
                stated.setdefault("project", "hone")
                if o["id"]:
                    stated["name"] = o["id"]
                run = package.init(resume="allow" if o["id"] else "never", config={}, **stated)
                answer(id=run.name, location=f"project {stated['project']}, run {run.name}; trackio show displays it")
        elif call["call"] == "params":
            if hasattr(run.config, "update"):
                run.config.update(call["params"]) if o["package"] != "wandb" else run.config.update(call["params"], allow_val_change=True)
            answer()
        elif call["call"] == "points":
            for step, row in call["rows"]:
                run.log(row, step=step)
            answer()
        else:
            if o["package"] == "wandb":
                run.finish(exit_code=call["code"])
            else:
                run.finish()
            answer()
            break
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")
)PY";

/// Waits for a process; true if it ended with exit code 0.
bool succeeded(pid_t process) {
  int status = 0;
  while (waitpid(process, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Starts Python with a script; `channel` becomes descriptor 3, or -1. Standard input is empty, standard output and
/// error are nowhere. Returns -1 if the interpreter cannot be started.
pid_t start_python(const std::string& script, int channel) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  if (channel >= 0) posix_spawn_file_actions_adddup2(&files, channel, 3);
  const std::string python = python_of_trackers();
  const std::array<const char*, 4> words = {python.c_str(), "-c", script.c_str(), nullptr};
  pid_t process = -1;
  const int error =
      posix_spawnp(&process, python.c_str(), &files, nullptr, const_cast<char* const*>(words.data()), environ);
  posix_spawn_file_actions_destroy(&files);
  return error == 0 ? process : -1;
}

class PackageStore : public TrackerStore {
 public:
  explicit PackageStore(PackageOptions options) : options_(std::move(options)) {}
  ~PackageStore() override {
    cancel();
    if (process_ > 0) succeeded(process_);
    if (channel_ >= 0) ::close(channel_);
  }

  std::string name() const override { return options_.package == "wandb" ? "Weights & Biases" : "Trackio"; }

  std::string open(int64_t /*start_time*/) override {
    start();
    Json settings = Json::object();
    for (const auto& [key, value] : options_.settings) settings[key] = value;
    const Json opened = call({{"call", "open"},
                              {"options",
                               {{"package", options_.package},
                                {"project", options_.project},
                                {"name", options_.run_name},
                                {"id", options_.run_id},
                                {"dir", options_.output_dir},
                                {"tags", options_.tags},
                                {"settings", settings}}}},
                             TrackerError::Kind::kFatal);
    location_ = opened.value("location", "");
    return opened.value("id", "");
  }

  void log_params(std::span<const std::pair<std::string, std::string>> params) override {
    Json given = Json::object();
    for (const auto& [key, value] : params) given[key] = value;
    call({{"call", "params"}, {"params", given}}, TrackerError::Kind::kRefused);
  }

  void log_points(std::span<const TrackerPoint> points) override {
    Json rows = Json::array();
    for (size_t i = 0; i < points.size();) {
      Json row = Json::object();
      const int64_t step = points[i].step;
      for (; i < points.size() && points[i].step == step; ++i) row[points[i].key] = points[i].value;
      rows.push_back({step, std::move(row)});
    }
    call({{"call", "points"}, {"rows", std::move(rows)}}, TrackerError::Kind::kRefused);
  }

  void close(TrackerStatus status, int64_t /*end_time*/) override {
    call({{"call", "close"}, {"code", status == TrackerStatus::kFinished ? 0 : 1}}, TrackerError::Kind::kFatal);
  }

  std::string location() const override { return one_line(location_); }
  void cancel() override {
    if (channel_ >= 0) ::shutdown(channel_, SHUT_RDWR);
  }

 private:
  void start() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) lost(std::strerror(errno));
    process_ = start_python(kScript, ends[1]);
    ::close(ends[1]);
    channel_ = ends[0];
    if (process_ < 0) lost("Python cannot be started");
  }

  /// Sends a line and returns the answer's. `kind` is that of an error that the package reports.
  Json call(const Json& request, TrackerError::Kind kind) {
    std::string line = request.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    for (size_t sent = 0; sent < line.size();) {
      const ssize_t count = ::send(channel_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) lost("its process has ended");
      sent += static_cast<size_t>(count);
    }
    while (answers_.find('\n') == std::string::npos) {
      char buffer[4096];
      const ssize_t count = ::recv(channel_, buffer, sizeof buffer, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) lost("its process has ended");
      answers_.append(buffer, static_cast<size_t>(count));
    }
    const size_t end = answers_.find('\n');
    const Json answer = parse_json(answers_.substr(0, end));
    answers_.erase(0, end + 1);
    if (!answer.is_object()) lost("its answer is not JSON");
    if (answer.contains("error")) throw TrackerError(kind, one_line(answer.value("error", "")));
    return answer;
  }

  [[noreturn]] void lost(const std::string& why) const {
    throw TrackerError(TrackerError::Kind::kFatal, fmt::format("{} ({})", why, python_of_trackers()));
  }

  PackageOptions options_;
  pid_t process_ = -1;
  std::atomic<int> channel_ = -1;
  std::string answers_, location_;
};

}  // namespace

std::string python_of_trackers() {
  if (const char* stated = std::getenv("HONE_PYTHON"); stated != nullptr && *stated != '\0') return stated;
  std::vector<fs::path> folders;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* root = std::getenv(variable); root != nullptr && *root != '\0')
      folders.push_back(fs::path(root) / "bin");
  }
  std::error_code error;
  if (const fs::path program = fs::read_symlink("/proc/self/exe", error); !error)
    folders.push_back(program.parent_path());
  for (const fs::path& folder : folders) {
    const fs::path python = folder / "python3";
    if (::access(python.c_str(), X_OK) == 0) return python.string();
  }
  return "python3";
}

void require_package(const std::string& package, const std::string& key) {
  const std::string script =
      fmt::format("import importlib.util, sys; sys.exit(importlib.util.find_spec('{}') is None)", package);
  const pid_t process = start_python(script, -1);
  if (process > 0 && succeeded(process)) return;
  throw UserError(fmt::format("{}: {} needs the Python package of that name, which {} does not have", key, package,
                              python_of_trackers()),
                  key,
                  fmt::format("pip install {}, in that environment (HONE_PYTHON names another); or leave it out: "
                              "metrics.jsonl has all of it",
                              package));
}

namespace {

std::string run_file(const PackageOptions& options) {
  return fmt::format("{}/{}_run.json", options.output_dir, options.package);
}

}  // namespace

void write_package_run(const PackageOptions& options, const std::string& run_id) {
  write_tracker_run(run_file(options), Json{{"run_id", run_id}});
}

void continue_package_run(PackageOptions& options) {
  if (options.run_id.empty()) options.run_id = read_tracker_run(run_file(options), Json::object());
}

std::unique_ptr<TrackerStore> make_package_store(const PackageOptions& options) {
  return std::make_unique<PackageStore>(options);
}

}  // namespace hone
