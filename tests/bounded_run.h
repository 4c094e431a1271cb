// The program under a bound of time and memory, as an attack on it is run.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hone {

struct BoundedRun {
  int code = -1;      ///< exit code; 128 + signal
  bool hung = false;  ///< killed after the time that it had
  double seconds = 0;
  int64_t peak_bytes = 0;  ///< resident
  std::string out;         ///< standard output and error

  /// Whether the program gave an answer: neither a signal, nor a hang, nor an internal error, nor more than 1.2 GB, nor
  /// control sequences out of a file.
  testing::AssertionResult answered() const;
};

/// Runs hone with at most 6 GB of address space and 30 s (an answer takes 10 s at most; a busy machine takes longer).
BoundedRun run_bounded(const std::vector<std::string>& arguments);

}  // namespace hone
