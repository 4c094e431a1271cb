// hone eval: evaluates a model on data, and compares it with its base.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "app/eval/task_rows.h"
#include "app/train/train_verbs.h"

namespace hone {

struct EvalRequest {
  RunRequest run;
  std::string checkpoint;  ///< a folder written by training, in place of the configuration's model or adapter
  bool base = false;       ///< compare with the model that training began with
  TaskOptions task;        ///< rows that the model answers, and how the answers are measured
  std::optional<int64_t> max_samples;  ///< only the first ones of the data, and of the task
  std::string prompts;                 ///< file of prompts to answer (.txt: one per line, .jsonl); "" = none
  std::string output;                  ///< JSON file to write; "" = evaluation_results.json of a compared checkpoint
  bool force = false;                  ///< replace the output file
  bool json = false;
};

/// Reports loss, perplexity and token accuracy on the evaluation data (if there are none, on `datasets`), the metrics
/// of a task, which needs no such data, for one model or for two side by side with the improvement, and their answers
/// to the prompts. The base of an adapter is the same loaded model with the adapter disabled. Gradients and optimizer
/// state are not allocated. Ranks that a launcher has started evaluate together; the first reports. Returns the exit
/// code: kNumbersLost for a loss that is not finite.
int run_eval(const EvalRequest& request);

}  // namespace hone
