#include "core/base/program.h"

#include <system_error>

namespace hone {

const char* version() { return HONE_VERSION; }

std::filesystem::path program_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

}  // namespace hone
