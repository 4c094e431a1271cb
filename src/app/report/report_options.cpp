#include <CLI/CLI.hpp>

#include <memory>

#include "app/report/report.h"
#include "app/verbs.h"

namespace hone {

void add_report(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "report", "Write the page that shows a run: report.html",
                            "  hone report out/run1                        a run that goes on, or was killed, too\n"
                            "  hone report out/run1 --output run1.html");
  auto options = std::make_shared<ReportPageOptions>();
  verb->add_option("OUT", options->folder, "the output_dir of a run")->required();
  add_output(verb, "--output", options->output, "file to write; default: report.html in OUT");
  add_force(verb, options->force, "replace a file that is not such a page");
  verb->callback([=, &action] { action = [=] { return run_report(*options); }; });
}

void add_compare(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "compare", "Lay runs over each other: a table, and a page",
                            "  hone compare out/run1 out/run2\n"
                            "  hone compare out/* --output all.html");
  auto options = std::make_shared<CompareOptions>();
  verb->add_option("OUT", options->folders, "the output_dir of each run")->required();
  add_output(verb, "--output", options->output, "page to write")->capture_default_str();
  add_force(verb, options->force, "replace a file that is not such a page");
  add_json(verb, options->json);
  verb->callback([=, &action] { action = [=] { return run_compare(*options); }; });
}

}  // namespace hone
