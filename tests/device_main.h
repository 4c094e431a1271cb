// What the tests of whole runs are told on their command line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace hone {

struct TestRun {
  std::string device = "cpu";      ///< --device: cpu or cuda
  std::filesystem::path program;   ///< --hone: the program to run; "" = the one that was built with the tests
  std::filesystem::path fixtures;  ///< --fixtures: where tests/fixtures is; "" = in the source folder
  std::filesystem::path record;    ///< --record: a folder that the bits test writes its hashes to, if given
  int moments = 6;                 ///< --moments: how often the crash test kills a run
  uint64_t seed = 0;               ///< --seed: of its moments; 0 = by the clock
};

const TestRun& test_run();

inline bool on_gpu() { return test_run().device != "cpu"; }

}  // namespace hone
