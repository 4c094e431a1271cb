// hone verify: replays a reference case and checks each number of it against a bound.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "app/key_options.h"
#include "app/verify/check.h"
#include "app/verify/golden_case.h"
#include "config/choices.h"
#include "core/text/json_fwd.h"
#include "params/bucket.h"
#include "train/plan/trainer_ranks.h"

namespace hone {

struct VerifyOptions {
  std::filesystem::path case_directory;
  /// KEY=VALUE: dtype float32: every row; bfloat16: the gradients of batch 0. cpu_offload: the training runs only.
  /// experts_device cpu: the host beside the device, even if that is a CPU.
  std::vector<std::string> keys;
  bool json = false;  ///< print JSON instead of a table
  int threads = 0;    ///< 0: all cores
  int ranks = 1;      ///< more than 1: the training runs only, by as many threads as ranks
  /// Changes the optimizer, for tests with planted errors.
  std::function<void(ReferenceOptimizer&)> change_optimizer = {};
};

struct VerifyReport {
  std::string case_name, dtype;
  std::vector<Check> checks;

  /// Every required row holds.
  bool ok() const;
};

/// The keys' values that are other than the schema's.
UsualValues usual_in_verify();

/// Replays the case. Throws UserError if files are missing or invalid, or belong to another model. With `ranks` from a
/// launcher: this rank's report of the checks that ranks make together. If gradients or weights are sharded, or data
/// are offloaded, the bits of each run are compared with those of the same run that does neither, on the same ranks.
VerifyReport verify_case(const VerifyOptions& options, const TrainerRanks& ranks = {});

/// The report as a table: one row per check, with the worst tensors below rows that compare tensors.
std::string report_table(const VerifyReport& report);
Json report_json(const VerifyReport& report);

/// Calls verify_case and prints the report. Returns the exit code: 0 if every required row holds, else 1.
int run_verify(const VerifyOptions& options, const TrainerRanks& ranks = {});

}  // namespace hone
