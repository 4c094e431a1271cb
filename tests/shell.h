// Helpers of tests: shell commands, Python packages for comparisons, and a small disk.
#pragma once

#include <gtest/gtest.h>

#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace hone {

struct ShellOutcome {
  int code = -1;
  std::string out;  ///< standard output and standard error
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

/// Why mpirun cannot start ranks here; "" if it can.
inline std::string why_no_mpirun() {
  return run_shell("mpirun --version").code == 0 ? "" : "no mpirun: install openmpi-bin";
}

/// A Python that has `module` (TensorBoard's reader, an MLflow server), which Hone itself does not need: HONE_PYTHON,
/// or the one of tools/test_python.sh; "" with the reason in `why` if there is none. A test then skips with that
/// reason.
inline std::string python_with(const std::string& module, std::string& why) {
  const char* stated = std::getenv("HONE_PYTHON");
  const std::string python = stated != nullptr ? stated : HONE_SOURCE_DIR "/build-python/bin/python";
  if (!std::filesystem::exists(python)) {
    why = python + " is not there: tools/test_python.sh installs it, or HONE_PYTHON names another";
    return "";
  }
  // find_spec does not import the package, which takes seconds.
  const std::string command = "'" + python + "' -c 'import importlib.util as u, sys; sys.exit(u.find_spec(\"" + module +
                              "\") is None)' 2>/dev/null";
  if (std::system(command.c_str()) == 0) return python;
  why = python + " has no package " + module + ": tools/test_python.sh installs it";
  return "";
}

/// A file system in memory with tmpfs options such as size=16m.
class SmallDisk {
 public:
  SmallDisk(std::filesystem::path path, const char* options) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
    mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, options) == 0;
    if (!mounted_) why_ = std::string("a small file system cannot be mounted here: ") + std::strerror(errno);
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  /// Why the disk could not be made; "" if it exists.
  const std::string& why_not() const { return why_; }
  /// Fills the disk until `bytes` are free.
  void fill(uintmax_t bytes) const {
    std::ofstream file(path_ / "ballast", std::ios::binary);
    struct statvfs disk {};
    ASSERT_EQ(statvfs(path_.c_str(), &disk), 0);
    const uintmax_t free = disk.f_bavail * disk.f_frsize;
    ASSERT_GT(free, bytes);
    file << std::string(free - bytes, 'x');
  }
  void empty() const { std::filesystem::remove(path_ / "ballast"); }

 private:
  std::filesystem::path path_;
  bool mounted_ = false;
  std::string why_;
};

}  // namespace hone
