// Processes of this host.
#pragma once

#include <cstdint>
#include <string>

namespace hone {

std::string host_name();

/// The cores that this process may run on, as a text to compare.
std::string own_cores();

/// What tells a process from all others, with its id: where ids mean the same, and when it started.
struct ProcessPlace {
  std::string boot = {};           ///< of the kernel: a new text each time it starts; "": not known
  std::string pid_namespace = {};  ///< as /proc names it; "": not known
  std::string network = {};        ///< the namespace of its loopback and its ports; "": not known
  int64_t start_time = 0;          ///< clock ticks after the boot

  /// Whether process ids mean the same there and here.
  bool same_processes(const ProcessPlace& other) const;
  /// Whether the loopback there is the one here.
  bool same_loopback(const ProcessPlace& other) const;
};

ProcessPlace own_place();

/// Kills process `pid` if it is the one that started at `place`, which must be where this process is, and is another
/// one. Whoever has taken its id over is left alone. False if nothing was killed.
bool end_process(int64_t pid, const ProcessPlace& place);

}  // namespace hone
