#include "app/launch/launch.h"

#include <fmt/format.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "app/launch/rank_processes.h"
#include "app/output.h"
#include "core/base/error.h"
#include "core/cuda/cuda_device.h"
#include "dist/control/run_secret.h"
#include "report/collected_log.h"

namespace hone {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kFailed = static_cast<int>(ExitCode::kDeviceFailed);
constexpr auto kLaunchPause = std::chrono::milliseconds(50);
/// Time for the other ranks to save and end after a rank has failed; later they are ended.
constexpr auto kTimeToSave = std::chrono::minutes(10);
constexpr auto kTimeToDie = std::chrono::seconds(30);

/// Variables for all ranks: removes those of other launchers, and sets a new secret unless the user has stated one.
Environment common_environment() {
  const auto variable = [](const char* name) { return std::getenv(name); };
  Environment environment;
  if (stated_secret(variable).empty()) environment.emplace_back(kSecretVariable, new_secret());
  const Environment rest = {{"RANK", ""},
                            {"WORLD_SIZE", ""},
                            {"LOCAL_RANK", ""},
                            {"LOCAL_WORLD_SIZE", ""},
                            {"TORCHELASTIC_RUN_ID", ""},
                            {"TORCHELASTIC_USE_AGENT_STORE", ""},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", std::to_string(free_port())}};
  environment.insert(environment.end(), rest.begin(), rest.end());
  return environment;
}

/// The exit code of a rank. Prints a line if a signal has ended it.
int code_of(int rank, int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  print_error(
      fmt::format("rank {} was ended by signal {} ({})\n", rank, WTERMSIG(status), strsignal(WTERMSIG(status))));
  return kFailed;
}

/// Running ranks, which are children of this process.
class Ranks {
 public:
  Ranks(int count, const std::vector<std::string>& arguments, const Environment& common) {
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

  /// Records ranks that have ended; returns whether all have.
  bool poll() {
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      int status = 0;
      if (processes_[rank] == 0 || ::waitpid(processes_[rank], &status, WNOHANG) != processes_[rank]) continue;
      processes_[rank] = 0;
      ended(code_of(static_cast<int>(rank), status));
    }
    return std::all_of(processes_.begin(), processes_.end(), [](pid_t pid) { return pid == 0; });
  }

  void send(int signal) {
    for (const pid_t pid : processes_) {
      if (pid != 0) ::kill(pid, signal);
    }
  }

  /// The exit code of the first rank that failed, or 0. A rank that exits with 4 (another rank is lost) did not fail
  /// itself.
  int code() const { return code_; }

 private:
  void ended(int code) {
    if (code_ == 0 || (code_ == kFailed && code > 0 && code < kFailed)) code_ = code;
  }

  std::vector<pid_t> processes_;  // 0: the process has ended
  int code_ = 0;
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

/// The number of visible GPUs, the default number of ranks.
int visible_gpus(const std::string& device) {
  const int gpus = rank_device_named(device) == RankDevice::kCpu ? 0 : cuda::device_count();
  if (gpus > 0) return gpus;
  throw UserError("the number of ranks is missing, and this machine has no GPU to derive it from",
                  rank_device_named(device) == RankDevice::kCpu ? "--device" : cuda::why_no_device(),
                  "hone launch -n 2 --device cpu -- train run.yaml");
}

Ranks start_ranks(int count, const LaunchOptions& options, bool gpus) {
  Environment environment = common_environment();
  if (!gpus) {
    const Environment cpu = cpu_rank_variables();
    environment.insert(environment.end(), cpu.begin(), cpu.end());
  }
  return {count, options.arguments, environment};
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
    std::this_thread::sleep_for(kLaunchPause);
  }
  return ranks.code();
}

}  // namespace

int run_launch(const LaunchOptions& options) {
  check_ranks_command(options.arguments);
  const int count = options.ranks ? *options.ranks : visible_gpus(options.device);
  if (count < 1 || count > 1024) {
    throw UserError(fmt::format("{} ranks cannot be started", count), "-n", "use 1 to 1024");
  }
  const bool gpus = on_gpus(options.device, count);
  if (options.check) options.check(count);
  CaughtSignals signals;
  Ranks ranks = start_ranks(count, options, gpus);
  return wait_for(ranks, signals);
}

int run_launch_elsewhere(LaunchElsewhere elsewhere, std::optional<int> ranks, const std::string& device,
                         const std::vector<std::string>& arguments) {
  LaunchPlan& plan = elsewhere.plan;
  plan.program = own_program();
  plan.directory = std::filesystem::current_path();
  plan.command = arguments;
  plan.ranks_per_host = ranks.value_or(1);
  plan.environment.insert(plan.environment.begin(), std::string(kCollectedLog) + "=1");
  const RankDevice kind = rank_device_named(device);
  if (kind == RankDevice::kCpu) {
    for (const auto& [name, value] : cpu_rank_variables()) plan.environment.push_back(name + "=" + value);
  }
  if (!elsewhere.slurm && elsewhere.ssh.hosts.empty()) {
    throw UserError("a script is written, and independent models are started, for other machines only", "hone launch",
                    "name them with --hosts, or use --slurm");
  }
  if (elsewhere.slurm && !elsewhere.ssh.hosts.empty()) {
    throw UserError("SLURM chooses the hosts", "--hosts", "leave out --hosts or --slurm");
  }
  if (elsewhere.slurm) {
    if (kind == RankDevice::kCpu && elsewhere.slurm_options.gpus_per_node < 0)
      elsewhere.slurm_options.gpus_per_node = 0;
    return run_launch_slurm(plan, elsewhere.slurm_options, elsewhere.dry_run, elsewhere.replace);
  }
  const auto hosts = static_cast<int>(elsewhere.ssh.hosts.size());
  if (plan.independent.count > 0 && plan.independent.count != hosts) {
    throw UserError(fmt::format("{} models on {} hosts: each host has one", plan.independent.count, hosts),
                    "--independent", "name as many hosts as models");
  }
  return run_launch_hosts(plan, elsewhere.ssh, elsewhere.dry_run);
}

}  // namespace hone
