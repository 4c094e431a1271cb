#include "app/convert_config/convert_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string_view>

#include "app/bench/grid/scenario_file.h"
#include "app/convert_config/command_line.h"
#include "app/convert_config/known_faults.h"
#include "app/convert_config/python_script.h"
#include "app/convert_config/translation.h"
#include "app/output.h"
#include "config/config_reader.h"
#include "config/resolve.h"
#include "config/schema.h"
#include "config/tools/tool.h"
#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/files/file_bytes.h"
#include "weights/checkpoint.h"

namespace hone {
namespace {

/// The source after reading, before translation.
struct Source {
  TranslationSource config;
  std::string name;     ///< its name in messages
  std::string program;  ///< the program that a script calls
};

std::string text_of(const std::string& path) {
  constexpr uint64_t kMost = 4 << 20;
  std::string text = read_whole_file(path, kMost, FileSource::kAlsoPipe);
  if (text.find('\0') != std::string::npos) throw UserError("this is not text", path, "give a YAML or JSON file");
  return text;
}

/// Merges two mappings; members of `over` have precedence.
ConfigNode overlaid(ConfigNode below, const ConfigNode& over) {
  below.kind = ConfigNode::Kind::kMapping;
  for (const auto& [name, value] : over.members) {
    std::erase_if(below.members,
                  [&, &key = name](const auto& member) { return config_name(member.name) == config_name(key); });
    below.members.emplace_back(name, value);
  }
  return below;
}

/// The configuration of a command's files and flags; flags have precedence.
ConfigNode with_files(const std::vector<ShellWord>& words, const std::string& folder) {
  std::vector<ShellWord> files;
  const ConfigNode flags = flags_as_config(words, files);
  ConfigNode root;
  root.kind = ConfigNode::Kind::kMapping;
  ConfigNode rest = flags;
  for (const char* name : {"config", "config_file"}) {
    if (const ConfigNode* file = flags.find(name)) files.push_back({file->text, file->where});
    std::erase_if(rest.members, [&](const auto& member) { return member.name == name; });
  }
  for (const ShellWord& file : files) {
    const std::string name = known_environment(file.text);
    const std::filesystem::path beside = std::filesystem::path(folder) / name;
    root = overlaid(
        root, read_config_file(std::filesystem::is_regular_file(beside) ? beside.string() : name, Variables::kKeep));
  }
  return overlaid(root, rest);
}

void count_devices(const ConfigNode& stated, Source& source) {
  double count = 0;
  if (source.config.devices == 1 && parse_number(known_environment(stated.text), count) && count >= 1 && count < 1e6) {
    source.config.devices = static_cast<int64_t>(count);
  }
}

/// Reads the number of processes from accelerate's file, unless the launcher states it.
void read_devices(const std::string& written, Source& source) {
  const std::string name = known_environment(written);
  const std::filesystem::path beside = std::filesystem::path(source.config.folder) / name;
  const std::filesystem::path path = std::filesystem::is_regular_file(beside) ? beside : std::filesystem::path(name);
  if (source.config.devices > 1 || !std::filesystem::is_regular_file(path)) return;
  const ConfigNode file = read_config_file(path.string(), Variables::kKeep);
  if (const ConfigNode* processes = file.find("num_processes")) count_devices(*processes, source);
}

/// Adds accelerate's file, if a script's launcher has one, under the key of the tables.
void add_launcher_file(const TrainingCommand& command, Source& source) {
  for (size_t i = 0; i + 1 < command.launcher.size(); ++i) {
    if (command.launcher[i].text != "--config_file") continue;
    const ShellWord& file = command.launcher[i + 1];
    source.config.root.members.emplace_back("accelerate_config", ConfigNode::scalar(file.text, file.where));
  }
}

/// Adds what a script's environment says to KTransformers (ACCELERATE_KT_BACKEND=AMXINT8), where no key says it.
void add_environment_of_kt(const TrainingCommand& command, Source& source) {
  ConfigNode& root = source.config.root;
  for (const ShellWord& word : command.environment) {
    constexpr std::string_view kPrefix = "accelerate_";
    const size_t equals = word.text.find('=');
    std::string name = in_lower_case(word.text.substr(0, equals));
    if (!name.starts_with("accelerate_kt_") && name != "accelerate_use_kt") continue;
    name.erase(0, kPrefix.size());
    const bool stated = std::any_of(root.members.begin(), root.members.end(), [&](const ConfigMember& member) {
      return config_name(member.name) == name || member.value.find(name) != nullptr;
    });
    if (!stated) root.members.emplace_back(name, ConfigNode::scalar(word.text.substr(equals + 1), word.where));
  }
}

Source read_source(const ConvertOptions& options) {
  Source source;
  source.name = options.input.empty() ? "the command line" : options.input;
  source.config.folder = std::filesystem::path(options.input).parent_path().string();
  if (!options.input.empty() && is_config_file(options.input)) {
    source.config.root = read_config_file(options.input, Variables::kKeep);
  } else if (options.input.ends_with(".py")) {
    PythonScript script = read_python_script(text_of(options.input), options.input);
    source.program = script.tool;
    source.config.root = std::move(script.root);
    source.config.look = std::move(script.look);
  } else if (!options.input.empty()) {
    const TrainingCommand command = read_shell_script(text_of(options.input), options.input);
    source.program = command.program;
    source.config.devices = command.devices;
    source.config.root = with_files(command.arguments, source.config.folder);
    add_launcher_file(command, source);
    add_environment_of_kt(command, source);
  }
  source.config.root = overlaid(source.config.root, parse_overrides(options.flags));
  if (const ConfigNode* file = source.config.root.find("accelerate_config")) read_devices(file->text, source);
  if (const ConfigNode* workers = source.config.root.find("ray_num_workers")) count_devices(*workers, source);
  if (options.devices > 0) source.config.devices = options.devices;
  if (source.config.root.members.empty()) {
    throw UserError("there is nothing to translate", source.name, "hone convert-config --help has examples");
  }
  return source;
}

DetectedTool tool_of(const ConvertOptions& options, const Source& source) {
  if (is_scenario_file(source.config.root)) {
    throw UserError("this file lists the scenarios of a benchmark, and trains nothing", source.name,
                    fmt::format("use `hone bench grid {}`", source.name));
  }
  if (options.from == "auto" && options.input.ends_with(".py")) return {find_tool(source.program), {"its calls"}};
  if (options.from == "auto") return detect_tool(source.config.root, source.program, source.name);
  std::vector<std::string> names = {"auto"};
  for (const Tool& tool : tools()) names.push_back(tool.name);
  if (const Tool* tool = find_tool(options.from)) return {tool, {}};
  throw UserError(fmt::format("'{}' is not a tool that is known.{}", options.from, did_you_mean(options.from, names)),
                  "--from", fmt::format("one of {}", fmt::join(names, ", ")));
}

/// Whether a key of the source, by its tool's rules or by its name, is about the data of a run.
bool states_data(const Tool& tool, const ConfigNode& root) {
  return std::any_of(root.members.begin(), root.members.end(), [&](const ConfigMember& member) {
    const std::string name = config_name(member.name);
    const ToolRule* rule = find_rule(tool, name);
    const KeySpec* key = rule ? rule->key : find_key(schema(), "", name).key;
    return key && key->type == KeyType::kDatasets;
  });
}

/// Throws UserError with the verb for files about other work than training: starting processes, merging and exporting,
/// generating. What accelerate's file says to KTransformers is about training.
void refuse_other_work(const Tool& tool, const Source& source) {
  const ConfigNode& root = source.config.root;
  if (tool.name == "accelerate" && !root.find("kt_config")) {
    throw UserError("this file says how processes are started, and not what is trained", source.name,
                    fmt::format("translate it with the configuration of the training: hone convert-config TRAINING "
                                "--accelerate_config {}; `hone launch` starts the ranks (docs/distributed.md)",
                                source.name));
  }
  const bool of_factory = tool.name == "llama-factory" || tool.base == "llama-factory";
  if (of_factory && !is_on(root, "do_train") && (is_on(root, "do_predict") || is_on(root, "do_eval"))) {
    throw UserError("this file evaluates a model, and trains nothing", source.name,
                    "use `hone eval` with the model's folder, --adapter and the data, or `hone generate --input` for "
                    "the answers");
  }
  if (states_data(tool, root) || find_stated(root, "do_train")) return;
  const ConfigNode* adapters = root.find("peft_config");
  if (find_stated(root, "export_dir") || (adapters && find_stated(*adapters, "export_dir"))) {
    const bool merges = adapters || find_stated(root, "adapter_name_or_path");
    throw UserError(
        fmt::format("this file {}, and trains nothing", merges ? "merges an adapter" : "exports a model"), source.name,
        merges ? "use `hone merge` with the adapter's folder" : "use `hone export` with the model's folder");
  }
  if (find_stated(root, "infer_backend") || find_stated(root, "sample_backend")) {
    throw UserError("this file is about generating, and trains nothing", source.name,
                    "use `hone chat` or `hone generate` with the model's folder and --adapter");
  }
}

std::string remark_lines(const char* what, const std::vector<Remark>& list) {
  std::string text;
  for (const Remark& remark : list) {
    text += fmt::format("  {:<15} {} ({}): {}\n", what, remark.said, remark.where, remark.why);
  }
  return text;
}

std::string report(const Translation& translation) {
  std::string text = fmt::format(
      "  {} keys translated, {} defaults written, {} without effect, {} not in this version\n",
      translation.stated.size(), translation.defaults.size(), translation.no_effect.size(), translation.missing.size());
  text += remark_lines("not here yet", translation.missing);
  text += remark_lines("look at", translation.look);
  text += remark_lines("changes results", translation.refused);
  return text;
}

/// The ranks that the result is read for: as many as its experts are spread over, or the groups of these that share
/// state.
RanksOfRun ranks_for(const Translation& translation) {
  int64_t spread = 1;
  double group = 1;
  for (const TranslatedKey& key : translation.stated) {
    if (key.key->name == "expert_parallel_size") spread = key.value.get<int64_t>();
    const bool shards = key.key->name == "dp_shard_size" && key.value.is_string();
    if (shards && !parse_number(key.value.get<std::string>(), group)) group = 1;
  }
  if (spread == 1) return {};
  const int64_t all = std::max(spread, static_cast<int64_t>(group));
  return {all, all};
}

/// The result, read as a configuration; or the contradiction in it.
struct ReadResult {
  std::optional<RunConfig> run = {};
  std::optional<UserError> error = {};
};

ReadResult read_result(const std::string& text, const std::string& name, const RanksOfRun& ranks) {
  try {
    return {.run = resolve_config(parse_config_text(text, name), ConfigNode{}, ranks).run};
  } catch (const UserError& error) {
    return {.error = error};
  }
}

/// Adds what `hone train` would refuse of the model and the data of `run`.
void add_known_faults(const RunConfig& run, const std::string& source, Translation& translation) {
  KnownFaults faults = known_faults(run, source);
  std::move(faults.look.begin(), faults.look.end(), std::back_inserter(translation.look));
  std::move(faults.refused.begin(), faults.refused.end(), std::back_inserter(translation.refused));
}

}  // namespace

int run_convert_config(const ConvertOptions& options) {
  Source source = read_source(options);
  const DetectedTool detected = tool_of(options, source);
  const std::string by = detected.by.empty() ? "" : fmt::format(" (by {})", fmt::join(detected.by, ", "));
  const auto say = [&](const std::string& text) { options.output == "-" ? print_error(text) : print_text(text); };
  say(fmt::format("{}: {}{}\n", source.name, detected.tool->title, by));
  refuse_other_work(*detected.tool, source);
  source.config.has_experts = has_experts;
  source.config.has_token = has_token;
  Translation translation = translate(*detected.tool, source.config);
  const auto written = [&](bool expand) {
    return converted_yaml(translation, *detected.tool, source.name, source.config.devices, expand);
  };
  const ReadResult result = read_result(written(false), options.output, ranks_for(translation));
  if (result.run) add_known_faults(*result.run, source.name, translation);
  say(report(translation));
  if (!translation.refused.empty() && !options.accept_changes) {
    throw UserError(
        fmt::format("{} of the settings would change what is learnt, and cannot be kept", translation.refused.size()),
        source.name,
        fmt::format("take them out there, or add --accept-changes, which writes {} without them",
                    options.output == "-" ? "the rest" : options.output));
  }
  if (const std::optional<UserError>& error = result.error) {
    if (!options.accept_changes) {
      throw UserError(fmt::format("the translated configuration is invalid: {}", error->message()), error->where(),
                      error->fix());
    }
    print_error(fmt::format("  correct this     {} ({}): {}\n", error->where(), error->fix(), error->message()));
  }
  if (options.output == "-") {
    print_text(written(true));
  } else {
    write_output(options.output, written(true), output_rule({{options.input, "the configuration"}}, options.force));
    print_text(fmt::format("{0} is written\n  hone validate {0}\n  hone train {0} --dry-run\n", options.output));
  }
  return 0;
}

}  // namespace hone
