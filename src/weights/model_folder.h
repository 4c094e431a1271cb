// Writing folders that others load: a new folder appears whole under its name; a model in a folder that is there
// already is replaced so that at every moment the folder holds the old model, the new one, or none that loads.
//
// Replacing: the new files are staged in FOLDER/model.hone-XXXXXXXX.tmp and synced. Renaming that to .save is the
// moment from which the save is certain: the files that say what the old weights are go first, those that say what the
// new ones are come last, and a program that finds a .save folder, since the one that made it was killed, does what is
// left.
#pragma once

#include <filesystem>
#include <functional>

#include "core/durable_file.h"
#include "weights/manifest.h"

namespace hone {

/// Fills a folder with files, and notes the checksums that it knows.
using FillFolder = std::function<void(const std::filesystem::path& temporary, FileChecksums& checksums)>;

/// Writes the files that `fill` makes, and their manifest, into `directory`: under a temporary name that becomes
/// `directory` where nothing is there or an empty folder, else in place of the model that is in it, beside what else it
/// holds. UserError if the folder is not writable or another process writes there; what was there is then untouched.
/// Links at final names are replaced; a `directory` that is a link stays one.
void write_directory(const std::filesystem::path& directory, const FillFolder& fill);

/// The same into a folder that is there and locked by the caller.
void replace_model(const std::filesystem::path& directory, const FillFolder& fill);

/// Does what is left of a save that was killed after it was certain; removes what is left of one before. The caller
/// holds the folder's lock. Whether there was one.
bool finish_save(const std::filesystem::path& directory);

/// Before a folder is read: finishes such a save if nobody else holds the folder's lock. UserError if it cannot, since
/// the folder is in use or not writable: its files may be of two models.
void require_finished(const std::filesystem::path& directory);

/// Lets `fill` write into a temporary folder, adds the manifest, and syncs all of it. UserError, for `directory`, which
/// it will become or go to, if a file cannot be written.
void fill_and_sync(const TemporaryFolder& temporary, const std::filesystem::path& directory, const FillFolder& fill);

/// Names of files in `directory` that belong to the model or adapter in it: weights, and what its manifest names.
std::vector<std::string> model_files_in(const std::filesystem::path& directory);
/// Those, and other files with names that is_model_file knows.
std::vector<std::string> hone_files_in(const std::filesystem::path& directory);

/// Whether a save or a run of Hone writes files of this name: weights, adapters, configuration, tokenizer.
bool is_model_file(const std::string& name);

}  // namespace hone
