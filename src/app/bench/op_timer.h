// Runs the cases of op_case.h and says how long each of their spans takes.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "app/bench/op_case.h"
#include "core/stream.h"

namespace hone {

/// Seconds by (span, pass), medians over all runs.
using SpanTimes = std::map<std::pair<std::string, std::string>, double>;

/// Runs the case as often as fits in a third of a second, at least a few times.
SpanTimes time_spans(Stream& stream, const OpCase& op_case);

}  // namespace hone
