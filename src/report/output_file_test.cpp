#include "report/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <system_error>

#include "report/folder_testing.h"

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
  const TestFolder folder;
  AppendFile file(folder / "log");
  const FileSizeLimit limit(2);
  try {
    file.write("more than two bytes");
    FAIL() << "writing to a full disk must fail";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::file_too_large);
    EXPECT_NE(std::string(error.what()).find("log"), std::string::npos);
  }
}

TEST(AppendFile, ReplacesALinkAndRefusesWhatIsNoRegularFile) {
  const TestFolder folder;
  write_text(folder / "precious", "mine");
  std::filesystem::create_symlink(folder / "precious", folder / "log");
  AppendFile(folder / "log").write("one");
  EXPECT_EQ(read_text(folder / "precious"), "mine");
  EXPECT_EQ(read_text(folder / "log"), "one");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(AppendFile(folder / "pipe"), std::system_error);
}

}  // namespace
}  // namespace hone
