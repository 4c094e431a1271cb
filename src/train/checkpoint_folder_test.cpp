#include "train/checkpoint_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "train/training_state.h"

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

TEST_F(CheckpointFolders, WhatAKilledRunLeftIsTidiedUp) {
  make({"checkpoint-1", "checkpoint-2.tmp", "checkpoint-3.old", "checkpoint-1.old", "checkpoint-4.deleted", "mine.tmp",
        "checkpoint-x.tmp"});
  CheckpointFolder(path_).tidy();
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path_)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"checkpoint-1", "checkpoint-3", "checkpoint-x.tmp", "mine.tmp"}));
}

TEST_F(CheckpointFolders, PruningKeepsTheBestAndTheNewest) {
  make({"checkpoint-1", "checkpoint-2", "checkpoint-3", "checkpoint-4"});
  const CheckpointFolder folder(path_);
  folder.prune({.newest = 4});
  EXPECT_EQ(folder.steps().size(), 4u);
  folder.prune({.newest = 4, .best = 1, .limit = 2});
  EXPECT_EQ(folder.steps(), (std::vector<int64_t>{1, 4}));
  folder.prune({.newest = 4, .best = 1, .limit = 1});
  EXPECT_EQ(folder.steps(), (std::vector<int64_t>{1, 4}));
  folder.prune({.newest = 4, .limit = 0});
  EXPECT_EQ(folder.steps(), std::vector<int64_t>{4});
}

TEST_F(CheckpointFolders, PruningSparesMajorOnes) {
  make({"checkpoint-10", "checkpoint-15", "checkpoint-20", "checkpoint-25", "checkpoint-30", "checkpoint-35"});
  const CheckpointFolder folder(path_);
  folder.prune({.newest = 35, .limit = 1, .major = 10});
  EXPECT_EQ(folder.steps(), (std::vector<int64_t>{10, 20, 30, 35}));
}

TEST_F(CheckpointFolders, ARunThatWentBackLosesWhatItLeftBehindAndNotWhatItWrites) {
  make({"checkpoint-4", "checkpoint-8", "checkpoint-12"});
  const CheckpointFolder folder(path_);
  make({"checkpoint-6"});  // resumed from 4
  folder.prune({.newest = 6, .best = 4, .limit = 2});
  EXPECT_EQ(folder.steps(), (std::vector<int64_t>{4, 6}));
}

TEST_F(CheckpointFolders, TheBestIsTheOneThatTheNewestKnows) {
  make({"checkpoint-2", "checkpoint-4"});
  const CheckpointFolder folder(path_);
  EXPECT_THROW(folder.find("best"), UserError) << "no training state";
  const ParameterStore nothing;
  RunState state;
  state.best_step = 2;
  save_training_state(path_ / "checkpoint-4", nothing, state);
  EXPECT_EQ(folder.find("best"), path_ / "checkpoint-2");
  fs::remove_all(path_ / "checkpoint-2");
  EXPECT_THROW(folder.find("best"), UserError) << "deleted";
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
