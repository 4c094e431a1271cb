#include <CLI/CLI.hpp>

#include <memory>

#include "app/inspect/inspect.h"
#include "app/verbs.h"

namespace hone {

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "inspect", "What a model or adapter folder holds",
                            "  hone inspect ./Qwen3-30B-A3B\n"
                            "  hone inspect out/run1 --tensors");
  auto options = std::make_shared<InspectOptions>();
  verb->add_option("MODEL", options->path,
                   "model folder, config.json, name of the Hugging Face hub, a name of bench step, or adapter "
                   "folder")
      ->required();
  verb->add_flag("--tensors", options->tensors, "list every tensor of the files");
  verb->callback([=, &action] { action = [=] { return run_inspect(*options); }; });
}

}  // namespace hone
