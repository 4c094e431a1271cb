#include "report/output_file.h"

#include <gtest/gtest.h>

#include <system_error>

#include "report/test_folder.h"

namespace hone {
namespace {

TEST(AppendFile, AddsBehindWhatIsThereAndMakesItsFolder) {
  const TestFolder folder;
  AppendFile(folder / "a/b/log").write("one\n");
  AppendFile(folder / "a/b/log").write("two\n");
  EXPECT_EQ(read_text(folder / "a/b/log"), "one\ntwo\n");
}

TEST(AppendFile, ExclusiveRefusesAnExistingFile) {
  const TestFolder folder;
  AppendFile(folder / "log", true).write("one\n");
  EXPECT_THROW(AppendFile(folder / "log", true), std::system_error);
}

TEST(AppendFile, AFullDiskIsAnErrorWithThePath) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  AppendFile file("/dev/full");
  try {
    file.write("x");
    FAIL() << "writing to a full disk must fail";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::no_space_on_device);
    EXPECT_NE(std::string(error.what()).find("/dev/full"), std::string::npos);
  }
}

TEST(ReplaceFile, ReadersSeeTheNewContentAndNoTemporaryIsLeft) {
  const TestFolder folder;
  write_text(folder / "state.json", "old");
  replace_file(folder / "state.json", "new");
  EXPECT_EQ(read_text(folder / "state.json"), "new");
  EXPECT_FALSE(std::filesystem::exists(folder / "state.json.tmp"));
}

TEST(ReplaceFile, AFailedWriteLeavesTheOldContent) {
  const TestFolder folder;
  write_text(folder / "state.json", "old");
  const FileSizeLimit limit(2);
  EXPECT_THROW(replace_file(folder / "state.json", "new content"), std::system_error);
  EXPECT_EQ(read_text(folder / "state.json"), "old");
  EXPECT_FALSE(std::filesystem::exists(folder / "state.json.tmp"));
}

}  // namespace
}  // namespace hone
