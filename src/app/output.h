// Writes text to standard output and standard error, and checks output paths. A closed pipe is not an error.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device.h"

namespace hone {

/// Writes to standard output and flushes. A closed pipe (`hone schema | head`) is ignored.
void print_text(std::string_view text);

/// The same for standard error.
void print_error(std::string_view text);

/// The line about a GPU that the device name auto has passed over, if there is one (why_no_gpu_is_used), to standard
/// error.
void warn_of_unused_gpu(const std::string& device, Device chosen);

/// Throws UserError if `path` exists and `replace` is not set.
void require_free_file(const std::filesystem::path& path, bool replace);

/// Writes a complete file (write_durably) and makes its parent folders.
void write_output_file(const std::filesystem::path& path, std::string_view text);

/// Checks the output path of a model. Throws UserError unless `path` does not exist, is an empty folder, or `replace`
/// is set and it is the folder of a model or an adapter (with config.json or adapter_config.json). In that case the
/// model's files are replaced and other files remain.
void require_free_folder(const std::filesystem::path& path, bool replace);

/// Protects a command's inputs: throws UserError if `output` is an input, contains one or is inside one, after
/// following links (core/input_files.h). Inputs are paths with their descriptions; empty paths are ignored.
void require_apart(const std::filesystem::path& output,
                   const std::vector<std::pair<std::filesystem::path, const char*>>& inputs);

}  // namespace hone
