// Tests the output of make new-op, which is compiled into a separate program (tests/CMakeLists.txt).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "shell.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

ShellOutcome new_op(const std::string& arguments) {
  return run_shell(std::string(HONE_SOURCE_DIR) + "/tools/new_op.sh " + arguments);
}

TEST(NewOp, CompilesAndFailsItsTestByAnAssertion) {
  const ShellOutcome outcome = run_shell(std::string(HONE_NEW_OP) + " --gtest_filter=SampleOp.*");
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("Failure"));
  EXPECT_THAT(outcome.out, HasSubstr("[  FAILED  ] SampleOp.MatchesTheReferenceAndItsGradients"));
}

TEST(NewOp, WritesFilesThatSayWhatToFillIn) {
  const fs::path root = fs::path(::testing::TempDir()) / "new_op_test";
  fs::remove_all(root);
  const ShellOutcome outcome = new_op("soft_cap " + root.string());
  ASSERT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("make op OP=soft_cap"));
  for (const char* file : {".h", ".cpp", "_cpu.cpp", "_cuda.cu", "_test.cpp", "_bench.cpp"}) {
    std::ifstream stream(root / "src/ops/soft_cap" / (std::string("soft_cap") + file));
    std::stringstream text;
    text << stream.rdbuf();
    EXPECT_THAT(text.str(), HasSubstr("FILL IN")) << file;
    EXPECT_THAT(text.str(), HasSubstr("soft_cap")) << file;
    EXPECT_EQ(text.str().find('@'), std::string::npos) << file;
  }
  const ShellOutcome again = new_op("soft_cap " + root.string());
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.out, HasSubstr("src/ops/soft_cap exists"));
  fs::remove_all(root);
}

TEST(NewOp, RefusesNamesThatAreTakenOrIllFormed) {
  EXPECT_THAT(new_op("add").out, HasSubstr("src/ops/add exists"));
  for (const char* name : {"''", "SoftCap", "soft-cap", "soft__cap", "_cap", "cap_", "2cap", "../cap", "soft_cap_test",
                           "cap_cuda", "cap_avx2", "'a b'"}) {
    EXPECT_EQ(new_op(name).code, 2) << name;
  }
}

}  // namespace
}  // namespace hone
