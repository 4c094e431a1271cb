// What the program knows of itself: its version, and where the modules are that it loads with their first use.
#pragma once

#include <filesystem>

namespace hone {

/// As the build gives it, e.g. "0.1.0".
const char* version();

/// The file of that name in lib/ beside the running program.
std::filesystem::path module_path(const char* file);

}  // namespace hone
