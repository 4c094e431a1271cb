// A batch script that runs a training on a cluster with SLURM.
#pragma once

#include <string>

#include "app/launch/launch_plan.h"

namespace hone {

struct SlurmOptions {
  std::string file = "hone.slurm";  ///< that is written
  std::string job_name = "hone";
  int nodes = 1;           ///< of one run; an independent model has one
  int gpus_per_node = -1;  ///< -1: as many as ranks; 0: none are asked for
  int cpus_per_rank = 0;   ///< 0: not stated
  std::string memory;      ///< of a node, as SLURM writes it (500G); "": not stated
  std::string time;        ///< D-HH:MM:SS; "": the partition's limit
  std::string partition, account;
};

/// One run on plan.ranks_per_host × nodes ranks, started by srun, which hone takes its rank from; or, with independent
/// models, an array of jobs of one node each, with ports, shards and folders of their own. Logs: LOGS/rank_{r}.log, of
/// models LOGS/node_{i}.log, and the job's own in LOGS/slurm_{job}.log. Throws UserError: text that is no value of an
/// #SBATCH line, numbers out of range.
std::string slurm_script(const LaunchPlan& plan, const SlurmOptions& options);

/// How to submit, watch and stop it; a line each.
std::string slurm_explanation(const LaunchPlan& plan, const SlurmOptions& options);

}  // namespace hone
