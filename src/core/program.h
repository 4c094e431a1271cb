// Facts about the program: its version, and the location of the modules that it loads at their first use.
#pragma once

#include <filesystem>

namespace hone {

/// The version of the build, e.g. "0.1.0".
const char* version();

/// The running program's file.
std::filesystem::path program_path();

/// The path of a file in lib/ next to the running program.
std::filesystem::path module_path(const char* file);

}  // namespace hone
