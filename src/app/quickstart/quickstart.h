// hone quickstart: demonstrates fine-tuning in two acts, on the data of examples/quickstart and a model with random
// weights.
#pragma once

#include <cstdint>
#include <string>

namespace hone {

/// Lengths of training and tests. The defaults pass the quickstart's bars with a margin.
struct QuickstartBudget {
  int64_t english_steps = 700, german_steps = 350;
  int64_t log_lines = 16;       ///< lines of the console in each act
  int64_t test_examples = 300;  ///< unseen moments in each language
  int64_t new_examples = 200;   ///< with wordings that are not in the training data
};

struct QuickstartOptions {
  std::string output = "quickstart";  ///< folder; the files of an earlier quickstart in it are replaced
  uint64_t seed = 42;                 ///< for the weights and for training
  std::string device = "cpu";         ///< as the configuration key
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
