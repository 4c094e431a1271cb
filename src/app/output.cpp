#include "app/output.h"

#include <cstdio>

#include "core/durable_file.h"
#include "core/error.h"
#include "core/folder_lock.h"
#include "core/input_files.h"
#include "session/device_facts.h"

namespace hone {

namespace {

void write(std::FILE* file, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

}  // namespace

void print_text(std::string_view text) { write(stdout, text); }
void print_error(std::string_view text) { write(stderr, text); }

void warn_of_unused_gpu(const std::string& device, Device chosen) {
  if (const std::string reason = why_no_gpu_is_used(device, chosen); !reason.empty()) print_error(reason + "\n");
}

void require_free_file(const std::filesystem::path& path, bool replace) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw UserError("the output is a folder, not a file", path.string(), "name a file in it");
  }
  if (replace || !std::filesystem::exists(path, error)) return;
  throw UserError("the output file exists already", path.string(), "choose another one, or replace it with --force");
}

void write_output_file(const std::filesystem::path& path, std::string_view text) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  write_durably(path, text);
}

void require_apart(const std::filesystem::path& output,
                   const std::vector<std::pair<std::filesystem::path, const char*>>& inputs) {
  InputFiles read;
  for (const auto& [path, what] : inputs) read.add(path, what);
  read.refuse(output);
}

void require_free_folder(const std::filesystem::path& path, bool replace) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  const bool folder = std::filesystem::is_directory(path, error);
  if (folder && holds_nothing(path)) return;
  if (!folder) throw UserError("the output is a file, not a folder", path.string(), "choose another one");
  const bool model = std::filesystem::exists(path / "config.json", error) ||
                     std::filesystem::exists(path / "adapter_config.json", error);
  if (model && replace) return;
  throw UserError("the output folder is not empty", path.string(),
                  model ? "choose another one, or replace the model in it with --force" : "choose another one");
}

}  // namespace hone
