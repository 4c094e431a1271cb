#include <CLI/CLI.hpp>

#include <memory>

#include "app/status/status.h"
#include "app/verbs.h"

namespace hone {

void add_status(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "status", "Serve the page of a run, which follows it while it runs",
                            "  hone status out/run1\n"
                            "  hone status out/run1 --port 0                any free port");
  auto options = std::make_shared<StatusOptions>();
  verb->add_option("OUT", options->folder, "the output_dir of a run")->required();
  verb->add_option("--port", options->port, "0: any free one")->check(CLI::Range(0, 65535))->capture_default_str();
  verb->add_option("--host", options->host, "address to listen on")->capture_default_str();
  verb->callback([=, &action] { action = [=] { return run_status(*options); }; });
}

}  // namespace hone
