// Where the modules are that the program loads with their first use.
#pragma once

#include <filesystem>

namespace hone {

/// The file of that name in lib/ beside the running program.
std::filesystem::path module_path(const char* file);

}  // namespace hone
