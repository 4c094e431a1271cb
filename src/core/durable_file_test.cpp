#include "core/durable_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <iterator>

#include "core/error.h"

namespace hone {
namespace {

class DurableFile : public testing::Test {
 protected:
  DurableFile() {
    std::string name = (std::filesystem::temp_directory_path() / "hone_file_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~DurableFile() override { std::filesystem::remove_all(folder_); }

  static std::string contents(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  size_t files() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {})); }

  std::filesystem::path folder_;
};

TEST_F(DurableFile, ReplacesAFileAndLeavesNothingElseBehind) {
  write_durably(folder_ / "a", "first, and longer");
  write_durably(folder_ / "a", "second");
  EXPECT_EQ(contents(folder_ / "a"), "second");
  EXPECT_EQ(files(), 1u);
}

TEST_F(DurableFile, AFailureLeavesWhatWasThere) {
  std::filesystem::create_directories(folder_ / "taken" / "inside");
  EXPECT_THROW(write_durably(folder_ / "taken", "x"), UserError);  // a folder cannot be replaced by a file
  EXPECT_TRUE(std::filesystem::is_directory(folder_ / "taken" / "inside"));
  EXPECT_EQ(files(), 1u);
  EXPECT_THROW(write_durably(folder_ / "absent" / "b", "x"), UserError);
}

TEST_F(DurableFile, IsMappedAsItWasWritten) {
  write_durably(folder_ / "a", "some bytes");
  const MappedFile mapped(folder_ / "a");
  const auto bytes = mapped.bytes();
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), "some bytes");
  write_durably(folder_ / "empty", "");
  EXPECT_TRUE(MappedFile(folder_ / "empty").bytes().empty());
  EXPECT_THROW(MappedFile(folder_ / "absent"), UserError);
}

}  // namespace
}  // namespace hone
