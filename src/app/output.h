// Text on standard output and standard error, where a reader that has gone away is no error.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hone {

/// Writes to standard output and flushes. A closed pipe (`hone schema | head`) is ignored.
void print_text(std::string_view text);

/// Same, to standard error.
void print_error(std::string_view text);

/// Refuses to write a file where one is already: UserError unless `path` does not exist or `replace` is set.
void require_free_file(const std::filesystem::path& path, bool replace);

/// Writes a file whole (write_durably), and the folders around it.
void write_output_file(const std::filesystem::path& path, std::string_view text);

/// Refuses to write a model folder over something else: UserError unless `path` does not exist, is an empty folder, or
/// `replace` is set and it is the folder of a model or an adapter (it has a config.json or adapter_config.json), whose
/// files are then replaced beside what else is there.
void require_free_folder(const std::filesystem::path& path, bool replace);

/// Refuses to write over what a command reads: UserError if `output` is an input, holds one or lies in one, links
/// followed (core/input_files.h). Inputs are paths and what they are called; empty paths are none.
void require_apart(const std::filesystem::path& output,
                   const std::vector<std::pair<std::filesystem::path, const char*>>& inputs);

}  // namespace hone
