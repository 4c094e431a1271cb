#include "core/program.h"

#include <system_error>

namespace hone {

const char* version() { return HONE_VERSION; }

std::filesystem::path program_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

std::filesystem::path module_path(const char* file) { return program_path().parent_path() / "lib" / file; }

}  // namespace hone
