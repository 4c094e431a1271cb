// hone sweep: trains the runs of a sweep file one after another, each by a process of its own, and says which is best.
#pragma once

#include <string>
#include <vector>

namespace hone {

struct SweepOptions {
  std::string file;
  std::vector<std::string> overrides;  ///< key=value, for all runs
  std::string output;                  ///< folder of the runs, sweep.json and compare.html; "": FILE's name
  bool dry_run = false;                ///< lists the commands; runs and writes nothing
  bool stop_worse = false;             ///< as in the file
  bool force = false;                  ///< replace a sweep.json or compare.html of somebody else
};

/// Trains each run in OUTPUT/NAME with resume=auto: what is finished is recognised and stays, what was interrupted goes
/// on, what failed is tried again. Writes sweep.json after each and compare.html at the end; prints a table and the
/// best. With halving, every run goes to the first rung, then those that go on to the next. A run that fails does not
/// keep the others from running. Returns the exit code: 0; 1 if a run failed; 75 if a signal stopped the sweep, after
/// the run in progress has saved. Throws UserError for a bad file, if every run is refused for its settings, if a
/// folder has a run with other settings, and if another sweep writes into OUTPUT.
int run_sweep(const SweepOptions& options);

}  // namespace hone
