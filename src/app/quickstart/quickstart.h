// hone quickstart: demonstrates fine-tuning in two acts, on generated data and a generated model.
#pragma once

#include <cstdint>
#include <string>

#include "app/quickstart/act_config.h"

namespace hone {

struct QuickstartOptions {
  std::string output = "quickstart";  ///< folder; the files of an earlier quickstart in it are replaced
  uint64_t seed = 42;
  std::string device = "cpu";  ///< as the configuration key
  QuickstartBudget budget = {};
  bool force = false;  ///< replace files that were changed since, and leave others; default: refuse the folder
};

/// Act 1: full fine-tuning on English calendar sentences. Act 2: LoRA on German sentences, then merge. Writes data,
/// model, configurations and both runs, and report.json with
///   act1: {exact_match_before, exact_match_after, seconds}
///   act2: {german_before, german_after, english_after, seconds}
/// Returns kCheckFailed if a bar is missed (act 1: 95 % of unseen moments; act 2: German 85 % and English 90 %), and
/// kResumable if a signal stopped it. Throws UserError if the output folder has other contents (made_files.h).
int run_quickstart(const QuickstartOptions& options);

}  // namespace hone
