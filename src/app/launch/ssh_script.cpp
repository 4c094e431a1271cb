#include "app/launch/ssh_script.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace hone {

namespace {

/// What is started on a host by one ssh.
struct Remote {
  std::string host, what, log;
  std::vector<std::string> variables;
  std::string command;  ///< a line for the host's shell, behind variables
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

/// A script's first lines, which say what it does.
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

// While the script lives it holds the writing end of a pipe that every ssh reads, after the run's secret: a variable
// that is not exported, in no command line.
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

// A rank sees the end of the pipe as that of its connection.
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

constexpr const char* kEnd = R"sh(
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
  if (hosts.hosts.empty()) throw UserError("there are no hosts", "--hosts", "name them: --hosts node1,node2");
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
        "{} ranks of one run. Rank 0 listens at {}:{}, or at one of the 7 ports after it: the others must reach it.\n",
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
  // Quoted twice: for this script, and for the shells of the hosts.
  script += fmt::format("ssh={}\ndirectory={}\nenvironment={}\nlogs={}\n", shell_word(hosts.ssh),
                        shell_word(shell_word(plan.directory)), shell_word(environment), shell_word(plan.logs));
  script += secret_lines() + kBegin + kOnHost + "\n";
  for (const Remote& remote : remotes_of(plan, hosts)) {
    const std::string variables = shell_words(remote.variables);
    const std::string line = variables + (variables.empty() ? "" : " ") + remote.command;
    script += fmt::format("start {} {} {}\n", shell_word(remote.host), shell_word(remote.log), shell_word(line));
  }
  return script + kEnd;
}

std::string mpirun_explanation(const LaunchPlan& plan, const SshHosts& hosts) {
  check_hosts(hosts);
  std::string text = fmt::format(
      "{} CPU ranks of one run, started by mpirun. Rank 0 listens at {}:{}, or at one of the 7 ports after it; MPI\n"
      "chooses ports of its own: the hosts must reach each other.\n",
      plan.ranks_per_host * static_cast<int>(hosts.hosts.size()), master_of(hosts), plan.port);
  text += same_everywhere(plan);
  for (size_t i = 0; i < hosts.hosts.size(); ++i) {
    const int first = static_cast<int>(i) * plan.ranks_per_host, last = first + plan.ranks_per_host - 1;
    text += fmt::format("  {}: {}\n", hosts.hosts[i],
                        first == last ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, last));
  }
  return text + fmt::format("log: {}/ranks.log on this machine\n", plan.logs);
}

namespace {

// mpirun says a page about a host that it cannot reach, and not which.
constexpr const char* kReachable = R"sh(
own=" $(hostname) $(hostname -s) $(hostname -I 2> /dev/null) localhost 127.0.0.1 "
checks=()
for host in "${hosts[@]}"; do
  case "$own" in *" ${host#*@} "*) continue ;; esac
  { $ssh "$host" true < /dev/null || { echo "$host cannot be reached: does '$ssh $host true' work?" >&2; false; }; } &
  checks+=($!)
done
for check in "${checks[@]}"; do wait "$check" || exit 2; done
)sh";

}  // namespace

std::string mpirun_script(const LaunchPlan& plan, const SshHosts& hosts) {
  std::string list;
  for (const std::string& host : hosts.hosts) {
    list += fmt::format("{}{}:{}", list.empty() ? "" : ",", host, plan.ranks_per_host);
  }
  std::vector<std::string> words = {
      "-n",        std::to_string(plan.ranks_per_host * static_cast<int>(hosts.hosts.size())),
      "--host",    list,
      "--bind-to", "none",
      "--wdir",    plan.directory};
  words.insert(words.end(), {"--mca", "plm_rsh_agent", hosts.ssh});
  words.insert(words.end(), {"-x", "MASTER_ADDR=" + master_of(hosts), "-x", fmt::format("MASTER_PORT={}", plan.port)});
  words.insert(words.end(), {"-x", "HONE_RUN_SECRET"});  // the name alone: mpirun takes the value from its environment
  words.insert(words.end(), {"-x", "TERM=dumb"});  // mpirun gives ranks a terminal, but their output is a log, too
  for (const std::string& variable : plan.environment) words.insert(words.end(), {"-x", variable});
  return heading(mpirun_explanation(plan, hosts)) +
         fmt::format("\nssh={}\nhosts=({})", shell_word(hosts.ssh), shell_words(hosts.hosts)) + kReachable + "\n" +
         secret_lines() + "export HONE_RUN_SECRET" +
         fmt::format(
             "\nmkdir -p {0} || exit 1\nroot=()\n[ \"$(id -u)\" != 0 ] || root=(--allow-run-as-root)\n"
             "exec mpirun \"${{root[@]}}\" {1} \\\n  {2} > >(tee {3}) 2>&1\n",
             shell_word(plan.logs), shell_words(words), command_line(plan), shell_word(plan.logs + "/ranks.log"));
}

}  // namespace hone
