#include "app/bench/op_timer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/stream/graph_cache.h"
#include "core/stream/kernel_notes.h"
#include "core/stream/profiler.h"
#include "core/stream/stream_clock.h"
#include "ops/start_gradient.h"
#include "tape/pass_runner.h"

namespace hone {

namespace {

/// Runs of a case that are timed: as many as take about this long, within these bounds.
constexpr double kSecondsPerCase = 0.3;
constexpr int64_t kFewestRuns = 5, kMostRuns = 50;

SpanTimes medians_of(const std::vector<ProfileSpan>& spans) {
  std::map<std::pair<std::string, std::string>, std::vector<double>> times;
  SpanTimes result;
  int64_t steps = 0;
  double start_gradient = 0;
  for (const ProfileSpan& span : spans) {
    if (span.kind == ProfileKind::kBlock) continue;
    if (span.kind == ProfileKind::kStep) ++steps;
    auto& runs = times[{std::string(span.name), std::string(span.pass)}];
    runs.resize(static_cast<size_t>(steps), 0.0);
    runs.back() += span.end - span.begin;  // an op may have several nodes
    if (span.name == "start_gradient") start_gradient += span.end - span.begin;
    if (steps > 1 || span.pass != "forward") continue;
    for (const std::string& name : {std::string(span.name), std::string("step")}) result.flops[name] += span.flops;
  }
  for (auto& [key, runs] : times) {
    std::sort(runs.begin(), runs.end());
    result.seconds[key] = runs[runs.size() / 2];
  }
  // The whole run stands for the layer, to which the gradient comes from the next one.
  if (steps > 0) result.seconds[{"step", ""}] -= start_gradient / static_cast<double>(steps);
  return result;
}

/// Sizes the memory of a run by dry ones and runs it once, in which libraries choose their algorithms. Returns what its
/// ops have noted.
template <class Run>
std::string first_run(Stream& stream, PassRunner& passes, const Run& run) {
  passes.measure(run);
  passes.reserve();
  const KernelNotes notes(stream);
  run();
  return notes.text();
}

}  // namespace

SpanTimes time_in_graph(Stream& stream, std::span<const OpCase> cases) {
  PassRunner passes(stream);
  TapePlan plan;
  const auto run = [&] {
    Tape tape = passes.tape(plan);
    for (const OpCase& op_case : cases) tape.block([&] { op_case.record(tape); });
  };
  SpanTimes times;
  times.kernels = first_run(stream, passes, run);
  GraphCache graphs(stream, GraphUse::kAlways, [] { return true; });
  StreamClock clock(stream);
  for (int64_t i = 0; i < 2 + kMostRuns; ++i) {
    clock.mark();
    graphs.run({}, run);  // the second run is recorded
  }
  clock.mark();
  const std::vector<double> marks = clock.seconds();
  std::vector<double> runs;
  for (size_t i = 3; i < marks.size(); ++i) runs.push_back(marks[i] - marks[i - 1]);
  std::sort(runs.begin(), runs.end());
  times.seconds[{"step", ""}] = runs[runs.size() / 2] / static_cast<double>(cases.size());
  return times;
}

int cases_in_graph(const OpCase& op_case) {
  constexpr double kMoreThanACache = 512e6;
  double bytes = 1;
  for (const OpPart& part : op_case.parts) bytes = std::max(bytes, part.bytes);
  return static_cast<int>(std::clamp(kMoreThanACache / bytes + 1, 1.0, 16.0));
}

SpanTimes time_spans(Stream& stream, const OpCase& op_case) {
  PassRunner passes(stream);
  TapePlan plan;
  const auto run = [&] {
    const ProfileScope scope(passes.context(), ProfileKind::kStep, "step");
    Tape tape = passes.tape(plan, {.training = op_case.backward, .recompute = {}});
    tape.block([&] {
      const Var output = op_case.record(tape);
      if (op_case.gradient.defined()) StartGradient::record(tape, output, op_case.gradient);
    });
    if (op_case.backward) tape.backward();
  };
  std::string kernels = first_run(stream, passes, run);
  Profiler profiler(stream);
  run();
  const double once = medians_of(profiler.take().spans).seconds.at({"step", ""});
  const auto runs = static_cast<int64_t>(kSecondsPerCase / std::max(once, 1e-6));
  for (int64_t i = 0; i < std::clamp(runs, kFewestRuns, kMostRuns); ++i) run();
  SpanTimes times = medians_of(profiler.take().spans);
  times.kernels = std::move(kernels);
  return times;
}

}  // namespace hone
