// Memory of this process and of the machine, in bytes.
#pragma once

#include <cstdint>

namespace hone {

/// Free memory and caches the system would give up (MemAvailable), within the limits of the control group.
uint64_t available_host_memory();
/// Resident set of this process now, and its largest since the start.
uint64_t resident_bytes();
uint64_t peak_resident_bytes();

}  // namespace hone
