#include "app/launch/slurm_script.h"

#include <fmt/format.h>

#include "core/error.h"

namespace hone {

namespace {

void check_value(const std::string& value, const char* option) {
  if (value.find_first_of(" \t\n#'\"\\$`") != std::string::npos) {
    throw UserError(fmt::format("'{}' cannot stand in an #SBATCH line", value), option, "give it as sbatch takes it");
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
  // An array's jobs are told apart by %a; SLURM makes no folders.
  sbatch.add("output", plan.logs + (models > 0 ? "/node_%a.log" : "/slurm_%j.log"));
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
  std::string srun = "srun --kill-on-bad-exit=1";
  // Since SLURM 22.05 a step does not have it from its job.
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
  text += "stop:             scancel --signal=TERM JOB, which saves first; resume=auto goes on from there\n";
  return text;
}

}  // namespace hone
