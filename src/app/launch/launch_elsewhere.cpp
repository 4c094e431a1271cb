#include "app/launch/launch_elsewhere.h"

#include <fmt/format.h>

#include <filesystem>

#include "app/launch/rank_processes.h"
#include "core/error.h"

namespace hone {

std::shared_ptr<LaunchElsewhere> add_launch_elsewhere(CLI::App* verb) {
  auto options = std::make_shared<LaunchElsewhere>();
  LaunchPlan& plan = options->plan;
  SlurmOptions& slurm = options->slurm_options;
  const char* const hosts = "On several hosts, over ssh";
  verb->add_option("--hosts", options->ssh.hosts, "names, with commas: -n ranks on each; the first has rank 0")
      ->delimiter(',')
      ->allow_extra_args(false)  // what follows is another option, or the verb to run
      ->group(hosts);
  verb->add_option("--ssh", options->ssh.ssh, "what is called with a host and a command")
      ->capture_default_str()
      ->group(hosts);
  verb->add_option("--master", options->ssh.master, "name or address of the first host for the others")->group(hosts);
  const char* const cluster = "With SLURM";
  verb->add_flag("--slurm", options->slurm, "write a batch script")->group(cluster);
  verb->add_option("--script", slurm.file, "its file")->capture_default_str()->group(cluster);
  verb->add_flag("--force", options->replace, "replace a script that is there")->group(cluster);
  verb->add_option("--nodes", slurm.nodes, "nodes of the run")->capture_default_str()->group(cluster);
  verb->add_option("--gpus", slurm.gpus_per_node, "of a node; default: one for each rank")
      ->check(CLI::NonNegativeNumber)
      ->group(cluster);
  verb->add_option("--cpus", slurm.cpus_per_rank, "of a rank")->check(CLI::PositiveNumber)->group(cluster);
  verb->add_option("--mem", slurm.memory, "of a node, such as 500G")->group(cluster);
  verb->add_option("--time", slurm.time, "such as 48:00:00")->group(cluster);
  verb->add_option("--partition", slurm.partition)->group(cluster);
  verb->add_option("--account", slurm.account)->group(cluster);
  verb->add_option("--job-name", slurm.job_name)->capture_default_str()->group(cluster);
  const char* const both = "With either";
  verb->add_flag("--dry-run", options->dry_run, "print the script; write and start nothing")->group(both);
  verb->add_option("--logs", plan.logs, "folder for the ranks' output")->capture_default_str()->group(both);
  verb->add_option("--port", plan.port, "at which rank 0 listens")->capture_default_str()->group(both);
  verb->add_option("--env", plan.environment, "NAME=VALUE for all ranks; several times")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(both);
  const char* const models = "Independent models";
  verb->add_option("--independent", plan.independent.count,
                   "so many models, each of a shard of its own; none is better for the others")
      ->check(CLI::PositiveNumber)
      ->group(models);
  verb->add_option("--shards", plan.independent.shards, "folder of hone prepare --split-nodes")
      ->capture_default_str()
      ->group(models);
  verb->add_option("--models", plan.independent.output_dir, "model i goes to its folder node_i")
      ->capture_default_str()
      ->group(models);
  return options;
}

int run_launch_elsewhere(LaunchElsewhere elsewhere, std::optional<int> ranks, const std::string& device,
                         const std::vector<std::string>& arguments) {
  LaunchPlan& plan = elsewhere.plan;
  plan.program = own_program();
  plan.directory = std::filesystem::current_path();
  plan.command = arguments;
  plan.ranks_per_host = ranks.value_or(1);
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
  return run_launch_hosts(plan, elsewhere.ssh, kind, elsewhere.dry_run);
}

}  // namespace hone
