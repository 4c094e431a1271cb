#include "app/verb_options.h"

namespace hone {

CLI::App* add_verb(CLI::App& parent, const char* name, const char* what, const char* examples) {
  CLI::App* verb = parent.add_subcommand(name, what);
  verb->footer(std::string("Examples:\n") + examples);
  verb->allow_extras();
  return verb;
}

void add_threads(CLI::App* verb, int& threads) {
  verb->add_option("--threads", threads, "0: all cores")->capture_default_str();
}

void add_json(CLI::App* verb, bool& json) { verb->add_flag("--json", json, "print JSON"); }

}  // namespace hone
