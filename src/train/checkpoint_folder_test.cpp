#include "train/checkpoint_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "core/error.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

class CheckpointFolders : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::temp_directory_path() / ("hone_folder_" + std::to_string(getpid()));
    fs::remove_all(path_);
  }
  void TearDown() override { fs::remove_all(path_); }
  void make(std::initializer_list<const char*> names) const {
    for (const char* name : names) fs::create_directories(path_ / name);
  }

  fs::path path_;
};

TEST_F(CheckpointFolders, TheNewestIsTheLargestNumberAndHalfWrittenOnesDoNotCount) {
  make({"checkpoint-999", "checkpoint-1000", "checkpoint-1001.tmp", "checkpoint-", "checkpoint-x"});
  const CheckpointFolder folder(path_);
  EXPECT_EQ(folder.steps(), (std::vector<int64_t>{999, 1000}));
  EXPECT_EQ(folder.find("auto"), path_ / "checkpoint-1000");
  EXPECT_EQ(folder.find("false"), std::nullopt);
  EXPECT_THROW(folder.find((path_ / "checkpoint-5").string()), UserError);
  EXPECT_EQ(CheckpointFolder(path_ / "none").find("auto"), std::nullopt);
}

TEST_F(CheckpointFolders, PruningKeepsTheBestAndTheNewest) {
  make({"checkpoint-1", "checkpoint-2", "checkpoint-3", "checkpoint-4"});
  const CheckpointFolder folder(path_);
  folder.prune(std::nullopt, -1);
  EXPECT_EQ(folder.steps().size(), 4u);
  folder.prune(2, 1);
  EXPECT_EQ(folder.steps(), (std::vector<int64_t>{1, 4}));
  folder.prune(1, 1);
  EXPECT_EQ(folder.steps(), (std::vector<int64_t>{1, 4}));
  folder.prune(0, -1);
  EXPECT_EQ(folder.steps(), std::vector<int64_t>{4});
}

TEST_F(CheckpointFolders, AFolderInUseIsRefusedAndOverwritingSparesForeignFiles) {
  const CheckpointFolder folder(path_);
  folder.prepare(false, false);
  make({"checkpoint-1"});
  std::ofstream(path_ / "notes.txt") << "mine";
  EXPECT_THROW(folder.check(false, false), UserError);
  EXPECT_NO_THROW(folder.prepare(true, false));
  EXPECT_EQ(folder.steps().size(), 1u);
  folder.prepare(false, true);
  EXPECT_TRUE(folder.steps().empty());
  EXPECT_TRUE(fs::exists(path_ / "notes.txt"));
}

}  // namespace
}  // namespace hone
