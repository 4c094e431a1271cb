// Memory of this process and of the machine, in bytes.
#pragma once

#include <cstdint>

namespace hone {

/// Free memory and caches the system would give up (MemAvailable), within the limits of the control group.
uint64_t available_host_memory();
/// What could be allocated and used: what the control group still allows where it has a limit, since some virtual
/// machines get memory as they use it and show less at first; else as above.
uint64_t allocatable_host_memory();
/// Resident set of this process now, and its largest since the start.
uint64_t resident_bytes();
uint64_t peak_resident_bytes();

}  // namespace hone
