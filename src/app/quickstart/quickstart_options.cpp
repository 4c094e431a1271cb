#include <CLI/CLI.hpp>

#include <memory>

#include "app/quickstart/quickstart.h"
#include "app/verbs.h"

namespace hone {

void add_quickstart(CLI::App& app, Action& action) {
  auto options = std::make_shared<QuickstartOptions>();
  CLI::App* verb = add_verb(app, "quickstart", "Fine-tune a small model in two acts, in minutes, without a download",
                            "  hone quickstart\n  hone quickstart --output runs/quickstart --seed 7");
  add_output(verb, "--output", options->output, "folder for data, model and runs")->capture_default_str();
  add_force(verb, options->force, "replace files of an earlier quickstart that were changed; others stay");
  verb->add_option("--device", options->device, "cpu, cuda, cuda:N or auto")->capture_default_str();
  verb->add_option("--seed", options->seed, "seed of weights and training")->capture_default_str();
  verb->add_option("--english-steps", options->budget.english_steps, "optimizer steps of act 1")->capture_default_str();
  verb->add_option("--german-steps", options->budget.german_steps, "optimizer steps of act 2")->capture_default_str();
  verb->callback([=, &action] { action = [=] { return run_quickstart(*options); }; });
}

}  // namespace hone
