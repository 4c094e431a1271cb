#include <CLI/CLI.hpp>

#include <memory>
#include <optional>

#include "app/launch/launch.h"
#include "app/train/train_options.h"
#include "app/verbs.h"
#include "config/resolve.h"

namespace hone {

namespace {

/// Reads the configuration of a launched hone train, for `ranks` ranks: what is wrong with it is said once, and not by
/// each rank.
void check_launched_training(const std::vector<std::string>& command, int ranks) {
  if (command.empty() || command.front() != "train") return;
  const std::optional<RunRequest> request = parse_train(command);
  if (request) load_config(request->config, request->overrides, {ranks});  // else the ranks name the mistake
}

/// Adds --hosts, --slurm, --independent and their options.
std::shared_ptr<LaunchElsewhere> add_launch_elsewhere(CLI::App* verb) {
  auto options = std::make_shared<LaunchElsewhere>();
  LaunchPlan& plan = options->plan;
  SlurmOptions& slurm = options->slurm_options;
  const char* const hosts = "On several hosts, over ssh";
  verb->add_option("--hosts", options->ssh.hosts, "names, with commas: -n ranks on each; the first has rank 0")
      ->delimiter(',')
      ->allow_extra_args(false)  // another option or the verb follows
      ->group(hosts);
  verb->add_option("--ssh", options->ssh.ssh, "command that is called with a host and a command line")
      ->capture_default_str()
      ->group(hosts);
  verb->add_option("--master", options->ssh.master, "name or address of the first host for the others")->group(hosts);
  const char* const cluster = "With SLURM";
  verb->add_flag("--slurm", options->slurm, "write a batch script")->group(cluster);
  add_output(verb, "--script", slurm.file, "its file")->capture_default_str()->group(cluster);
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
  add_output(verb, "--logs", plan.logs, "folder for the ranks' output; DIR-2 and so on if it has logs of a launch")
      ->capture_default_str()
      ->group(both);
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
  add_output(verb, "--models", plan.independent.output_dir, "model i goes to its folder node_i")
      ->capture_default_str()
      ->group(models);
  return options;
}

}  // namespace

void add_launch(CLI::App& app, Action& action) {
  CLI::App* verb =
      add_verb(app, "launch", "Run a verb on several ranks, here or on other machines, that train together",
               "  hone launch -- train run.yaml\n"
               "  hone launch -n 4 -- train run.yaml\n"
               "  hone launch -n 2 --device cpu -- train run.yaml --max_steps 10\n"
               "  hone launch -n 8 -- train run.yaml resume=auto\n"
               "  hone launch --hosts node1,node2 -n 4 -- train run.yaml\n"
               "  hone launch --slurm --nodes 2 -n 4 --time 48:00:00 -- train run.yaml");
  auto options = std::make_shared<LaunchOptions>();
  verb->add_option("-n,--ranks", options->ranks,
                   "how many, on each host; default: one for each GPU here, 1 on other machines");
  verb->add_option("--device", options->device, "cpu, cuda (a GPU for each), or auto: GPUs if there are enough")
      ->capture_default_str();
  verb->prefix_command();  // the verb to run, and its arguments
  const auto elsewhere = add_launch_elsewhere(verb);
  verb->callback([=, &action] {
    action = [=] {
      options->arguments = verb->remaining();
      options->check = [command = options->arguments](int ranks) { check_launched_training(command, ranks); };
      if (!elsewhere->wanted()) return run_launch(*options);
      return run_launch_elsewhere(*elsewhere, options->ranks, options->device, options->arguments);
    };
  });
}

}  // namespace hone
