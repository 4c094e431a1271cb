// hone quickstart: fine-tuning shown in two acts, on data and a model made on the spot.
#pragma once

#include <cstdint>
#include <string>

#include "app/quickstart/act_config.h"

namespace hone {

struct QuickstartOptions {
  std::string output = "quickstart";  ///< folder; an earlier quickstart in it is replaced
  uint64_t seed = 42;
  std::string device = "cpu";  ///< as the key of a configuration; the CPU, so that it is seen to need nothing
  QuickstartBudget budget = {};
};

/// Act 1: full fine-tuning on English calendar sentences. Act 2: LoRA on German ones, then merge. Writes data, model,
/// configurations and both runs as a user would have them, and report.json with
///   act1: {exact_match_before, exact_match_after, seconds}
///   act2: {german_before, german_after, english_after, seconds}
/// Returns kCheckFailed where a bar is missed: act 1 at least 95 % of unseen moments, act 2 German 85 % and English
/// 90 %. UserError for an output folder that holds something else. kResumable where a signal stopped it.
int run_quickstart(const QuickstartOptions& options);

}  // namespace hone
