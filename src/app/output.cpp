#include "app/output.h"

#include <unistd.h>

#include <exception>

#include "core/base/error.h"
#include "core/files/folder_lock.h"
#include "core/files/standard_output.h"
#include "session/device_facts.h"

namespace hone {

void print_text(std::string_view text) {
  if (const int error = write_to_descriptor(STDOUT_FILENO, text)) throw_output_failure(error);
}

void write_and_print(const std::function<void()>& write, std::string_view text) {
  std::exception_ptr failure;
  try {
    write();
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  print_text(text);
  if (failure) std::rethrow_exception(failure);
}

void print_error(std::string_view text) { write_to_descriptor(STDERR_FILENO, text); }

void warn_of_unused_gpu(const std::string& device, Device chosen) {
  if (const std::string reason = why_no_gpu_is_used(device, chosen); !reason.empty()) print_error(reason + "\n");
}

OutputRule output_rule(const Inputs& inputs, bool replace, std::function<bool(std::string_view)> is_earlier) {
  OutputRule rule{{}, replace, std::move(is_earlier)};
  for (const auto& [path, what] : inputs) rule.inputs.add(path, what);
  return rule;
}

void require_apart(const std::filesystem::path& output, const Inputs& inputs) {
  output_rule(inputs, true).inputs.refuse(output);
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
