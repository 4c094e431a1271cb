#include <CLI/CLI.hpp>

#include <memory>

#include "app/sweep/sweep.h"
#include "app/verbs.h"

namespace hone {

void add_sweep(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "sweep", "Train a run for each combination of keys, and say which is best",
                            "  hone sweep sweep.yaml --dry-run              the commands\n"
                            "  hone sweep sweep.yaml                        goes on where it was stopped, too\n"
                            "  hone sweep sweep.yaml max_steps=200 --stop-worse --output sweeps/short");
  auto options = std::make_shared<SweepOptions>();
  verb->add_option("FILE", options->file, "YAML or JSON file (docs/sweep.md); then key=value for all runs")->required();
  add_output(verb, "--output", options->output, "folder to write; default: FILE's name without its ending");
  verb->add_flag("--stop-worse", options->stop_worse,
                 "end runs early that evaluate worse than the median of those before");
  verb->add_flag("--dry-run", options->dry_run, "list the commands; run and write nothing");
  add_force(verb, options->force, "replace a sweep.json or compare.html that is not of a sweep");
  verb->callback([=, &action] {
    action = [=] {
      options->overrides = verb->remaining();
      return run_sweep(*options);
    };
  });
}

}  // namespace hone
