// The main program of tests that run on a CPU or, with --device cuda, on a GPU.
#include "device_main.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "core/base/error.h"
#include "core/cpu/cpu_features.h"
#include "core/cuda/cuda_device.h"

namespace hone {

namespace {

TestRun given;

/// CTest's SKIP_RETURN_CODE.
constexpr int kSkipped = 77;

int run(int argc, char** argv) {
  std::map<std::string, std::filesystem::path> options;
  for (int i = 1; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  const auto take = [&](const char* name, const std::filesystem::path& otherwise) {
    const auto found = options.extract(name);
    return found.empty() ? otherwise : found.mapped();
  };
  given.device = take("--device", "cpu").string();
  given.program = take("--hone", "");
  given.fixtures = take("--fixtures", HONE_SOURCE_DIR "/tests/fixtures");
  given.record = take("--record", "");
  given.moments = std::atoi(take("--moments", "6").c_str());
  given.seed = std::strtoull(take("--seed", "0").c_str(), nullptr, 10);
  if (!options.empty() || argc % 2 == 0) {
    std::fprintf(stderr,
                 "usage: %s [--device cuda] [--hone PROGRAM] [--fixtures DIR] [--record DIR] [--moments N] [--seed N] "
                 "[gtest options]\n",
                 argv[0]);
    return 2;
  }
  if (on_gpu() && cuda::device_count() == 0) {
    std::printf("skipped: %s\n", cuda::why_no_device().c_str());
    return kSkipped;
  }
  try {
    if (stated_isa()) std::printf("instruction set: %s\n", std::string(name_of(active_isa())).c_str());
  } catch (const UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return RUN_ALL_TESTS();
}

}  // namespace

const TestRun& test_run() { return given; }

}  // namespace hone

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return hone::run(argc, argv);
}
