#include "train/save/run_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "session/loaded_model.h"
#include "session/model_path.h"
#include "train/save/checkpoint_folder.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

/// Endings of the folder of earlier results: complete; being moved there or back.
constexpr std::string_view kAside = "old", kMoving = "moving";
constexpr const char* kAsideName = "replaced";

/// Whether a run writes this file, logs, checkpoints and the model aside. Logs are only appended to.
bool is_run_file(const std::string& name) {
  static const std::set<std::string> names = {
      "metrics.jsonl",       "generations.jsonl",  "expert_load.jsonl", "config.resolved.yaml", "training_info.json",
      "trainer_state.json",  "mlflow_run.json",    "wandb_run.json",    "trackio_run.json",     "profile.json",
      "profile-stages.json", "merged_by_run.json", "run_plan.json",     "report.html"};
  return names.contains(name) || (name.starts_with("nonfinite-step-") && name.ends_with(".json"));
}

bool is_log(const std::string& name) {
  const bool secret = name.starts_with(".hone-") && name.ends_with(".secret");  // shared by ranks of several hosts
  return name == "run.log" || name == "logs" || name == kLockName || secret;
}

/// events.out.tfevents.TIME.HOST, with an optional number if there are several in a second. Names of other programs'
/// files end in their process and a number.
bool is_event_file(const std::string& name) {
  if (!name.starts_with("events.out.tfevents.")) return false;
  int numbers = 0;
  for (size_t end = name.size(); numbers < 2; ++numbers) {
    const size_t dot = name.rfind('.', end - 1);
    if (name.substr(dot + 1, end - dot - 1).find_first_not_of("0123456789") != std::string::npos || dot + 1 == end)
      break;
    end = dot;
  }
  return numbers < 2;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// Results of a run in its folder, as relative paths: files with names that Hone writes, and checkpoints.
std::vector<fs::path> results_in(const fs::path& output_dir) {
  std::set<fs::path> results;
  std::error_code error;
  for (const std::string& name : hone_files_in(output_dir)) results.insert(name);
  for (const std::string& name : names_in(output_dir)) {
    if (is_run_file(name) && !fs::is_directory(fs::symlink_status(output_dir / name, error))) results.insert(name);
  }
  for (const int64_t step : CheckpointFolder(output_dir).steps())
    results.insert(CheckpointFolder(output_dir).path_of(step).filename());
  // A link at the path of a folder that a run creates is not Hone's.
  const auto is_own = [&](const fs::path& folder) { return !fs::is_symlink(fs::symlink_status(folder, error)); };
  if (const fs::path runs = output_dir / "runs"; is_own(runs)) {
    for (const std::string& name : names_in(runs)) {
      if (is_event_file(name)) results.insert(fs::path("runs") / name);
    }
  }
  if (const fs::path merged = output_dir / "merged"; is_own(merged)) {
    for (const std::string& name : hone_files_in(merged)) results.insert(fs::path("merged") / name);
  }
  std::erase_if(results, [&](const fs::path& path) { return !is_name_taken(output_dir / path); });
  return {results.begin(), results.end()};
}

/// Whether the folder has the files that other programs need to load a model.
bool has_model(const fs::path& folder) {
  return is_name_taken(folder / "model.safetensors") || is_name_taken(folder / "model.safetensors.index.json") ||
         is_name_taken(folder / "adapter_model.safetensors");
}

/// Whether a run of Hone has used the folder.
bool has_run(const fs::path& folder) {
  return is_name_taken(folder / "config.resolved.yaml") || is_name_taken(folder / kManifestName) ||
         is_name_taken(folder / "training_info.json") || !CheckpointFolder(folder).steps().empty();
}

void move(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::create_directories(to.parent_path(), error);
  fs::rename(from, to, error);
  if (error) {
    throw UserError("the earlier results cannot be moved: " + error.message(), from.string(),
                    "check the folder's permissions, or choose another output_dir");
  }
}

/// Removes Hone's files from a checkpoint, and its folder if it is then empty.
void remove_result(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error))) {
    remove_own_files(path);
  } else {
    fs::remove(path, error);
  }
}

/// Removes empty folders.
void remove_empty_folders(const fs::path& folder) {
  std::error_code ignored;
  for (const char* sub : {"runs", "merged"}) fs::remove(folder / sub, ignored);
}

/// Removes the rest of a folder of earlier results.
void remove_waiting_folder(const fs::path& folder) {
  std::error_code ignored;
  remove_empty_folders(folder);
  fs::remove(folder / kTemporaryMarker, ignored);
  fs::remove(folder, ignored);
}

/// Moves all files of `folder` to the same paths in `to`; a checkpoint is moved as a whole.
void move_back(const fs::path& folder, const fs::path& to) {
  for (const fs::path& path : results_in(folder)) {
    remove_result(to / path);
    move(folder / path, to / path);
  }
  remove_waiting_folder(folder);
}

/// Removes what was set aside.
void remove_aside(const fs::path& folder) {
  for (const fs::path& path : results_in(folder)) remove_result(folder / path);
  remove_empty_folders(folder);
  // A checkpoint with files that Hone did not write keeps those files, and its name.
  std::error_code ignored;
  for (const std::string& name : names_in(folder)) {
    if (name != kTemporaryMarker && !is_name_taken(folder.parent_path() / name))
      fs::rename(folder / name, folder.parent_path() / name, ignored);
  }
  remove_waiting_folder(folder);
}

/// Folders of results that were set aside, and whether each is complete.
std::vector<std::pair<fs::path, bool>> waiting_in(const fs::path& output_dir) {
  std::vector<std::pair<fs::path, bool>> waiting;
  for (const std::string& entry : names_in(output_dir)) {
    const auto name = parse_temporary(entry);
    if (!name || name->base != kAsideName || (name->ending != kAside && name->ending != kMoving)) continue;
    if (is_name_taken(output_dir / entry / kTemporaryMarker))
      waiting.emplace_back(output_dir / entry, name->ending == kAside);
  }
  return waiting;
}

}  // namespace

InputFiles run_inputs(const RunConfig& config) {
  InputFiles inputs;
  inputs.add(resolve_model_path(config.model.model_name_or_path), "the model");
  inputs.add(resolve_adapter_path(config.model.adapter_name_or_path), "the adapter");
  inputs.add(config.model.tokenizer_name_or_path, "the tokenizer");
  inputs.add(config.data.chat_template_file, "the chat template");
  inputs.add(config.data.tokenized_cache, "the token cache");
  for (const auto* sets : {&config.data.datasets, &config.data.eval_datasets}) {
    for (const DatasetConfig& set : *sets) inputs.add(set.path, "the data set");
  }
  return inputs;
}

void check_inputs_stay(const RunConfig& config) {
  const InputFiles inputs = run_inputs(config);
  const fs::path output = config.report.output_dir;
  const bool merges = config.checkpoint.merge_after_training && config.model.finetuning_type == FinetuningType::kLora;
  inputs.refuse_inside(output);
  std::error_code error;
  // Other files of a model are copied next to the weights with the same names.
  std::set<std::string> copied;
  for (const std::string& name : names_in(resolve_model_path(config.model.model_name_or_path))) copied.insert(name);
  for (const std::string& name : names_in(output)) {
    const bool folder = fs::is_directory(output / name, error);
    if (!folder && (is_run_file(name) || is_model_file(name) || is_log(name) || copied.contains(name)))
      inputs.refuse(output / name);
  }
  for (const std::string& name : names_in(output / "logs")) inputs.refuse(output / "logs" / name);
  const CheckpointFolder checkpoints(output);
  for (const int64_t step : checkpoints.steps()) inputs.refuse(checkpoints.path_of(step));
  if (config.checkpoint.overwrite_output_dir || merges) {
    for (const fs::path& path : results_in(output)) inputs.refuse(output / path);
  }
  if (!merges) return;
  const std::string& stated = config.checkpoint.export_dir;
  inputs.refuse(stated.empty() ? output / "merged" : fs::path(stated));
}

void check_output_dir(const RunConfig& config) {
  const fs::path output = config.report.output_dir;
  std::error_code error;
  const auto status = fs::status(output, error);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status))
    throw UserError("the output folder is a file", output.string(), "choose another output_dir");
  const std::vector<std::string> names = names_in(fs::canonical(output, error));
  const bool used = !std::all_of(names.begin(), names.end(), is_log);
  const bool resume = !config.checkpoint.resume_from_checkpoint.nothing();
  if (used && !resume && !config.checkpoint.overwrite_output_dir) {
    throw UserError(
        "the output folder is not empty", output.string(),
        "resume=auto resumes the run in it, overwrite_output_dir=true starts a new run; or choose another output_dir: "
        "\"out/{learning_rate}-{weight_decay}\" is one for each pair of their values");
  }
  if (resume && has_model(output) && !has_run(output)) {
    throw UserError("the output folder has a model that Hone did not write, and the run would replace it",
                    output.string(), "choose another output_dir");
  }
}

RunFolder::RunFolder(const fs::path& output_dir, Logger& logger) : output_dir_(output_dir), logger_(logger) {
  std::error_code error;
  fs::create_directories(output_dir, error);
  if (error || !fs::is_directory(output_dir, error)) {
    throw UserError("the output folder cannot be written: " + error.message(), output_dir.string(),
                    "check the permissions of the parent folder and the free space, or choose another output_dir");
  }
  lock_ = std::make_unique<FolderLock>(output_dir, [&](const std::string& text) { logger.warning("{}", text); });
  recover();
}

RunFolder::~RunFolder() {
  if (aside_.empty()) return;
  try {
    const fs::path moving = temporary_beside(output_dir_ / kAsideName, kMoving);
    fs::rename(aside_, moving);
    for (const fs::path& path : results_in(output_dir_)) {
      std::error_code error;
      if (!fs::is_directory(fs::symlink_status(output_dir_ / path, error))) fs::remove(output_dir_ / path, error);
    }
    move_back(moving, output_dir_);
    logger_.info("the earlier results were moved back to {}", output_dir_.string());
  } catch (const std::exception& error) {  // the next start tries again
    logger_.error("the earlier results are still in {}: {}", aside_.string(), error.what());
  }
}

void RunFolder::recover() {
  finish_save(output_dir_);
  for (const auto& [folder, complete] : waiting_in(output_dir_)) {
    const bool new_stands = complete && (has_model(output_dir_) || !CheckpointFolder(output_dir_).steps().empty());
    if (new_stands) {
      remove_aside(folder);
      continue;
    }
    // From here on a killed run leaves the ending kMoving, so that the next start continues moving back.
    const fs::path moving = temporary_beside(output_dir_ / kAsideName, kMoving);
    fs::rename(folder, moving);
    move_back(moving, output_dir_);
    logger_.info("the results that a killed run had set aside were moved back to {}", output_dir_.string());
  }
  CheckpointFolder(output_dir_).tidy();
}

void RunFolder::require_space(int64_t bytes, bool overwrite) const {
  std::error_code error;
  const fs::space_info space = fs::space(output_dir_, error);
  if (error || space.available >= static_cast<uintmax_t>(bytes)) return;
  const bool waits = overwrite && !results_in(output_dir_).empty();
  throw UserError(fmt::format("the first checkpoint needs {:.2f} GB, and {:.2f} GB are free{}",
                              static_cast<double>(bytes) / 1e9, static_cast<double>(space.available) / 1e9,
                              waits ? " in addition to the earlier results, which are kept until it is complete" : ""),
                  output_dir_.string(),
                  waits ? "free space, move the earlier results away, or choose another output_dir"
                        : "free space, or choose another output_dir");
}

void RunFolder::set_aside() {
  const std::vector<fs::path> results = results_in(output_dir_);
  if (results.empty()) return;
  const fs::path moving = temporary_beside(output_dir_ / kAsideName, kMoving);
  fs::create_directory(moving);
  mark_temporary(moving);
  std::set<std::string> names;
  for (const fs::path& path : results) {
    move(output_dir_ / path, moving / path);
    names.insert(path.begin()->string());
  }
  remove_empty_folders(output_dir_);
  aside_ = temporary_beside(output_dir_ / kAsideName, kAside);
  fs::rename(moving, aside_);
  logger_.info(
      "overwrite_output_dir: {} of an earlier run will be deleted once a checkpoint or the final model of this "
      "run is complete; until then they are in {}",
      fmt::join(names, ", "), aside_.filename().string());
}

void RunFolder::keep_new() {
  if (aside_.empty()) return;
  remove_aside(std::exchange(aside_, {}));
  logger_.info("deleted the earlier results");
}

}  // namespace hone
