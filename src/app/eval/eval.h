// hone eval: how well a model does on data, and how much better than before it was trained.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "app/train/train_verbs.h"

namespace hone {

struct EvalRequest {
  RunRequest run;
  std::string checkpoint;  ///< a folder that training wrote, in place of the configuration's model or adapter
  bool base = false;       ///< compare with the model that training began with
  std::optional<int64_t> max_samples;  ///< only the first ones of the data
  std::string prompts;                 ///< file of prompts to answer (.txt: one a line, .jsonl); "" = none
  std::string output;                  ///< JSON file to write; "" = evaluation_results.json of a compared checkpoint
  bool json = false;
};

/// Loss, perplexity and token accuracy on the evaluation data (without any: on `datasets`), of one model or of two
/// beside each other with the improvement in percent, and their answers to the prompts. The base of an adapter is the
/// same loaded model with the adapter switched off. Neither gradients nor optimizer state are allocated. Returns the
/// exit code: kNumbersLost for a loss that is not finite.
int run_eval(const EvalRequest& request);

}  // namespace hone
