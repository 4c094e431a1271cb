// The line that a step or an evaluation is on the console.
#pragma once

#include <string>

#include "report/metrics.h"

namespace hone {

struct LineLayout {
  int64_t total_steps = 0;
  int width = 100;  ///< columns; fields of less interest are left out when the line would be longer
  bool color = false;
};

/// "   120/2000  loss 1.2345  grad 0.873  lr 9.85e-5   3.4k tok/s  mem 12.3 GB  load 1.32x  eta  1h02m"
/// with the token accuracy behind the loss where the width allows. Fields keep their columns from step to step.
/// Numbers that are not finite are red.
std::string step_line(const StepMetrics& metrics, const LineLayout& layout);

/// "   120/2000  eval loss 0.9123  perplexity 2.49  accuracy 81.2%  in 3.2s  best so far"
std::string eval_line(const EvalMetrics& metrics, const LineLayout& layout);

/// "   120/2000", as wide for every step of the run.
std::string step_column(int64_t step, const LineLayout& layout);

}  // namespace hone
