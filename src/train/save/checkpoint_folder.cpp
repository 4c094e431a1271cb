#include "train/save/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"
#include "train/save/training_state.h"
#include "weights/checkpoint.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";
/// Endings of temporary names (core/files/durable_file.h) of a replaced folder and of one that is being deleted.
constexpr std::string_view kReplaced = "old", kDeleted = "deleted";
constexpr std::string_view kDamaged = ".damaged";
constexpr const char* kState = "training_state.json";
/// Marks the weights of a best evaluation.
constexpr const char* kBestMark = "best_weights.json";

/// The step of "checkpoint-12"; nothing for "checkpoint-012", "checkpoint--3" and other names.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (parsed.ec != std::errc() || parsed.ptr != end || step < 0) return std::nullopt;
  return name == fmt::format("{}{}", kPrefix, step) ? std::optional(step) : std::nullopt;
}

bool is_link(const fs::path& path) {
  std::error_code error;
  return fs::is_symlink(fs::symlink_status(path, error));
}

bool is_checkpoint(const fs::path& folder) {
  std::error_code error;
  return fs::is_directory(folder, error) &&
         (fs::is_regular_file(folder / kState, error) || fs::is_regular_file(folder / kManifestName, error));
}

[[noreturn]] void not_writable(const fs::path& path, const std::error_code& error) {
  throw UserError("the checkpoint cannot be written: " + error.message(), path.string(),
                  "check the folder's permissions and the free space; nothing that was saved before is lost");
}

void rename_or_throw(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) not_writable(to, error);
}

/// Renames a checkpoint before removing it, so that a killed run leaves no checkpoint with missing files. If the path
/// is a link, only the link is removed.
void remove_checkpoint(const fs::path& path) {
  std::error_code error;
  if (is_link(path)) {
    fs::remove(path, error);
    return;
  }
  const fs::path deleted = temporary_beside(path, kDeleted);
  rename_or_throw(path, deleted);
  remove_own_files(deleted);
  if (is_name_taken(deleted) && !is_name_taken(path))
    fs::rename(deleted, path, error);  // it contains files that Hone did not write
}

/// Moves files that Hone did not write from a replaced checkpoint into the new one.
void keep_foreign_files(const fs::path& replaced, const fs::path& path) {
  std::error_code error;
  remove_own_files(replaced);
  if (!is_name_taken(replaced)) return;
  std::vector<fs::path> foreign;
  for (const auto& entry : fs::directory_iterator(replaced, error)) foreign.push_back(entry.path());
  for (const fs::path& file : foreign) {
    if (!is_name_taken(path / file.filename())) fs::rename(file, path / file.filename(), error);
  }
  fs::remove(replaced, error);
}

bool is_best_weights(const fs::path& checkpoint) {
  std::error_code error;
  return fs::exists(checkpoint / kBestMark, error);
}

int64_t branch_of(const fs::path& checkpoint) {
  try {
    const auto state = read_run_state(checkpoint);
    return state ? state->branch : 0;
  } catch (const Error&) {  // checked in full before it is used
    return 0;
  }
}

/// Checks the headers of files without a manifest.
std::string structural_problem(const fs::path& checkpoint) {
  std::error_code error;
  const bool adapter = fs::exists(checkpoint / "adapter_model.safetensors", error);
  if (!fs::exists(checkpoint / (adapter ? "adapter_config.json" : "config.json"), error))
    return adapter ? "adapter_config.json is missing" : "config.json is missing";
  if (adapter) {
    const SafetensorsFile weights(checkpoint / "adapter_model.safetensors");
  } else {
    const Checkpoint weights = Checkpoint::open(checkpoint);
  }
  const SafetensorsFile state(checkpoint / "training_state.safetensors");
  return "";
}

bool has_optimizer(const fs::path& checkpoint) {
  std::error_code error;
  return fs::exists(checkpoint / kState, error);
}

}  // namespace

std::string checkpoint_problem(const fs::path& checkpoint) {
  try {
    const auto manifest = Manifest::read(checkpoint);
    if (manifest) {
      if (std::string problem = manifest->sizes_problem(checkpoint); !problem.empty()) return problem;
      std::set<std::string> large;  // large files are checked while they are read
      for (const auto& [name, checksum] : manifest->files()) {
        if (name.ends_with(".safetensors")) large.insert(name);
      }
      if (std::string problem = manifest->contents_problem(checkpoint, {}, large); !problem.empty()) return problem;
    }
    const auto state = read_run_state(checkpoint);
    if (!state) return manifest ? "" : "training_state.json is missing";
    const auto step = step_of(checkpoint.filename().string());
    if (step && *step != state->step) {
      return fmt::format("training_state.json is of step {}, the folder of step {}", state->step, *step);
    }
    return manifest ? "" : structural_problem(checkpoint);
  } catch (const Error& error) {
    return error.message();
  } catch (const fs::filesystem_error& error) {
    return error.code().message();
  }
}

void remove_own_files(const fs::path& folder) {
  std::vector<std::string> names = hone_files_in(folder);
  names.push_back(kTemporaryMarker);
  // The files that identify the folder as Hone's are removed last.
  std::erase_if(names, [](const std::string& name) { return name == kState || name == kManifestName; });
  std::error_code error;
  for (const std::string& name : names) {
    if (!fs::is_directory(fs::symlink_status(folder / name, error))) fs::remove(folder / name, error);
  }
  for (const char* last : {kState, kManifestName}) fs::remove(folder / last, error);
  fs::remove(folder, error);  // removed only if empty
}

fs::path CheckpointFolder::path_of(int64_t step) const { return output_dir_ / fmt::format("{}{}", kPrefix, step); }

std::vector<int64_t> CheckpointFolder::steps() const {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(output_dir_, error)) {
    if (const auto step = step_of(entry.path().filename().string()); step && is_checkpoint(entry.path()))
      steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void CheckpointFolder::write(int64_t step, const FillFolder& fill) const {
  const fs::path path = path_of(step);
  TemporaryFolder temporary(path);
  fill_and_sync(temporary, path, fill);
  if (is_link(path)) fs::remove(path);  // its target is kept
  if (!is_checkpoint(path)) return temporary.rename_to(path);
  const fs::path replaced = temporary_beside(path, kReplaced);
  rename_or_throw(path, replaced);
  temporary.rename_to(path);
  keep_foreign_files(replaced, path);
}

void CheckpointFolder::write_best(int64_t step, const FillFolder& fill) const {
  write(step, [&](const fs::path& temporary, FileChecksums& checksums) {
    fill(temporary, checksums);
    write_durably(temporary / kBestMark, Json{{"step", step}, {"resumable", false}}.dump(1) + "\n");
  });
}

void CheckpointFolder::drop_best(const std::vector<int64_t>& keep) const {
  for (const int64_t step : steps()) {
    if (is_best_weights(path_of(step)) && std::find(keep.begin(), keep.end(), step) == keep.end())
      remove_checkpoint(path_of(step));
  }
}

std::vector<std::string> CheckpointFolder::prune(const Kept& kept) const {
  std::vector<int64_t> counted;
  std::vector<std::string> left_behind;
  for (const int64_t step : steps()) {
    if (kept.major > 0 && step % kept.major == 0) continue;
    if (step > kept.newest) {
      left_behind.push_back(path_of(step).filename().string());
      remove_checkpoint(path_of(step));
    } else if (!is_best_weights(path_of(step))) {
      counted.push_back(step);
    }
  }
  if (!kept.limit) return left_behind;
  auto count = static_cast<int64_t>(counted.size());
  for (const int64_t step : counted) {
    if (count <= *kept.limit) break;
    if (step == kept.best || step == kept.newest) continue;
    remove_checkpoint(path_of(step));
    --count;
  }
  return left_behind;
}

void CheckpointFolder::tidy() const {
  remove_leftovers(output_dir_, true);
  std::error_code error;
  std::vector<std::pair<fs::path, TemporaryName>> left;
  for (const auto& entry : fs::directory_iterator(output_dir_, error)) {
    const auto name = parse_temporary(entry.path().filename().string());
    if (name && step_of(name->base) && entry.is_directory(error) && !entry.is_symlink(error))
      left.emplace_back(entry.path(), *name);
  }
  for (const auto& [path, name] : left) {
    const fs::path whole = output_dir_ / name.base;
    if (name.ending == kReplaced && !is_name_taken(whole) && is_checkpoint(path)) {
      rename_or_throw(path, whole);
    } else if (name.ending == kReplaced && is_name_taken(whole)) {
      keep_foreign_files(path, whole);
    } else if (name.ending == kDeleted) {
      remove_own_files(path);
      if (is_name_taken(path) && !is_name_taken(whole)) fs::rename(path, whole, error);
    }
  }
  for (const int64_t step : steps()) fs::remove(path_of(step) / kTemporaryMarker, error);
}

void CheckpointFolder::require_free_names(int64_t last) const {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(output_dir_, error)) {
    const auto step = step_of(entry.path().filename().string());
    if (!step || *step > last || entry.is_symlink(error) || is_checkpoint(entry.path())) continue;
    if (entry.is_directory(error) && fs::is_empty(entry.path(), error)) continue;
    throw UserError("this is not a Hone checkpoint, but the run would write one at this path", entry.path().string(),
                    "move it away, or choose another output_dir");
  }
}

std::vector<CheckpointFolder::Candidate> CheckpointFolder::candidates() const {
  std::vector<Candidate> found;
  for (const int64_t step : steps()) found.push_back({step, branch_of(path_of(step))});
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.branch, a.step) > std::pair(b.branch, b.step);
  });
  return found;
}

int64_t CheckpointFolder::branch_from(int64_t step, int64_t branch) const {
  const std::vector<Candidate> all = candidates();
  const bool later = std::any_of(all.begin(), all.end(), [&](const Candidate& other) { return other.step > step; });
  return later ? std::max(branch, all.front().branch) + 1 : branch;
}

fs::path CheckpointFolder::best() const {
  const std::vector<Candidate> all = candidates();
  const auto newest = std::find_if(all.begin(), all.end(),
                                   [&](const Candidate& candidate) { return has_optimizer(path_of(candidate.step)); });
  const std::optional<RunState> state = newest == all.end() ? std::nullopt : read_run_state(path_of(newest->step));
  const fs::path path = state && state->best_step >= 0 ? path_of(state->best_step) : fs::path();
  if (!path.empty() && is_checkpoint(path) && has_optimizer(path)) return path;
  throw UserError("there is no best checkpoint to resume from", output_dir_.string(),
                  "a run with save_strategy: best keeps one; resume=auto resumes from the newest" +
                      std::string(!path.empty() && is_checkpoint(path)
                                      ? "; model_name_or_path or adapter_name_or_path takes the weights in " +
                                            path.filename().string()
                                      : ""));
}

CheckpointFolder::PassedOver CheckpointFolder::pass_over(const fs::path& checkpoint, const std::string& problem) const {
  const std::string name = checkpoint.filename().string();
  std::string renamed = name + std::string(kDamaged);
  for (int other = 2; is_name_taken(output_dir_ / renamed); ++other)
    renamed = fmt::format("{}{}-{}", name, kDamaged, other);
  rename_or_throw(checkpoint, output_dir_ / renamed);
  return {renamed, fmt::format("{} is damaged and was skipped: {}; it is now {}", name, problem, renamed)};
}

std::vector<std::string> CheckpointFolder::damaged() const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(output_dir_, error)) {
    const std::string name = entry.path().filename().string();
    const size_t ending = name.find(kDamaged);
    if (ending != std::string::npos && step_of(name.substr(0, ending))) names.push_back(name + " (damaged)");
  }
  return names;
}

std::optional<fs::path> CheckpointFolder::find_newest(bool weights_suffice, const Notice& notice) const {
  std::vector<std::string> unusable = damaged();
  for (const Candidate& candidate : candidates()) {
    const fs::path path = path_of(candidate.step);
    const std::string name = path.filename().string();
    if (const std::string problem = checkpoint_problem(path); !problem.empty()) {
      const PassedOver passed = pass_over(path, problem);
      notice(passed.text);
      unusable.push_back(fmt::format("{} ({})", passed.renamed, problem));
    } else if (is_best_weights(path)) {
      notice(fmt::format("{} was skipped: it contains only the weights of the best evaluation", name));
    } else if (has_optimizer(path) || weights_suffice) {
      return path;
    } else {
      notice(fmt::format("{} was skipped: it has no optimizer state (save_only_model)", name));
      unusable.push_back(name + " (no optimizer state)");
    }
  }
  if (unusable.empty()) return std::nullopt;
  throw UserError(
      fmt::format("no checkpoint can be resumed: {}", fmt::join(unusable, "; ")), output_dir_.string(),
      "resume_only_model=true loads weights without an optimizer; overwrite_output_dir=true starts a new run, "
      "and keeps damaged checkpoints");
}

std::optional<fs::path> CheckpointFolder::find(const ResumeFrom& from, bool weights_suffice,
                                               const Notice& notice) const {
  if (from.nothing()) return std::nullopt;
  if (from.newest()) return find_newest(weights_suffice, notice);
  const fs::path named = from.text();
  const fs::path path = from.best() ? best() : named.has_filename() ? named : named.parent_path();
  if (!fs::is_directory(path)) {
    throw UserError("there is no such checkpoint", from.text(),
                    "give a checkpoint-N folder, or resume_from_checkpoint: auto");
  }
  if (is_checkpoint(path)) {
    if (const std::string problem = checkpoint_problem(path); !problem.empty()) {
      throw UserError("the checkpoint is damaged: " + problem, path.string(),
                      "resume=auto resumes from the newest complete one");
    }
  }
  return path;
}

}  // namespace hone
