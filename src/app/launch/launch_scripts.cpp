#include "app/launch/launch_scripts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "app/output.h"
#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/text/shell_words.h"
#include "session/device_facts.h"

namespace hone {

void check_ranks_command(const std::vector<std::string>& command) {
  if (command.empty()) {
    throw UserError("there is nothing to start", "hone launch",
                    "end it with a verb: hone launch -n 2 -- train run.yaml");
  }
  const std::vector<std::string> verbs = {"train", "eval", "generate", "verify", "bench"};
  const std::string& verb = command.front();
  if (std::find(verbs.begin(), verbs.end(), verb) != verbs.end()) return;
  if (verb == "chat") {
    throw UserError(
        "'chat' is a conversation with one process, and does not run on several ranks", "hone launch",
        "hone chat --experts-device cpu or --cpu-offload params has weights that a GPU does not hold in host "
        "memory; generate answers files of prompts on several ranks");
  }
  throw UserError(fmt::format("'{}' does not run on several ranks.{}", verb, did_you_mean(verb, verbs)), "hone launch",
                  fmt::format("{} do: hone launch -n 2 -- train run.yaml; other verbs run alone: hone {} …",
                              fmt::join(verbs, ", "), verb));
}

RankDevice rank_device_named(const std::string& name) {
  check_device_name(name, "--device");
  if (name == "auto") return RankDevice::kAuto;
  if (name.starts_with("cuda:")) {
    throw UserError(fmt::format("{} is one GPU, but each rank takes one of its own", name), "--device",
                    "use cuda; CUDA_VISIBLE_DEVICES says which GPUs the ranks share out");
  }
  return name == "cpu" ? RankDevice::kCpu : RankDevice::kCuda;
}

std::vector<std::pair<std::string, std::string>> cpu_rank_variables() { return {{"CUDA_VISIBLE_DEVICES", "-1"}}; }

void check_launch_plan(const LaunchPlan& plan) {
  check_ranks_command(plan.command);
  if (plan.independent.count > 0 && plan.command.front() != "train") {
    throw UserError(fmt::format("'{}' makes no models", plan.command.front()), "--independent", "use train after --");
  }
  if (plan.ranks_per_host < 1) throw UserError("each host needs a rank", "-n", "use 1 or more, one for each GPU");
  const int ports = std::max(1, plan.independent.count);
  if (plan.port < 1024 || plan.port + ports > 65535) {
    throw UserError(fmt::format("{} cannot be the port", plan.port), "--port", "use one from 1024 to 65000");
  }
  for (const std::string& variable : plan.environment) {
    const size_t name = variable.find('=');
    const bool valid = name != std::string::npos && name > 0 &&
                       std::all_of(variable.begin(), variable.begin() + static_cast<ptrdiff_t>(name), [](char c) {
                         return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
                       });
    if (!valid) throw UserError(fmt::format("'{}' is not NAME=VALUE", variable), "--env", "e.g. NCCL_DEBUG=INFO");
    if (variable.starts_with("HONE_RUN_SECRET=")) {
      throw UserError("the run's secret would be visible in a script and on command lines", "--env",
                      "leave it out: each run gets one of its own; or export HONE_RUN_SECRET before hone launch");
    }
  }
}

std::string secret_lines() {
  return R"sh(if [ -n "${HONE_RUN_SECRET_FILE:-}" ]; then HONE_RUN_SECRET=$(cat "$HONE_RUN_SECRET_FILE") || exit 2; fi
[ -n "${HONE_RUN_SECRET:-}" ] || HONE_RUN_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
)sh";
}

std::string command_line(const LaunchPlan& plan) { return shell_word(plan.program) + " " + shell_words(plan.command); }

std::vector<std::string> independence_warning(int models) {
  return {fmt::format("These are {} independent models: model i learns from shard i alone, 1/{} of the data, and none",
                      models, models),
          "is better for the others. One model that learns from all of the data: leave --independent out."};
}

namespace {

void check_value(const std::string& value, const char* option) {
  if (value.find_first_of(" \t\n#'\"\\$`") != std::string::npos) {
    throw UserError(fmt::format("'{}' is not valid in an #SBATCH line", value), option,
                    "use a value that sbatch accepts");
  }
}

void check_options(const SlurmOptions& options) {
  check_value(options.job_name, "--job-name");
  check_value(options.memory, "--mem");
  check_value(options.time, "--time");
  check_value(options.partition, "--partition");
  check_value(options.account, "--account");
  if (options.nodes < 1) throw UserError("a run needs a node", "--nodes", "use 1 or more");
}

class Sbatch {
 public:
  void add(const char* option, const std::string& value) {
    if (!value.empty()) text += fmt::format("#SBATCH --{}={}\n", option, value);
  }
  void add(const char* option, int value) {
    if (value > 0) add(option, std::to_string(value));
  }
  std::string text;
};

}  // namespace

std::string slurm_script(const LaunchPlan& plan, const SlurmOptions& options) {
  check_options(options);
  const int models = plan.independent.count, ranks = plan.ranks_per_host;
  Sbatch sbatch;
  sbatch.add("job-name", options.job_name);
  if (models > 0) sbatch.add("array", fmt::format("0-{}", models - 1));
  sbatch.add("nodes", models > 0 ? 1 : options.nodes);
  sbatch.add("ntasks-per-node", ranks);
  sbatch.add("gpus-per-node", options.gpus_per_node < 0 ? ranks : options.gpus_per_node);
  sbatch.add("cpus-per-task", options.cpus_per_rank);
  sbatch.add("mem", options.memory);
  sbatch.add("time", options.time);
  sbatch.add("partition", options.partition);
  sbatch.add("account", options.account);
  // %a is the index in the array; SLURM does not make folders.
  sbatch.add("output", plan.logs + (models > 0 ? "/node_%a.log" : "/slurm_%j.log"));
  sbatch.add("open-mode", "append");  // a job that is requeued keeps what it wrote before
  std::string script = "#!/bin/bash\n" + sbatch.text + "# Written by hone launch --slurm.\n";
  if (models > 0) {
    for (const std::string& line : independence_warning(models)) script += "# " + line + "\n";
  } else {
    script +=
        fmt::format("# One run on {} rank{}; rank 0 listens on the first node, at a port that depends on the job.\n",
                    ranks * options.nodes, ranks * options.nodes == 1 ? "" : "s");
  }
  script += fmt::format("set -eu\ncd {}\n", shell_word(plan.directory));
  for (const std::string& variable : plan.environment) script += "export " + shell_word(variable) + "\n";
  script += "# What the ranks of this job know and nobody else does.\n" + secret_lines() + "export HONE_RUN_SECRET\n";
  std::string srun = "srun --kill-on-bad-exit=1 --open-mode=append";  // after the logs of the job before
  // Since SLURM 22.05 a step does not inherit it from its job.
  if (options.cpus_per_rank > 0) srun += fmt::format(" --cpus-per-task={}", options.cpus_per_rank);
  if (models == 0) {
    return script +
           fmt::format("{} --output={} {}\n", srun, shell_word(plan.logs + "/rank_%t.log"), command_line(plan));
  }
  script +=
      fmt::format("node=$SLURM_ARRAY_TASK_ID\nexport MASTER_ADDR=127.0.0.1 MASTER_PORT=$(({} + node))\n", plan.port);
  script += fmt::format("shard=$(ls {}/training_data_node_\"$node\".*)\n", shell_word(plan.independent.shards));
  return script + fmt::format("{} {} datasets=\"$shard\" output_dir={}/node_\"$node\"\n", srun, command_line(plan),
                              shell_word(plan.independent.output_dir));
}

std::string slurm_explanation(const LaunchPlan& plan, const SlurmOptions& options) {
  const int models = plan.independent.count;
  std::string text;
  if (models > 0) {
    for (const std::string& line : independence_warning(models)) text += line + "\n";
    text += fmt::format("make the shards:  hone prepare datasets=FILE --split-nodes {} --output {}\n", models,
                        shell_word(plan.independent.shards));
  }
  const std::string logs = shell_word(plan.logs);
  text += fmt::format("submit:           mkdir -p {} && sbatch {}\n", logs, shell_word(options.file));
  text += fmt::format("watch:            squeue --me; tail -f {}/{}\n", logs, models > 0 ? "node_0.log" : "rank_0.log");
  text += "stop:             scancel --signal=TERM JOB, which saves first; resume=auto continues the run\n";
  return text;
}

namespace {

/// A process that one ssh starts on a host.
struct Remote {
  std::string host, what, log;
  std::vector<std::string> variables;
  std::string command;  ///< the command for the host's shell, without variables
};

/// "user@node1" → "node1"
std::string name_of(const std::string& host) { return host.substr(host.find('@') + 1); }

std::string master_of(const SshHosts& hosts) {
  return hosts.master.empty() ? name_of(hosts.hosts.front()) : hosts.master;
}

Remote rank_of(const LaunchPlan& plan, const SshHosts& hosts, int node, int local) {
  const int n = plan.ranks_per_host, rank = node * n + local, size = n * static_cast<int>(hosts.hosts.size());
  return {.host = hosts.hosts[static_cast<size_t>(node)],
          .what = fmt::format("rank {} of {} (local rank {})", rank, size, local),
          .log = fmt::format("rank_{}.log", rank),
          .variables = {fmt::format("RANK={}", rank), fmt::format("LOCAL_RANK={}", local),
                        fmt::format("WORLD_SIZE={}", size), "MASTER_ADDR=" + master_of(hosts),
                        fmt::format("MASTER_PORT={}", plan.port)},
          .command = command_line(plan)};
}

Remote model_of(const LaunchPlan& plan, const SshHosts& hosts, int node) {
  const std::string shard = fmt::format("{}/training_data_node_{}", plan.independent.shards, node);
  const std::string output = fmt::format("{}/node_{}", plan.independent.output_dir, node);
  LaunchPlan own = plan;
  if (plan.ranks_per_host > 1) {
    own.command = {"launch", "-n", std::to_string(plan.ranks_per_host), "--"};
    own.command.insert(own.command.end(), plan.command.begin(), plan.command.end());
  }
  own.command.push_back("output_dir=" + output);
  return {.host = hosts.hosts[static_cast<size_t>(node)],
          .what = fmt::format("model {} of shard {}.*, to {}", node, shard, output),
          .log = fmt::format("node_{}.log", node),
          .variables = {},
          .command = fmt::format("{} datasets=\"$(ls {}.*)\"", command_line(own), shell_word(shard))};
}

std::vector<Remote> remotes_of(const LaunchPlan& plan, const SshHosts& hosts) {
  std::vector<Remote> remotes;
  for (int node = 0; node < static_cast<int>(hosts.hosts.size()); ++node) {
    if (plan.independent.count > 0) {
      remotes.push_back(model_of(plan, hosts, node));
      continue;
    }
    for (int local = 0; local < plan.ranks_per_host; ++local) remotes.push_back(rank_of(plan, hosts, node, local));
  }
  return remotes;
}

/// The first lines of a script, with comments that explain it.
std::string heading(const std::string& explanation) {
  std::string text = "#!/bin/bash\n# Written by hone launch.\n";
  for (size_t begin = 0, end = 0; begin < explanation.size(); begin = end + 1) {
    end = explanation.find('\n', begin);
    text += "# " + explanation.substr(begin, end - begin) + "\n";
  }
  return text;
}

std::string same_everywhere(const LaunchPlan& plan) {
  return fmt::format("{} and {} must be the same on all hosts.\n", plan.program, plan.directory);
}

// The script holds the write end of a pipe that every ssh reads until the script ends. The pipe first carries the run's
// secret, which is in a variable that is not exported, and in no command line.
constexpr const char* kKeep = R"sh(
keep() {  # a log of an earlier run of this script gets a number
  local file=$logs/$1 number=1
  [ -e "$file" ] || [ -L "$file" ] || return 0
  while [ -e "$file.$number" ] || [ -L "$file.$number" ]; do number=$((number + 1)); done
  mv -n "$file" "$file.$number"
}
)sh";

constexpr const char* kBegin = R"sh(
export -n HONE_RUN_SECRET
mkdir -p "$logs" || exit 1
state=$(mktemp -d) || exit 1
trap 'rm -rf "$state"' EXIT
mkfifo "$state/alive" || exit 1
exec 9<> "$state/alive"
stopped=
trap 'stopped=130; exec 9>&-' INT
trap 'stopped=143; exec 9>&-' TERM HUP
)sh";

// For a rank, the end of the pipe is the end of its connection.
constexpr const char* kOnHost = R"sh(
# What the shell of a host runs: a rank, and a watch that ends it with the connection.
on_host() {  # variables and command, quoted
  cat << EOF
cd $directory || exit 1
IFS= read -r HONE_RUN_SECRET && export HONE_RUN_SECRET
exec 3<&0
env$environment $1 3<&- < /dev/null &
rank=\$!
{ cat <&3; kill \$rank; } > /dev/null 2>&1 &
watch=\$!
wait \$rank
code=\$?
kill \$watch 2> /dev/null
exit \$code
EOF
}

quoted() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }

start() {  # host, log, variables and command
  local host=$1 log=$2
  (
    exec 9>&-
    keep "$log"
    $ssh "$host" "exec sh -c $(quoted "$(on_host "$3")")" \
      < <(printf '%s\n' "$HONE_RUN_SECRET"; exec cat "$state/alive") > "$logs/$log" 2>&1
    code=$?
    [ $code -eq 0 ] && exit
    [ -e "$state/failed" ] || echo $code > "$state/failed"
    echo "$host: exit code $code; the end of $logs/$log:" >&2
    tail -n 3 "$logs/$log" >&2
  ) &
}
)sh";

constexpr const char* kScriptEnd = R"sh(
patience=60  # seconds, after the first failure, in which the other ranks may end by themselves
failed_at=
while [ -n "$(jobs -rp)" ]; do
  sleep 0.2
  [ -e "$state/failed" ] || continue
  [ -n "$failed_at" ] || failed_at=$SECONDS
  if [ $((SECONDS - failed_at)) -ge $patience ]; then exec 9>&-; fi
done
[ -z "$stopped" ] || exit $stopped
if [ -e "$state/failed" ]; then exit "$(cat "$state/failed")"; fi
echo "all ranks have ended well"
)sh";

}  // namespace

void check_hosts(const SshHosts& hosts) {
  if (hosts.hosts.empty()) throw UserError("the hosts are missing", "--hosts", "list them: --hosts node1,node2");
  for (size_t i = 0; i < hosts.hosts.size(); ++i) {
    const std::string& host = hosts.hosts[i];
    if (host.empty() || host.front() == '-' || host.find_first_of(" \t\n'\"\\$`;&|<>") != std::string::npos) {
      throw UserError(fmt::format("'{}' is not a host", host), "--hosts", "use names as ssh knows them, with commas");
    }
    if (std::find(hosts.hosts.begin(), hosts.hosts.begin() + static_cast<ptrdiff_t>(i), host) !=
        hosts.hosts.begin() + static_cast<ptrdiff_t>(i)) {
      throw UserError(fmt::format("{} is named twice", host), "--hosts", "-n starts several ranks on each host");
    }
  }
}

std::string ssh_explanation(const LaunchPlan& plan, const SshHosts& hosts) {
  check_hosts(hosts);
  const std::vector<Remote> remotes = remotes_of(plan, hosts);
  std::string text;
  if (plan.independent.count > 0) {
    for (const std::string& line : independence_warning(plan.independent.count)) text += line + "\n";
  } else {
    text = fmt::format(
        "{} ranks of one run. Rank 0 listens at {}:{}, or at one of the 7 ports after it: the others must reach it.\n"
        "CPU ranks must reach each other too.\n",
        remotes.size(), master_of(hosts), plan.port);
  }
  text += same_everywhere(plan);
  for (const Remote& remote : remotes) {
    text += fmt::format("  {}: {}; log: {}/{} on this machine\n", remote.host, remote.what, plan.logs, remote.log);
  }
  return text;
}

std::string ssh_script(const LaunchPlan& plan, const SshHosts& hosts) {
  std::string script = heading(ssh_explanation(plan, hosts));
  script += "# Ctrl-C ends all ranks. Where one is lost the others say which, and end.\n\n";
  std::string environment;
  for (const std::string& variable : plan.environment) environment += " " + shell_word(variable);
  // Quoted twice: for this script and for the hosts' shells.
  script += fmt::format("ssh={}\ndirectory={}\nenvironment={}\nlogs={}\n", shell_word(hosts.ssh),
                        shell_word(shell_word(plan.directory)), shell_word(environment), shell_word(plan.logs));
  script += kKeep + secret_lines() + kBegin + kOnHost + "\n";
  for (const Remote& remote : remotes_of(plan, hosts)) {
    const std::string variables = shell_words(remote.variables);
    const std::string line = variables + (variables.empty() ? "" : " ") + remote.command;
    script += fmt::format("start {} {} {}\n", shell_word(remote.host), shell_word(remote.log), shell_word(line));
  }
  return script + kScriptEnd;
}

namespace {

namespace fs = std::filesystem;

void write_script(const fs::path& path, const std::string& script, const OutputRule& rule) {
  write_output(path, script, rule);
  fs::permissions(path, fs::perms::owner_exec | fs::perms::group_exec, fs::perm_options::add);
}

constexpr const char* kScriptName = "launch.sh";

/// The folder for the logs, or the first of FOLDER-2, FOLDER-3, … in which no file of an earlier launch would be
/// written over: after a failure its logs are wanted.
std::string free_log_folder(const LaunchPlan& plan, const SshHosts& hosts) {
  std::vector<std::string> names = {kScriptName};
  for (const Remote& remote : remotes_of(plan, hosts)) names.push_back(remote.log);
  std::string logs = plan.logs;
  while (logs.size() > 1 && logs.ends_with('/')) logs.pop_back();
  const auto is_used = [&](const std::string& folder) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return is_name_taken(fs::path(folder) / name); });
  };
  std::string free = logs;
  for (int number = 2; is_used(free); ++number) free = fmt::format("{}-{}", logs, number);
  return free;
}

}  // namespace

int run_launch_hosts(const LaunchPlan& stated, const SshHosts& hosts, bool dry_run) {
  check_launch_plan(stated);
  check_hosts(hosts);
  LaunchPlan plan = stated;
  if (!dry_run) plan.logs = free_log_folder(stated, hosts);
  const std::string script = ssh_script(plan, hosts);
  if (dry_run) {
    print_text(script);
    return 0;
  }
  const fs::path path = fs::path(plan.logs) / kScriptName;
  write_script(path, script, {});
  print_text(ssh_explanation(plan, hosts) + fmt::format("The script that starts them: {}\n", path.string()));
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
  write_script(options.file, script, {{}, replace});
  print_text(fmt::format("wrote {}\n", options.file) + slurm_explanation(plan, options));
  return 0;
}

}  // namespace hone
