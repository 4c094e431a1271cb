// Writes model folders atomically: a new folder appears only when complete; a model in an existing folder is replaced
// such that at every moment the folder has the old model, the new one, or none that loads.
//
// Replacing: the new files are staged in FOLDER/model.hone-XXXXXXXX.tmp and synced. Renaming that to .save commits the
// save. Then the entry files of the old weights are removed first, and those of the new weights are moved last. If the
// process is killed meanwhile, the next program that finds the .save folder completes the steps.
#pragma once

#include <filesystem>
#include <functional>

#include "core/files/durable_file.h"
#include "weights/manifest.h"

namespace hone {

/// Writes files into a folder, and returns the checksums that it computed.
using FillFolder = std::function<void(const std::filesystem::path& temporary, FileChecksums& checksums)>;

/// Writes the files created by `fill`, and their manifest, to `directory`. If it does not exist or is empty, a
/// temporary folder is renamed to it; else its model is replaced and its other files are kept. UserError if the folder
/// is not writable or another process writes there; its contents are then unchanged. Links at final names are replaced;
/// if `directory` is a link, it remains one.
void write_directory(const std::filesystem::path& directory, const FillFolder& fill);

/// Removes what killed programs left next to `directory` while they wrote it: its staged folder, or the merged model of
/// `hone export --weights`. write_directory() calls it.
void remove_leftovers_beside(const std::filesystem::path& directory);

/// As write_directory(), for an existing folder whose lock the caller holds.
void replace_model(const std::filesystem::path& directory, const FillFolder& fill);

/// Completes a committed save that was killed, and removes the rest of an uncommitted one. The caller holds the
/// folder's lock. Returns whether there was a committed save.
bool finish_save(const std::filesystem::path& directory);

/// Called before a folder is read: completes such a save if nobody else holds the folder's lock. UserError if that is
/// impossible because the folder is in use or not writable: its files may belong to two models.
void require_finished(const std::filesystem::path& directory);

/// Calls `fill` on a temporary folder, adds the manifest, and syncs all files. Leaves out a card where `directory` has
/// one that Hone did not write. UserError with `directory`, the final
/// location, if a file cannot be written.
void fill_and_sync(const TemporaryFolder& temporary, const std::filesystem::path& directory, const FillFolder& fill);

/// Names of files in `directory` that belong to its model or adapter: weights, files in its manifest, and its card if
/// Hone wrote it.
std::vector<std::string> model_files_in(const std::filesystem::path& directory);
/// Those, and other files for which is_model_file() is true.
std::vector<std::string> hone_files_in(const std::filesystem::path& directory);

/// Whether Hone writes files of this name: weights, adapters, configuration, tokenizer.
bool is_model_file(const std::string& name);

}  // namespace hone
