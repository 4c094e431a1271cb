#include "app/bench/op_timer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/stream/kernel_notes.h"
#include "core/stream/profiler.h"
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

}  // namespace

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
  passes.measure(run);
  passes.reserve();
  Profiler profiler(stream);
  std::string kernels;
  {
    const KernelNotes notes(stream);
    run();  // libraries choose their algorithms
    kernels = notes.text();
  }
  profiler.take();
  run();
  const double once = medians_of(profiler.take().spans).seconds.at({"step", ""});
  const auto runs = static_cast<int64_t>(kSecondsPerCase / std::max(once, 1e-6));
  for (int64_t i = 0; i < std::clamp(runs, kFewestRuns, kMostRuns); ++i) run();
  SpanTimes times = medians_of(profiler.take().spans);
  times.kernels = std::move(kernels);
  return times;
}

}  // namespace hone
