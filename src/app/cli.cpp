#include "app/cli.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <csignal>
#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>

#include "app/env/environment.h"
#include "app/launched_ranks.h"
#include "app/output.h"
#include "config/config_reader.h"
#include "config/schema.h"
#include "core/base/error.h"
#include "core/base/program.h"
#include "core/cpu/cpu_features.h"
#include "core/files/standard_output.h"
#include "report/collected_log.h"
#include "report/terminal.h"

namespace hone {

namespace {

constexpr const char* kOverview = R"(hone {}: fine-tunes Mixture-of-Experts language models

See it work, in minutes, on a model made on the spot:
  hone quickstart

From a model folder to a better model:
  hone init ./Qwen3-30B-A3B --data chat.jsonl    write a commented run.yaml
  hone estimate run.yaml                         memory it needs, and what makes it fit
  hone train run.yaml --dry-run                  check model, data and one step; nothing is written
  hone train run.yaml                            train
  hone eval run.yaml --checkpoint out/run1       loss and accuracy of the result
  hone generate --model ./Qwen3-30B-A3B --adapter out/run1 --prompt "Hello"
  hone merge --model ./Qwen3-30B-A3B --adapter out/run1 --output merged

Verbs:
)";

std::string overview(const CLI::App& app) {
  std::string text = fmt::format(kOverview, version());
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    text += fmt::format("  {:<14} {}\n", verb->get_name(), verb->get_description());
  }
  return text + "\nhone VERB --help explains a verb. Configuration keys: docs/config.md, or hone schema.\n";
}

std::vector<std::string> verb_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(verb->get_name());
  return names;
}

/// Whether a verb has this name or alias.
bool is_verb(const CLI::App& app, const std::string& name) {
  const auto verbs = app.get_subcommands([](const CLI::App*) { return true; });
  return std::any_of(verbs.begin(), verbs.end(), [&](const CLI::App* verb) { return verb->check_name(name); });
}

/// The verb of the command line, or its subcommand (bench step).
const CLI::App& innermost(const CLI::App& verb) {
  const auto parts = verb.get_subcommands();
  return parts.empty() ? verb : innermost(*parts.front());
}

/// The full name of a verb: hone bench step.
std::string full_name(const CLI::App& verb) {
  return verb.get_parent() == nullptr ? verb.get_name() : full_name(*verb.get_parent()) + " " + verb.get_name();
}

/// Refuses unknown arguments of a verb without configuration overrides.
void refuse_extras(const CLI::App& verb) {
  const std::vector<std::string> extras = verb.remaining();
  if (extras.empty() || takes_overrides(verb.get_name()) || verb.get_prefix_command()) return;
  std::vector<std::string> names = verb_names(verb);
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::string name = full_name(verb);
  throw UserError(fmt::format("{} does not know '{}'.{}", name, extras.front(), did_you_mean(extras.front(), names)),
                  "", fmt::format("{} --help lists its options", name));
}

/// Refuses `--dry_run` and dry_run=true: the verb has an option with a dash, not a key.
void refuse_misspelt_option(const CLI::App& verb, const std::string& argument) {
  std::string name = argument.substr(argument.starts_with("--") ? 2 : 0);
  name.resize(std::min(name.find('='), name.size()));
  if (name.find('_') == std::string::npos || find_key(schema(), "", name).key != nullptr) return;
  if (argument.starts_with("--") && verb.get_option_no_throw("--" + name) != nullptr) return;
  std::string dashed = "--" + name;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  if (verb.get_option_no_throw(dashed) == nullptr) return;
  throw UserError(fmt::format("'{}' is not a key but an option of hone {}", name, verb.get_name()),
                  "command line: " + argument, "write " + dashed);
}

/// `zero_stage=3` and `--zero_stage=3` as `--zero-stage=3`, under any name of the key, if the verb has that option.
std::string as_option(const CLI::App& verb, const std::string& argument) {
  const size_t equals = argument.find('=');
  const std::string written = argument.substr(0, equals);
  if (equals == std::string::npos || verb.get_option_no_throw(written) != nullptr) return argument;
  const std::string name = config_name(written.substr(written.starts_with("--") ? 2 : 0));
  const FoundKey found = find_key(schema(), "", name);
  const bool same_value = found.key != nullptr && (found.alias == nullptr || !found.alias->rewrite);
  std::string option = "--" + (same_value ? found.key->name : name);
  std::replace(option.begin(), option.end(), '_', '-');
  return verb.get_option_no_throw(option) == nullptr ? argument : option + argument.substr(equals);
}

}  // namespace

std::vector<std::string> arguments_of(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const CLI::App* verb = app.get_subcommand(arguments.front());
  if (verb->get_prefix_command()) {  // launch -n 2 -- train …: CLI11 would end the verb there
    const auto mark = std::find(arguments.begin(), arguments.end(), "--");
    if (mark != arguments.end()) arguments.erase(mark);
  }
  if (!takes_overrides(verb->get_name())) {
    if (arguments.size() > 1 && is_verb(*verb, arguments[1])) verb = verb->get_subcommand(arguments[1]);
    if (!takes_keys(verb->get_name())) return arguments;
    for (std::string& argument : arguments) argument = as_option(*verb, argument);
    return arguments;
  }
  for (size_t i = 1; i < arguments.size(); ++i) refuse_misspelt_option(*verb, arguments[i]);
  for (size_t i = 1; i + 1 < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    const bool override = name.starts_with("--") && name.size() > 2 && name.find('=') == std::string::npos &&
                          verb->get_option_no_throw(name) == nullptr;
    if (!override || !takes_word(name.substr(2), arguments[i + 1])) continue;
    arguments[i] += "=" + arguments[i + 1];
    arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
  return arguments;
}

namespace {

/// `hone help VERB` is `hone VERB --help`.
std::vector<const char*> without_help_verb(int argc, const char* const* argv) {
  std::vector<const char*> arguments(argv, argv + argc);
  if (argc < 3 || std::string_view(argv[1]) != "help" || argv[2][0] == '-') return arguments;
  arguments.erase(arguments.begin() + 1);
  arguments.push_back("--help");
  return arguments;
}

}  // namespace

int run_verb(int argc, const char* const* argv) {
  active_isa();  // a HONE_INSTRUCTION_SET that is wrong ends any verb before it has begun
  CLI::App app("fine-tunes Mixture-of-Experts language models", "hone");
  Action action;
  add_verbs(app, action, {argv + 1, argv + argc});
  app.require_subcommand(1);  // an argument may have the name of a verb
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.empty() || first == "--help" || first == "-h" || first == "help") {
    print_text(overview(app));
    return 0;
  }
  const std::vector<std::string> verbs = verb_names(app);
  if (first == "--version" || first == "-v") return run_version();
  if (!is_verb(app, first)) {
    throw UserError(fmt::format("'{}' is not a verb of hone.{}", first, did_you_mean(first, verbs)), "",
                    "hone --help lists them");
  }
  try {
    std::vector<std::string> arguments = arguments_of(app, argc, argv);
    std::reverse(arguments.begin(), arguments.end());  // CLI11's order
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    const CLI::App& verb = innermost(*app.get_subcommand(first));
    print_text(verb.help(verb.get_parent() == &app ? "hone" : full_name(*verb.get_parent())));
    return 0;
  } catch (const CLI::ParseError& error) {
    const std::string name = full_name(innermost(*app.get_subcommand(first)));
    throw UserError(error.what(), name, fmt::format("{} --help has examples", name));
  }
  refuse_extras(innermost(*app.get_subcommand(first)));
  return action();
}

Error as_error(const std::exception_ptr& exception) {
  constexpr const char* kReport = "this is a fault of the program: please report it with the output of hone env";
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ExitCode::kDeviceFailed, "the machine is out of memory", "", "hone estimate says what the run needs");
  } catch (const std::system_error& error) {  // files, threads
    return UserError(error.what(), "", "check the path, its permissions and the free space");
  } catch (const std::exception& error) {
    const std::string what = error.what();
    return Error(ExitCode::kDeviceFailed, what.starts_with("internal error") ? what : "internal error: " + what, "",
                 kReport);
  }
}

int run_command_line(int argc, const char* const* argv) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // for a file over `ulimit -f`, write() returns an error
  reserve_standard_descriptors();
  try {
    const std::vector<const char*> arguments = without_help_verb(argc, argv);
    return run_verb(static_cast<int>(arguments.size()), arguments.data());
  } catch (const ReaderGone&) {
    return ReaderGone::kExitCode;
  } catch (...) {
    const Error error = as_error(std::current_exception());
    print_error(rank_prefix() + with_error_label(error.what()) + "\n");
    return static_cast<int>(error.code());
  }
}

}  // namespace hone
