// Commands of a shell, and what tests of CPU ranks need of the machine.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace hone {

struct ShellOutcome {
  int code = -1;
  std::string out;  ///< and what it wrote to standard error
};

inline ShellOutcome run_shell(const std::string& command) {
  ShellOutcome outcome;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  for (char chunk[4096]; const size_t count = std::fread(chunk, 1, sizeof chunk, pipe);)
    outcome.out.append(chunk, count);
  const int status = ::pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

/// Why `program` cannot run CPU ranks here; "" if it can.
inline std::string why_no_mpi(const std::filesystem::path& program) {
  if (run_shell("mpirun --version").code != 0) return "no mpirun: install openmpi-bin";
  if (!std::filesystem::exists(program.parent_path() / "lib" / "hone_mpi.so")) {
    return "built without MPI: install libopenmpi-dev";
  }
  return "";
}

}  // namespace hone
