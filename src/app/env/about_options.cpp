#include <CLI/CLI.hpp>

#include <memory>

#include "app/env/environment.h"
#include "app/env/wanted_model.h"
#include "app/output.h"
#include "app/verbs.h"
#include "config/schema_docs.h"
#include "config/schema_summary.h"
#include "core/text/json.h"

namespace hone {

void add_schema(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "schema", "Every configuration key, as JSON Schema",
                            "  hone schema > hone.schema.json\n"
                            "  hone schema --markdown");
  auto markdown = std::make_shared<bool>();
  auto summary = std::make_shared<bool>();
  verb->add_flag("--markdown", *markdown, "as a document instead");
  verb->add_flag("--summary", *summary, "methods, machines and what is not in this version, as rows of a table")
      ->excludes("--markdown");
  verb->callback([=, &action] {
    action = [=] {
      print_text(*summary ? schema_summary() : *markdown ? schema_markdown() : schema_json().dump(2) + "\n");
      return 0;
    };
  });
}

void add_models(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "models", "The architectures this program trains",
                            "  hone models\n  hone models --json\n  hone models --wanted model/config.json");
  auto markdown = std::make_shared<bool>();
  auto json = std::make_shared<bool>();
  verb->add_flag("--markdown", *markdown, "as a Markdown table");
  add_json(verb, *json);
  auto wanted = std::make_shared<std::string>();
  verb->add_option("--wanted", *wanted, "a config.json: what is known of its model's parts, if its architecture is not")
      ->type_name("FILE");
  verb->callback([=, &action] {
    action = [=] { return wanted->empty() ? run_models(*markdown, *json) : run_wanted_model(*wanted); };
  });
}

void add_env(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "env", "This program and this machine", "  hone env\n  hone env --json");
  auto json = std::make_shared<bool>();
  add_json(verb, *json);
  add_tier(verb);
  verb->callback([=, &action] { action = [=] { return run_env(*json); }; });
}

void add_version(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "version", "The version of this program", "  hone version");
  verb->callback([&action] { action = run_version; });
}

}  // namespace hone
