// The verbs of the command line. Each adds its options, in its own folder, and sets `action` if the command line names
// it.
#pragma once

#include <string>
#include <vector>

#include "app/cli.h"

namespace hone {

void add_init(CLI::App& app, Action& action);
void add_convert_config(CLI::App& app, Action& action);
void add_download(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_estimate(CLI::App& app, Action& action);
void add_validate(CLI::App& app, Action& action);
void add_prepare(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action);
void add_launch(CLI::App& app, Action& action);
void add_sweep(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
void add_compare(CLI::App& app, Action& action);
void add_status(CLI::App& app, Action& action);
/// `arguments`: the words of the command line, for the ranks that it starts.
void add_generate(CLI::App& app, Action& action, const std::vector<std::string>& arguments);
void add_chat(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
void add_merge(CLI::App& app, Action& action);
void add_export(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_schema(CLI::App& app, Action& action);
void add_models(CLI::App& app, Action& action);
void add_env(CLI::App& app, Action& action);
void add_quickstart(CLI::App& app, Action& action);
void add_version(CLI::App& app, Action& action);

}  // namespace hone
