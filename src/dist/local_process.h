// Processes of this host.
#pragma once

#include <cstdint>
#include <string>

namespace hone {

std::string host_name();

/// The cores that this process may run on, as a text to compare.
std::string own_cores();

/// Kills process `pid` if it runs the same program file as this one, and is another process.
void end_same_program(int64_t pid);

}  // namespace hone
