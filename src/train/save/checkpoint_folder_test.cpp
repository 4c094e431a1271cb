#include "train/save/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/files/root_testing.h"
#include "core/text/json.h"
#include "train/save/training_state.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Names = std::vector<std::string>;
using testing::TestRoot;

class CheckpointFolders : public ::testing::Test {
 protected:
  CheckpointFolders() : folder_(root_.path()) {}

  /// Writes a complete checkpoint with a training state.
  void write(int64_t step, RunState state = {}) const {
    state.step = step;
    folder_.write(step, [&](const fs::path& temporary, FileChecksums& checksums) {
      write_durably(temporary / "config.json", "{}");
      SafetensorsWriter weights(temporary / "model.safetensors", {});
      checksums["model.safetensors"] = weights.finish();
      save_training_state(temporary, ParameterStore(), state, &checksums);
    });
  }
  /// Writes a checkpoint with save_only_model.
  void write_weights(int64_t step) const {
    folder_.write(step,
                  [](const fs::path& temporary, FileChecksums&) { write_durably(temporary / "config.json", "{}"); });
  }
  std::optional<fs::path> find_auto(bool weights_suffice = false) {
    said_.clear();
    return folder_.find(ResumeFrom("auto"), weights_suffice, [&](const std::string& text) { said_ += text + "\n"; });
  }
  fs::path at(int64_t step) const { return folder_.path_of(step); }
  Names names() const { return TestRoot::names_in(root_.path()); }

  TestRoot root_;
  CheckpointFolder folder_;
  std::string said_;
};

TEST_F(CheckpointFolders, TheNewestIsTheLargestNumberAndOtherFoldersAreNone) {
  write(999);
  write(1000);
  for (const char* other : {"checkpoint-2000", "checkpoint-", "checkpoint-x", "checkpoint-01001", "checkpoint--3"})
    root_.write(std::string(other) + "/somebody-elses");
  root_.write("checkpoint-3000");
  fs::create_symlink("checkpoint-4000", at(4000));
  fs::create_directories(at(5000));
  EXPECT_EQ(folder_.steps(), (std::vector<int64_t>{999, 1000}));
  EXPECT_EQ(find_auto(), at(1000));
  EXPECT_EQ(said_, "");
  EXPECT_EQ(folder_.find(ResumeFrom("false"), false, {}), std::nullopt);
  EXPECT_EQ(folder_.find(ResumeFrom(at(999).string() + "/"), false, {}), at(999)) << "a slash at the end";
  EXPECT_THROW(folder_.find(ResumeFrom(at(5).string()), false, {}), UserError);
  EXPECT_EQ(CheckpointFolder(root_ / "none").find(ResumeFrom("auto"), false, {}), std::nullopt);
}

TEST_F(CheckpointFolders, ADamagedOneIsPassedOverRenamedAndNeverDeleted) {
  write(2);
  write(4);
  write(6);
  root_.write("checkpoint-6/config.json", "[]");
  root_.write("checkpoint-4/training_state.safetensors", "cut");
  EXPECT_EQ(find_auto(), at(2));
  EXPECT_THAT(said_, HasSubstr("checkpoint-6 is damaged and was skipped: config.json has other bytes"));
  EXPECT_THAT(said_, HasSubstr("checkpoint-4 is damaged and was skipped: training_state.safetensors has 3 bytes"));
  EXPECT_EQ(names(), (Names{"checkpoint-2", "checkpoint-4.damaged", "checkpoint-6.damaged"}));
  write(6);
  root_.write("checkpoint-6/config.json", "[]");
  find_auto();
  EXPECT_TRUE(fs::exists(root_ / "checkpoint-6.damaged-2"));
  folder_.prune({.newest = 2, .limit = 1});
  EXPECT_EQ(names().size(), 4u);
}

TEST_F(CheckpointFolders, WhereNoneIsWholeARunDoesNotBeginAnew) {
  write(2);
  fs::remove(at(2) / "model.safetensors");
  for (int i = 0; i < 2; ++i) {  // the second time it has been renamed
    try {
      find_auto();
      FAIL() << "went on";
    } catch (const UserError& error) {
      EXPECT_THAT(error.message(), HasSubstr("checkpoint-2.damaged"));
    }
  }
  const auto damaged = [&] { return folder_.find(ResumeFrom((root_ / "checkpoint-2.damaged").string()), false, {}); };
  EXPECT_THROW(damaged(), UserError);
}

TEST_F(CheckpointFolders, OneWithoutAnOptimizerIsPassedOverUnlessWeightsSuffice) {
  write(2);
  write_weights(4);
  EXPECT_EQ(find_auto(), at(2));
  EXPECT_THAT(said_, HasSubstr("checkpoint-4 was skipped: it has no optimizer state"));
  EXPECT_EQ(find_auto(true), at(4));
  EXPECT_TRUE(fs::exists(at(4)));
}

TEST_F(CheckpointFolders, AStateThatNoRunCanHaveIsDamage) {
  for (const auto& [name, value] : {std::pair{"step", -1},
                                    {"step", 3},
                                    {"optimizer_step", -5},
                                    {"optimizer_step", 7},
                                    {"first_data_step", -1},
                                    {"first_data_step", 9},
                                    {"best_step", 99},
                                    {"num_supervised_tokens", 5}}) {
    write(6);
    fs::remove(at(6) / kManifestName);  // else the checksum would report it first
    Json json = Json::parse(TestRoot::read(at(6) / "training_state.json"));
    json[name] = value;
    root_.write("checkpoint-6/training_state.json", json.dump());
    EXPECT_THAT(checkpoint_problem(at(6)), HasSubstr(std::string(name) == "step" && value == 3 ? "of step 3" : name));
  }
  for (const char* text : {"17", "[]", "null", R"({"version": 2})", ""}) {
    write(6);
    fs::remove(at(6) / kManifestName);
    root_.write("checkpoint-6/training_state.json", text);
    EXPECT_THAT(checkpoint_problem(at(6)), HasSubstr("damaged")) << text;
  }
  write(6);
  fs::remove(at(6) / kManifestName);
  Json other = Json::parse(TestRoot::read(at(6) / "training_state.json"));
  other["data"] = 3;
  root_.write("checkpoint-6/training_state.json", other.dump());
  EXPECT_THAT(checkpoint_problem(at(6)), HasSubstr("data is not an object"));
  write(6);
  fs::remove(at(6) / kManifestName);
  EXPECT_EQ(checkpoint_problem(at(6)), "") << "of an older version";
  root_.write("checkpoint-6/model.safetensors", "torn");
  EXPECT_NE(checkpoint_problem(at(6)), "");
}

TEST_F(CheckpointFolders, APipeInOneIsDamageAndNotWaitedFor) {
  write(2);
  fs::remove(at(2) / "training_state.json");
  ASSERT_EQ(mkfifo((at(2) / "training_state.json").c_str(), 0600), 0);
  EXPECT_THAT(checkpoint_problem(at(2)), HasSubstr("training_state.json is missing"));
  fs::remove(at(2) / kManifestName);
  EXPECT_NE(checkpoint_problem(at(2)), "");
}

TEST_F(CheckpointFolders, WhatAKilledRunLeftIsTidiedUpAndOthersFilesStay) {
  write(1);
  fs::create_directories(root_ / "checkpoint-2.hone-00000000.tmp");
  mark_temporary(root_ / "checkpoint-2.hone-00000000.tmp");
  write(3);
  fs::rename(at(3), root_ / "checkpoint-3.hone-00000000.old");  // killed before the new one was renamed
  write(4);
  fs::rename(at(4), root_ / "checkpoint-4.hone-00000000.old");
  root_.write("checkpoint-4.hone-00000000.old/notes.txt", "mine");
  write(4);
  write(5);
  fs::rename(at(5), root_ / "checkpoint-5.hone-00000000.deleted");
  for (const char* other : {"mine.tmp", "checkpoint-1.old", "checkpoint-1.tmp"})
    root_.write(std::string(other) + "/thesis");
  folder_.tidy();
  EXPECT_EQ(names(), (Names{"checkpoint-1", "checkpoint-1.old", "checkpoint-1.tmp", "checkpoint-3", "checkpoint-4",
                            "mine.tmp"}));
  EXPECT_EQ(TestRoot::read(at(4) / "notes.txt"), "mine");
}

TEST_F(CheckpointFolders, PruningKeepsTheBestAndTheNewest) {
  for (const int64_t step : {1, 2, 3, 4}) write(step);
  folder_.prune({.newest = 4});
  EXPECT_EQ(folder_.steps().size(), 4u);
  folder_.prune({.newest = 4, .best = 1, .limit = 2});
  EXPECT_EQ(folder_.steps(), (std::vector<int64_t>{1, 4}));
  folder_.prune({.newest = 4, .best = 1, .limit = 1});
  EXPECT_EQ(folder_.steps(), (std::vector<int64_t>{1, 4}));
  folder_.prune({.newest = 4, .limit = 0});
  EXPECT_EQ(folder_.steps(), std::vector<int64_t>{4});
}

TEST_F(CheckpointFolders, AFileOfSomebodyElseStaysWithItsFolder) {
  write(1);
  write(2);
  root_.write("checkpoint-1/notes.txt", "mine");
  root_.write("checkpoint-1/plots/loss.png", "mine");
  folder_.prune({.newest = 2, .limit = 1});
  EXPECT_EQ(TestRoot::names_in(at(1)), (Names{"notes.txt", "plots"}));
  EXPECT_EQ(folder_.steps(), std::vector<int64_t>{2});
  root_.write("checkpoint-2/notes.txt", "mine");
  write(2);
  EXPECT_EQ(TestRoot::read(at(2) / "notes.txt"), "mine");
  EXPECT_EQ(checkpoint_problem(at(2)), "");
}

TEST_F(CheckpointFolders, PruningSparesMajorOnes) {
  for (const int64_t step : {10, 15, 20, 25, 30, 35}) write(step);
  folder_.prune({.newest = 35, .limit = 1, .major = 10});
  EXPECT_EQ(folder_.steps(), (std::vector<int64_t>{10, 20, 30, 35}));
}

TEST_F(CheckpointFolders, ARunThatWentBackNamesWhatItDropsAndIsNewerThanWhatItKeeps) {
  for (const int64_t step : {4, 8, 10, 12}) write(step);
  RunState state;
  state.branch = folder_.branch_from(4, 0);
  EXPECT_EQ(state.branch, 1);
  write(6, state);
  EXPECT_THAT(folder_.prune({.newest = 6, .best = 4, .limit = 2, .major = 4}), ElementsAre("checkpoint-10"));
  EXPECT_EQ(folder_.steps(), (std::vector<int64_t>{4, 6, 8, 12}));
  EXPECT_EQ(find_auto(), at(6)) << "not 12, which the run had left behind";
  EXPECT_EQ(folder_.branch_from(6, 1), 2) << "12 is still there";
  EXPECT_EQ(folder_.branch_from(12, 0), 0);
}

TEST_F(CheckpointFolders, WhatIsNoCheckpointIsNotReplaced) {
  root_.write("checkpoint-4/optimizer.pt", "of another program");
  EXPECT_THROW(folder_.require_free_names(4), UserError);
  EXPECT_NO_THROW(folder_.require_free_names(3));
  EXPECT_THROW(write(4), UserError);
  EXPECT_EQ(names(), Names{"checkpoint-4"});
  root_.write("victim", "precious");
  fs::create_symlink(root_ / "victim", at(2));
  write(2);
  EXPECT_EQ(TestRoot::read(root_ / "victim"), "precious");
  EXPECT_EQ(checkpoint_problem(at(2)), "");
}

TEST_F(CheckpointFolders, TheBestIsTheOneThatTheNewestKnows) {
  write(2);
  write(3);
  EXPECT_THROW(folder_.find(ResumeFrom("best"), false, {}), UserError) << "nothing was evaluated";
  RunState state;
  state.best_step = 2;
  write(4, state);
  EXPECT_EQ(folder_.find(ResumeFrom("best"), false, {}), at(2));
  fs::remove_all(at(2));
  EXPECT_THROW(folder_.find(ResumeFrom("best"), false, {}), UserError) << "deleted";
}

}  // namespace
}  // namespace hone
