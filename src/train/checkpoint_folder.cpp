#include "train/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "core/error.h"
#include "train/training_state.h"

namespace hone {

namespace {

constexpr std::string_view kPrefix = "checkpoint-";
/// Behind the names of folders on their way: being written, replaced by a new one, being deleted.
constexpr const char *kWritten = ".tmp", *kReplaced = ".old", *kDeleted = ".deleted";

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, step);
  return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(step) : std::nullopt;
}

/// What a run writes into its output folder; other files are not ours to delete.
bool written_by_a_run(const std::string& name) {
  static const std::vector<std::string> names = {"runs",
                                                 "metrics.jsonl",
                                                 "trainer_state.json",
                                                 "training_info.json",
                                                 "generations.jsonl",
                                                 "merged",
                                                 "run.log",
                                                 "config.resolved.yaml",
                                                 "mlflow_run.json",
                                                 "config.json",
                                                 "generation_config.json",
                                                 "adapter_config.json",
                                                 "adapter_model.safetensors",
                                                 "tokenizer.json",
                                                 "tokenizer_config.json",
                                                 "special_tokens_map.json",
                                                 "chat_template.jinja"};
  return std::find(names.begin(), names.end(), name) != names.end() || name.starts_with(kPrefix) ||
         (name.starts_with("model") && name.find(".safetensors") != std::string::npos);
}

}  // namespace

std::filesystem::path CheckpointFolder::path_of(int64_t step) const {
  return output_dir_ / fmt::format("{}{}", kPrefix, step);
}

std::vector<int64_t> CheckpointFolder::steps() const {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(output_dir_, error)) {
    if (const auto step = step_of(entry.path().filename().string()); step && entry.is_directory())
      steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

/// Renamed first: a run that is killed meanwhile leaves no checkpoint behind that lacks some of its files.
void CheckpointFolder::remove(int64_t step) const {
  const std::filesystem::path deleted = path_of(step).string() + kDeleted;
  std::filesystem::remove_all(deleted);
  std::filesystem::rename(path_of(step), deleted);
  std::filesystem::remove_all(deleted);
}

void CheckpointFolder::prune(const Kept& kept) const {
  std::vector<int64_t> counted;
  for (const int64_t step : steps()) {
    if (step > kept.newest) {
      remove(step);
    } else if (kept.major <= 0 || step % kept.major != 0) {
      counted.push_back(step);
    }
  }
  if (!kept.limit) return;
  auto count = static_cast<int64_t>(counted.size());
  for (const int64_t step : counted) {
    if (count <= *kept.limit) return;
    if (step == kept.best || step == kept.newest) continue;
    remove(step);
    --count;
  }
}

std::filesystem::path CheckpointFolder::best() const {
  const std::vector<int64_t> all = steps();
  const std::optional<RunState> state = all.empty() ? std::nullopt : read_run_state(path_of(all.back()));
  if (state && state->best_step >= 0 && std::filesystem::is_directory(path_of(state->best_step)))
    return path_of(state->best_step);
  throw UserError(
      "there is no best checkpoint to resume from", output_dir_.string(),
      "a run keeps it where something is evaluated and save_strategy is not no; resume=auto takes the newest");
}

void CheckpointFolder::tidy() const {
  std::error_code error;
  std::vector<std::filesystem::path> left;
  for (const auto& entry : std::filesystem::directory_iterator(output_dir_, error)) {
    const std::filesystem::path& path = entry.path();
    const std::string ending = path.extension().string();
    const bool ours = step_of(path.stem().string()) && entry.is_directory();
    if (ours && (ending == kWritten || ending == kReplaced || ending == kDeleted)) left.push_back(path);
  }
  for (const std::filesystem::path& path : left) {
    const std::filesystem::path whole = path.parent_path() / path.stem();
    if (path.extension() == kReplaced && !std::filesystem::exists(whole)) {
      std::filesystem::rename(path, whole);
    } else {
      std::filesystem::remove_all(path);
    }
  }
}

void CheckpointFolder::check(bool resume, bool overwrite) const {
  std::error_code error;
  const bool used = std::filesystem::exists(output_dir_, error) && !std::filesystem::is_empty(output_dir_, error);
  if (!used || resume || overwrite) return;
  throw UserError(
      "the output folder is not empty", output_dir_.string(),
      "resume=auto goes on with the run in it, overwrite_output_dir=true starts anew, or choose another output_dir");
}

void CheckpointFolder::prepare(bool resume, bool overwrite) const {
  check(resume, overwrite);
  std::error_code error;
  const bool exists = std::filesystem::exists(output_dir_, error);
  if (exists && overwrite && !resume) {
    for (const auto& entry : std::filesystem::directory_iterator(output_dir_)) {
      if (written_by_a_run(entry.path().filename().string())) std::filesystem::remove_all(entry.path());
    }
  }
  std::filesystem::create_directories(output_dir_, error);
  const std::filesystem::path probe = output_dir_ / ".writable";
  const bool writable = !error && static_cast<bool>(std::ofstream(probe) << "\n");
  std::filesystem::remove(probe, error);
  if (!writable)
    throw UserError("the output folder cannot be written", output_dir_.string(),
                    "check its permissions and the free space");
}

std::optional<std::filesystem::path> CheckpointFolder::find(const std::string& resume) const {
  if (resume == "false") return std::nullopt;
  if (resume == "auto") {
    const std::vector<int64_t> all = steps();
    return all.empty() ? std::nullopt : std::optional(path_of(all.back()));
  }
  if (resume == "best") return best();
  if (!std::filesystem::is_directory(resume)) {
    throw UserError("there is no such checkpoint", resume,
                    "give a checkpoint-N folder, or resume_from_checkpoint: auto");
  }
  return resume;
}

}  // namespace hone
