// hone env and hone version: what this program and this machine are.
#pragma once

namespace hone {

/// Prints version, CPU, instruction sets, the kernels in use, cores, memory, build and devices. Returns 0.
int run_env(bool json);

/// Prints "hone 0.1.0". Returns 0.
int run_version();

}  // namespace hone
