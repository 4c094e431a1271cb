// Files that a command writes for its user, under one rule:
//
// - What the command reads is never written over, even if the user says --force.
// - A file that exists is replaced only with --force, unless it is an earlier result of the same command.
// - A link is never followed: with --force it is replaced, and its target is unchanged.
// - A file is complete or absent: it is written under a temporary name, synced and renamed (core/files/durable_file.h).
//
// Models go through weights/model_folder.h, runs through train/save/run_folder.h, which keep the same rule. A test of
// the sources (tests/rooms_test.cpp) names the few other files that write, with the reason.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "core/files/input_files.h"

namespace hone {

/// What a command may do with a file that has the name of one that it writes.
struct OutputRule {
  InputFiles inputs = {};  ///< what the command reads
  bool replace = false;    ///< the user has allowed to replace files
  /// Whether a file that begins with this text (at most 64 KiB) is an earlier result of the command.
  std::function<bool(std::string_view)> is_earlier = {};
};

/// Throws UserError if the rule does not allow to write `path`, or if it is a folder, a pipe or a device. For a check
/// before long work; the functions below repeat it.
void require_output(const std::filesystem::path& path, const OutputRule& rule);

/// Writes a file, and its parent folders if they do not exist.
void write_output(const std::filesystem::path& path, std::string_view text, const OutputRule& rule);

/// Appends a record to a file of records, which need not exist: all of it is added, or nothing. A file that exists must
/// be empty or `rule.is_earlier`. Throws UserError as require_output, also for a link.
void append_output(const std::filesystem::path& path, std::string_view record, const OutputRule& rule);

/// Moves a complete, synced file to `path`, on the same file system.
void place_output(const std::filesystem::path& temporary, const std::filesystem::path& path, const OutputRule& rule);

/// Removes a file of an earlier command that would be taken for one of these. Requires `rule.replace`. Does nothing if
/// it does not exist.
void remove_output(const std::filesystem::path& path, const OutputRule& rule);

/// Writes the files that `fill` creates in a temporary folder to `folder`. If that does not exist, the temporary folder
/// is renamed to it. Else `folder` is locked, every file is checked before the first one is moved, and files that were
/// moved are removed again if a later one cannot be (unless they replaced others). Returns after all are synced.
void write_output_set(const std::filesystem::path& folder, const OutputRule& rule,
                      const std::function<void(const std::filesystem::path& temporary)>& fill);

}  // namespace hone
