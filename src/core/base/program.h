// Facts about the program: its version, and where it is.
#pragma once

#include <filesystem>

namespace hone {

/// The version of the build, e.g. "0.2.0".
const char* version();

/// The running program's file.
std::filesystem::path program_path();

}  // namespace hone
