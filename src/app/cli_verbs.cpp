#include <CLI/CLI.hpp>

#include "app/verbs.h"
#include "core/stream/process_kernels.h"
#include "dist/control/launch_environment.h"
#include "kernels/cuda/kernel_limit.h"

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

constexpr const char* kOutputType = "OUTPUT";

CLI::Option* add_output(CLI::App* verb, const std::string& name, std::string& path, const std::string& what) {
  return verb->add_option(name, path, what)->type_name(kOutputType);
}

bool is_output(const CLI::Option& option) { return option.get_type_name() == kOutputType; }

void add_force(CLI::App* verb, bool& force, const std::string& what) { verb->add_flag("--force", force, what); }

void add_tier(CLI::App* verb) {
  verb->add_option_function<std::string>(
      "--tier",
      [](const std::string& names) {
        limit_kernels_of_process(cuda::parse_kernel_limit(names, launch_environment().local_rank, "--tier"));
      },
      "for tests: GPU kernels of at most a tier (general, sm80, sm90, sm100) or of a smaller GPU (a100-80gb, rtx-4090 "
      "and others, as estimate --gpu); with commas, one for each rank of a host");
}

void add_json(CLI::App* verb, bool& json) { verb->add_flag("--json", json, "print JSON"); }

bool is_override(const std::string& argument) { return argument.find('=') != std::string::npos; }

void add_verbs(CLI::App& app, Action& action, const std::vector<std::string>& arguments) {
  add_init(app, action);
  add_convert_config(app, action);
  add_download(app, action);
  add_inspect(app, action);
  add_estimate(app, action);
  add_validate(app, action);
  add_prepare(app, action);
  add_train(app, action);
  add_launch(app, action);
  add_sweep(app, action);
  add_eval(app, action);
  add_report(app, action);
  add_compare(app, action);
  add_status(app, action);
  add_generate(app, action, arguments);
  add_chat(app, action);
  add_serve(app, action);
  add_merge(app, action);
  add_export(app, action);
  add_convert(app, action);
  add_verify(app, action);
  add_bench(app, action);
  add_schema(app, action);
  add_models(app, action);
  add_env(app, action);
  add_quickstart(app, action);
  add_version(app, action);
}

bool takes_overrides(const std::string& verb) {
  return verb == "train" || verb == "eval" || verb == "validate" || verb == "estimate" || verb == "prepare" ||
         verb == "convert-config" || verb == "sweep";
}

bool takes_keys(const std::string& verb) {
  return verb == "generate" || verb == "chat" || verb == "serve" || verb == "verify" || verb == "step";
}

}  // namespace hone
