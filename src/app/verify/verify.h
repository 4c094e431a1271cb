// hone verify: replays a reference case and holds every number of it against a bound.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "app/verify/check.h"
#include "app/verify/golden_case.h"
#include "core/json_fwd.h"
#include "train/trainer_ranks.h"

namespace hone {

struct VerifyOptions {
  std::filesystem::path case_directory;
  std::string device = "cpu";
  std::string dtype = "float32";  ///< float32: every row; bfloat16: the gradients of batch 0
  bool json = false;              ///< print JSON instead of a table
  int threads = 0;                ///< 0: all cores
  int ranks = 1;                  ///< of several: the runs alone, by as many threads that train together
  int zero_stage = 0;             ///< what of the training state these share (params/bucket.h)
  /// Tests plant errors in the optimizer with this.
  std::function<void(ReferenceOptimizer&)> change_optimizer = {};
};

struct VerifyReport {
  std::string case_name, dtype;
  std::vector<Check> checks;

  /// Every required row holds.
  bool ok() const;
};

/// Replays the case. UserError if files are missing or broken, or belong to another model. By several `ranks` that a
/// launcher has started: what this one finds of what they do together.
VerifyReport verify_case(const VerifyOptions& options, const TrainerRanks& ranks = {});

/// The table for people: a row for each check, the worst tensors below rows that compare tensors.
std::string report_table(const VerifyReport& report);
Json report_json(const VerifyReport& report);

/// verify_case, printed to standard output. Returns the exit code: 0 if every row holds, else 1.
int run_verify(const VerifyOptions& options, const TrainerRanks& ranks = {});

}  // namespace hone
