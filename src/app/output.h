// Writes text to standard output and standard error, and checks output paths.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/device.h"
#include "core/files/output_files.h"

namespace hone {

/// Writes to standard output. Throws OutputLost or ReaderGone (core/files/standard_output.h) if not all of it can be
/// written: write files first, and print then.
void print_text(std::string_view text);

/// Calls `write`, which writes a file, and prints `text` even if that fails: a result is not lost with one of them.
void write_and_print(const std::function<void()>& write, std::string_view text);

/// Writes to standard error, whose failures are ignored.
void print_error(std::string_view text);

/// The line about a GPU that the device name auto has passed over, if there is one (why_no_gpu_is_used), to standard
/// error.
void warn_of_unused_gpu(const std::string& device, Device chosen);

/// Checks the output path of a model. Throws UserError unless `path` does not exist, is an empty folder, or `replace`
/// is set and it is the folder of a model or an adapter (with config.json or adapter_config.json). In that case the
/// model's files are replaced and other files remain.
void require_free_folder(const std::filesystem::path& path, bool replace);

/// A command's inputs, as paths with their descriptions; empty paths are ignored.
using Inputs = std::vector<std::pair<std::filesystem::path, const char*>>;

/// The rule for a file that a command writes (core/files/output_files.h). `replace`: --force.
OutputRule output_rule(const Inputs& inputs, bool replace, std::function<bool(std::string_view)> is_earlier = {});

/// Protects a command's inputs: throws UserError if `output` is an input, contains one or is inside one, after
/// following links (core/files/input_files.h).
void require_apart(const std::filesystem::path& output, const Inputs& inputs);

}  // namespace hone
