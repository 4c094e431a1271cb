#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>

#include "app/convert_config/convert_config.h"
#include "app/verbs.h"
#include "config/tools/tool.h"

namespace hone {

void add_convert_config(CLI::App& app, Action& action) {
  CLI::App* verb =
      add_verb(app, "convert-config", "A configuration of another tool as one of Hone",
               "  hone convert-config axolotl.yml\n"
               "  hone convert-config train.sh --output run.yaml --devices 8\n"
               "  hone convert-config --from trl --model_name_or_path ./Qwen3-8B --dataset_name chat.jsonl\n"
               "  hone convert-config finetune.py              TRL's or Unsloth's calls in a Python script\n"
               "  hone convert-config ds_config.json --output -");
  verb->footer(verb->get_footer() + fmt::format("\nTools: {} (docs/migration.md).", tool_names()));
  auto options = std::make_shared<ConvertOptions>();
  verb->add_option("CONFIG", options->input, "YAML, JSON, shell or Python script; then the tool's own flags");
  verb->add_option("--from", options->from, "the tool; auto goes by the keys")->capture_default_str();
  add_output(verb, "--output", options->output, "file to write, - for standard output")->capture_default_str();
  verb->add_option("--devices", options->devices, "GPUs the tool ran on: accumulation makes up for them");
  verb->add_flag("--accept-changes", options->accept_changes, "leave out what would change the result, and write");
  add_force(verb, options->force);
  verb->callback([=, &action] {
    action = [=] {
      options->flags = verb->remaining();
      if (is_override(options->input)) {
        options->flags.insert(options->flags.begin(), options->input);
        options->input.clear();
      }
      return run_convert_config(*options);
    };
  });
}

}  // namespace hone
