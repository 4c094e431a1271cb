#include "weights/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/files/folder_lock.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "weights/adapter_layout.h"
#include "weights/card_file.h"
#include "weights/kt_manifest.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCertain = "save";
constexpr const char* kStagedName = "model";
constexpr const char* kPlanName = ".hone-plan.json";

/// Files that a loader opens first: without these there is no model in the folder.
constexpr std::array kEntries = {"model.safetensors.index.json", "model.safetensors", "adapter_model.safetensors"};

bool is_entry(const std::string& name) { return std::find(kEntries.begin(), kEntries.end(), name) != kEntries.end(); }

/// model-00001-of-00007.safetensors
bool is_shard(std::string_view name) {
  constexpr std::string_view kBegin = "model-", kMiddle = "-of-", kEnd = ".safetensors";
  const size_t middle = name.find(kMiddle);
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || middle == std::string_view::npos) return false;
  const auto digits = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  const size_t second = middle + kMiddle.size();
  return second + kEnd.size() < name.size() && digits(name.substr(kBegin.size(), middle - kBegin.size())) &&
         digits(name.substr(second, name.size() - kEnd.size() - second));
}

bool is_weights(const std::string& name) {
  return is_entry(name) || is_shard(name) || name == "adapter_config.json" || name == kKtFile ||
         name == kKtManifestName;
}

fs::path without_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

[[noreturn]] void not_writable(const fs::path& path, const std::string& reason) {
  throw UserError("the folder cannot be written: " + reason, path.string(),
                  "check its permissions and the free space; nothing that was saved before is lost");
}

/// The committed saves of a folder; more than one only if somebody copied them there.
std::vector<fs::path> certain_saves(const fs::path& directory) {
  std::vector<fs::path> saves;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const auto name = parse_temporary(entry.path().filename().string());
    if (name && name->base == kStagedName && name->ending == kCertain && !entry.is_symlink(error) &&
        fs::exists(entry.path() / kPlanName, error))
      saves.push_back(entry.path());
  }
  std::sort(saves.begin(), saves.end());
  return saves;
}

void remove_file(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error))) return;
  fs::remove(path, error);
  if (error) not_writable(path, error.message());
}

/// The files that a committed save removes and adds, from the plan in its staged folder.
struct Plan {
  std::vector<std::string> remove, install;

  static Plan read(const fs::path& staged) {
    const Json json = read_json(staged / kPlanName);
    try {
      Plan plan{json.at("remove"), json.at("install")};
      for (const auto* names : {&plan.remove, &plan.install}) {
        for (const std::string& name : *names) {
          if (fs::path(name).has_parent_path() || name.empty() || name == "..") throw std::invalid_argument(name);
        }
      }
      return plan;
    } catch (const std::exception& error) {
      throw UserError(std::string("the plan of an unfinished save cannot be read: ") + error.what(), staged.string(),
                      "the model in this folder may be of two saves: write it again");
    }
  }
};

/// Idempotent: any part may have been done before.
void carry_out(const fs::path& directory, const fs::path& staged) {
  const Plan plan = Plan::read(staged);
  const auto installs = [&](const std::string& name) {
    return std::find(plan.install.begin(), plan.install.end(), name) != plan.install.end();
  };
  // A file that is still staged has not been moved, so the one with its final name is old.
  for (const std::string& name : plan.remove) {
    if (is_entry(name) && (!installs(name) || fs::exists(staged / name))) remove_file(directory / name);
  }
  sync_directory(directory);
  for (const std::string& name : plan.remove) {
    if (!is_entry(name) && !installs(name)) remove_file(directory / name);
  }
  for (const bool entries : {false, true}) {
    for (const std::string& name : plan.install) {
      if (is_entry(name) != entries || !fs::exists(staged / name)) continue;
      std::error_code error;
      fs::rename(staged / name, directory / name, error);
      if (error) not_writable(directory / name, error.message());
    }
    sync_directory(directory);
  }
  mark_temporary(staged);
  const fs::path done = temporary_beside(directory / kStagedName);
  fs::rename(staged, done);
  sync_directory(directory);
  remove_marked(done);
}

}  // namespace

bool is_model_file(const std::string& name) {
  static const std::set<std::string> names = {"config.json",
                                              "generation_config.json",
                                              "tokenizer.json",
                                              "tokenizer_config.json",
                                              "chat_template.jinja",
                                              "special_tokens_map.json",
                                              "vocab.json",
                                              "merges.txt",
                                              "added_tokens.json",
                                              "tokenizer.model",
                                              kManifestName,
                                              "chat_template.json",
                                              "trainer_state.json",
                                              "training_state.json",
                                              "training_state.safetensors",
                                              "preprocessor_config.json",
                                              "hone_chat.json",
                                              "best_weights.json",
                                              "evaluation_results.json"};
  return is_weights(name) || names.contains(name);
}

void fill_and_sync(const TemporaryFolder& temporary, const fs::path& directory, const FillFolder& fill) {
  try {
    FileChecksums checksums;
    fill(temporary.path(), checksums);
    if (is_name_taken(directory / kCardName) && !has_own_card(directory)) fs::remove(temporary.path() / kCardName);
    write_kt_manifest(temporary.path());
    Manifest::of(temporary.path(), checksums).write(temporary.path());
    sync_tree(temporary.path());
  } catch (const fs::filesystem_error& failure) {
    not_writable(directory, failure.code().message());
  }
}

std::vector<std::string> hone_files_in(const fs::path& directory) {
  const std::vector<std::string> of_model = model_files_in(directory);
  std::set<std::string> names(of_model.begin(), of_model.end());
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (is_model_file(name) && !fs::is_directory(entry.symlink_status(error))) names.insert(name);
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> model_files_in(const fs::path& directory) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (is_weights(name)) names.insert(name);
  }
  if (has_own_card(directory)) names.insert(kCardName);
  try {
    if (const auto manifest = Manifest::read(directory)) {
      for (const auto& [name, checksum] : manifest->files()) {
        if (is_name_taken(directory / name)) names.insert(name);
      }
      names.insert(kManifestName);
    }
  } catch (const UserError&) {  // the files of a damaged manifest are unknown
  }
  return {names.begin(), names.end()};
}

void replace_model(const fs::path& given, const FillFolder& fill) {
  const fs::path directory = without_slash(given);
  TemporaryFolder temporary(directory / kStagedName);
  fill_and_sync(temporary, directory, fill);
  Json install = Json::array();
  for (const auto& entry : fs::directory_iterator(temporary.path())) {
    const std::string name = entry.path().filename().string();
    if (name == kTemporaryMarker) continue;
    if (fs::is_directory(fs::symlink_status(directory / name)))
      not_writable(directory / name, "a folder has the name of a file to be written");
    install.push_back(name);
  }
  write_durably(temporary.path() / kPlanName,
                Json{{"remove", model_files_in(directory)}, {"install", install}}.dump(1) + "\n");
  const fs::path certain = temporary_beside(directory / kStagedName, kCertain);
  temporary.rename_to(certain);
  carry_out(directory, certain);
}

bool finish_save(const fs::path& given) {
  const fs::path directory = without_slash(given);
  const std::vector<fs::path> saves = certain_saves(directory);
  for (const fs::path& staged : saves) carry_out(directory, staged);
  remove_leftovers(directory, true, kStagedName);
  return !saves.empty();
}

void require_finished(const fs::path& directory) {
  if (certain_saves(directory).empty()) return;
  if (const auto lock = FolderLock::try_take(directory)) {
    finish_save(directory);
    return;
  }
  throw UserError("a save of this model is not finished", directory.string(),
                  "wait for the run that writes it; if it was killed, make the folder writable: the next command "
                  "finishes the save");
}

void remove_leftovers_beside(const fs::path& given) {
  std::error_code error;
  const fs::path directory = fs::absolute(without_slash(given), error);
  if (!error) remove_leftovers(directory.parent_path(), false, directory.filename().string());
}

void write_directory(const fs::path& given, const FillFolder& fill) {
  std::error_code error;
  fs::path directory = without_slash(given);
  if (fs::is_symlink(fs::symlink_status(directory, error))) {
    directory = fs::weakly_canonical(directory, error);
    if (error) not_writable(given, error.message());
  }
  remove_leftovers_beside(directory);
  if (fs::is_directory(directory, error)) {
    const FolderLock lock(directory);
    finish_save(directory);
    return replace_model(directory, fill);
  }
  const fs::path parent = directory.has_parent_path() ? directory.parent_path() : ".";
  fs::create_directories(parent, error);
  if (error) not_writable(directory, error.message());
  TemporaryFolder temporary(directory);
  fill_and_sync(temporary, directory, fill);
  temporary.rename_to(directory);
}

}  // namespace hone
