#include "app/launch.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>

#include "app/launch/launch_plan.h"
#include "app/output.h"
#include "app/rank_processes.h"
#include "core/cuda_device.h"
#include "core/error.h"

namespace hone {

namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr int kFailed = static_cast<int>(ExitCode::kDeviceFailed);
constexpr auto kPause = std::chrono::milliseconds(50);
/// After a rank has failed the others find out, save, and end; who has not done so by then is ended.
constexpr auto kTimeToSave = std::chrono::minutes(10);
constexpr auto kTimeToDie = std::chrono::seconds(30);

/// What other launchers around this one say is not about these ranks.
Environment common_environment() {
  return {{"RANK", ""},
          {"WORLD_SIZE", ""},
          {"LOCAL_RANK", ""},
          {"LOCAL_WORLD_SIZE", ""},
          {"TORCHELASTIC_RUN_ID", ""},
          {"TORCHELASTIC_USE_AGENT_STORE", ""},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(free_port())}};
}

/// The exit code of a rank, and a line about it if a signal has ended it.
int code_of(int rank, int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  print_error(
      fmt::format("rank {} was ended by signal {} ({})\n", rank, WTERMSIG(status), strsignal(WTERMSIG(status))));
  return kFailed;
}

/// Ranks under way, whoever has started them.
class Ranks {
 public:
  virtual ~Ranks() = default;
  /// Notes who has ended; true when all have.
  virtual bool poll() = 0;
  virtual void send(int signal) = 0;
  /// Of the first rank that failed, or 0. That others were lost (4) is what ranks say which did not fail themselves.
  int code() const { return code_; }

 protected:
  void ended(int code) {
    if (code_ == 0 || (code_ == kFailed && code > 0 && code < kFailed)) code_ = code;
  }

 private:
  int code_ = 0;
};

/// Started here: children of this process.
class OwnRanks : public Ranks {
 public:
  OwnRanks(int count, const std::vector<std::string>& arguments, const Environment& common) {
    std::vector<std::string> command = {own_program()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const std::string size = std::to_string(count);
    for (int rank = 0; rank < count; ++rank) {
      Environment environment = common;
      const std::string number = std::to_string(rank);
      environment.insert(environment.end(),
                         {{"RANK", number}, {"LOCAL_RANK", number}, {"WORLD_SIZE", size}, {"LOCAL_WORLD_SIZE", size}});
      processes_.push_back(start_process(command, environment));
    }
  }

  bool poll() override {
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      int status = 0;
      if (processes_[rank] == 0 || ::waitpid(processes_[rank], &status, WNOHANG) != processes_[rank]) continue;
      processes_[rank] = 0;
      ended(code_of(static_cast<int>(rank), status));
    }
    return std::all_of(processes_.begin(), processes_.end(), [](pid_t pid) { return pid == 0; });
  }

  void send(int signal) override {
    for (const pid_t pid : processes_) {
      if (pid != 0) ::kill(pid, signal);
    }
  }

 private:
  std::vector<pid_t> processes_;  // 0: has ended
};

/// A folder of this run's own, gone with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (fs::temp_directory_path() / "hone-launch-XXXXXX").string();
    if (!::mkdtemp(path.data()))
      throw UserError("a temporary folder cannot be made", path, "set TMPDIR to one with space");
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Started by mpirun. It ends all ranks when one fails, and says little about how they ended: so each runs below a
/// shell that always succeeds and writes its rank's exit code down.
class MpiRanks : public Ranks {
 public:
  MpiRanks(const std::string& mpirun, int count, const std::vector<std::string>& arguments, Environment environment)
      : codes_(static_cast<size_t>(count), kRunning) {
    std::vector<std::string> command = {mpirun, "-n",      std::to_string(count), "--oversubscribe", "--bind-to",
                                        "none", "--quiet", "--enable-recovery"};
    if (::geteuid() == 0) command.push_back("--allow-run-as-root");
    command.insert(command.end(), {"/bin/sh", "-c",
                                   R"("$@"; code=$?; echo $code > "$0/$OMPI_COMM_WORLD_RANK.part"; )"
                                   R"(mv "$0/$OMPI_COMM_WORLD_RANK.part" "$0/$OMPI_COMM_WORLD_RANK")",
                                   folder_.path().string(), own_program()});
    command.insert(command.end(), arguments.begin(), arguments.end());
    // mpirun gives ranks a terminal, whatever their output goes to.
    if (::isatty(STDOUT_FILENO) != 1) environment.emplace_back("TERM", "dumb");
    process_ = start_process(command, environment);
  }

  bool poll() override {
    int status = 0;
    const bool all_ended = ::waitpid(process_, &status, WNOHANG) == process_;
    read_codes();  // after mpirun's end nothing more is written
    if (!all_ended) return false;
    const bool all_known = std::find(codes_.begin(), codes_.end(), kRunning) == codes_.end();
    if (!all_known || status != 0) ended(kFailed);
    return true;
  }

  void send(int signal) override {
    for (const pid_t pid : ranks_below(process_)) ::kill(pid, signal);
  }

 private:
  static constexpr int kRunning = -1;

  void read_codes() {
    for (size_t rank = 0; rank < codes_.size(); ++rank) {
      std::ifstream file(folder_.path() / std::to_string(rank));
      int code = 0;
      if (codes_[rank] != kRunning || !(file >> code)) continue;
      codes_[rank] = code;
      ended(code > 128 ? code_of(static_cast<int>(rank), code - 128) : code);  // a shell says 128 + signal
    }
  }

  TemporaryFolder folder_;
  pid_t process_ = 0;
  std::vector<int> codes_;
};

bool on_gpus(const std::string& name, int ranks) {
  const RankDevice device = rank_device_named(name);
  if (device == RankDevice::kCpu) return false;
  const int gpus = cuda::device_count();
  if (device == RankDevice::kCuda && gpus < ranks) {
    throw UserError(fmt::format("{} ranks need as many GPUs; there {} {}", ranks, gpus == 1 ? "is" : "are", gpus),
                    "--device", gpus == 0 ? cuda::why_no_device() : "start fewer ranks (-n)");
  }
  return gpus >= ranks;
}

std::unique_ptr<Ranks> start_ranks(int count, const LaunchOptions& options) {
  Environment environment = common_environment();
  if (on_gpus(options.device, count)) return std::make_unique<OwnRanks>(count, options.arguments, environment);
  const Environment cpu = cpu_rank_variables();
  environment.insert(environment.end(), cpu.begin(), cpu.end());
  const std::string mpirun = find_program("mpirun");
  if (mpirun.empty()) return std::make_unique<OwnRanks>(count, options.arguments, environment);
  return std::make_unique<MpiRanks>(mpirun, count, options.arguments, environment);
}

int wait_for(Ranks& ranks, CaughtSignals& signals) {
  std::optional<Clock::time_point> failed, told;
  while (!ranks.poll()) {
    if (const int signal = signals.take()) ranks.send(signal);
    if (ranks.code() != 0 && !failed) failed = Clock::now();
    if (failed && !told && Clock::now() - *failed > kTimeToSave) {
      print_error("ranks that have not ended after the first one failed are told to\n");
      ranks.send(SIGTERM);
      told = Clock::now();
    }
    if (told && Clock::now() - *told > kTimeToDie) ranks.send(SIGKILL);
    std::this_thread::sleep_for(kPause);
  }
  return ranks.code();
}

}  // namespace

int run_launch(const LaunchOptions& options) {
  check_ranks_command(options.arguments);
  if (!options.ranks) {
    throw UserError("how many ranks to start is not said", "hone launch", "hone launch -n 2 -- train run.yaml");
  }
  if (*options.ranks < 1 || *options.ranks > 1024) {
    throw UserError(fmt::format("{} ranks cannot be started", *options.ranks), "-n", "use 1 to 1024");
  }
  CaughtSignals signals;
  return wait_for(*start_ranks(*options.ranks, options), signals);
}

}  // namespace hone
