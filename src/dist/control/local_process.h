// Processes of this host.
#pragma once

#include <cstdint>
#include <string>

namespace hone {

std::string host_name();

/// The cores that this process may run on, as a text for comparison.
std::string own_cores();

/// With a process id, identifies one process: the scope of ids, and the start time.
struct ProcessPlace {
  std::string boot = {};           ///< the kernel's boot id, new at each start; "": not known
  std::string pid_namespace = {};  ///< its name in /proc; "": not known
  std::string network = {};        ///< the network namespace in /proc; "": not known
  int64_t start_time = 0;          ///< clock ticks after the boot

  /// Whether both processes have the same scope of process ids.
  bool same_processes(const ProcessPlace& other) const;
  /// Whether both processes have the same loopback.
  bool same_loopback(const ProcessPlace& other) const;
};

ProcessPlace own_place();

/// Kills process `pid` if it is the process described by `place`, shares this process's scope of ids, and is not this
/// process. A later process with the same id is not killed. Returns whether a process was killed.
bool end_process(int64_t pid, const ProcessPlace& place);

}  // namespace hone
