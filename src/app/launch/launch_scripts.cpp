#include "app/launch/launch_scripts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "app/launch/rank_processes.h"
#include "app/output.h"
#include "core/cuda_device.h"
#include "core/error.h"
#include "weights/checkpoint.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

void write_script(const fs::path& path, const std::string& script) {
  write_text_file(path, script);
  fs::permissions(path, fs::perms::owner_exec | fs::perms::group_exec, fs::perm_options::add);
}

/// The GPUs of other machines are not counted here.
bool on_cpu(RankDevice device) {
  return device == RankDevice::kCpu || (device == RankDevice::kAuto && cuda::device_count() == 0);
}

}  // namespace

int run_launch_hosts(const LaunchPlan& plan, const SshHosts& hosts, RankDevice device, bool dry_run) {
  check_launch_plan(plan);
  const bool models = plan.independent.count > 0;
  const bool by_mpirun = !models && on_cpu(device) && !find_program("mpirun").empty();
  const std::string script = by_mpirun ? mpirun_script(plan, hosts) : ssh_script(plan, hosts);
  if (dry_run) {
    print_text(script);
    return 0;
  }
  const fs::path path = fs::path(plan.logs) / "launch.sh";
  fs::create_directories(plan.logs);
  write_script(path, script);
  const std::string explanation = by_mpirun ? mpirun_explanation(plan, hosts) : ssh_explanation(plan, hosts);
  print_text(explanation + fmt::format("The script that starts them: {}\n", path.string()));
  execlp("bash", "bash", path.c_str(), static_cast<char*>(nullptr));
  throw UserError(fmt::format("bash cannot be started: {}", std::strerror(errno)), path.string(),
                  "run the script on a machine with bash and ssh");
}

int run_launch_slurm(const LaunchPlan& plan, const SlurmOptions& options, bool dry_run, bool replace) {
  check_launch_plan(plan);
  const std::string script = slurm_script(plan, options);
  if (dry_run) {
    print_text(script);
    return 0;
  }
  require_free_file(options.file, replace);
  write_script(options.file, script);
  print_text(fmt::format("wrote {}\n", options.file) + slurm_explanation(plan, options));
  return 0;
}

}  // namespace hone
