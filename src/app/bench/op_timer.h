// Runs the cases of kernels/op_bench.h and says how long each of their spans takes.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>

#include "core/stream/stream.h"
#include "kernels/op_bench.h"

namespace hone {

struct SpanTimes {
  /// By (span, pass), medians over all runs.
  std::map<std::pair<std::string, std::string>, double> seconds;
  /// Forward FLOPs of one run by span (Node::flops()); "step" has the total.
  std::map<std::string, double> flops;
  std::string kernels;  ///< that the ops have noted (KernelNotes::text())
};

/// How many cases equal to this one have more data together than a cache holds: 1 to 16.
int cases_in_graph(const OpCase& op_case);

/// The time of one of these equal cases, which run one after another, on a GPU from a CUDA graph: span "step", without
/// FLOPs.
SpanTimes time_in_graph(Stream& stream, std::span<const OpCase> cases);

/// Runs the case as often as fits in a third of a second, at least a few times.
SpanTimes time_spans(Stream& stream, const OpCase& op_case);

}  // namespace hone
