// Command line options of tests that run on a CPU or a GPU.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace hone {

struct TestRun {
  std::string device = "cpu";      ///< --device: cpu or cuda
  std::filesystem::path program;   ///< --hone: the program to run; "" = the one built with the tests
  std::filesystem::path fixtures;  ///< --fixtures: the path of tests/fixtures; "" = in the source folder
  std::filesystem::path record;    ///< --record: a folder for the hashes of the bits test; "" = do not record
  int moments = 6;                 ///< --moments: how many times the crash test kills a run
  uint64_t seed = 0;               ///< --seed: of these times; 0 = from the clock
};

const TestRun& test_run();

inline bool on_gpu() { return test_run().device != "cpu"; }

}  // namespace hone
