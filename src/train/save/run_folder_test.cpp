#include "train/save/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/files/root_testing.h"
#include "report/console.h"
#include "train/save/checkpoint_folder.h"
#include "train/save/training_state.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using Names = std::vector<std::string>;
using testing::TestRoot;

class RunFolders : public ::testing::Test {
 protected:
  RunFolders() {
    for (const char* name : {"model/config.json", "model/model.safetensors", "model/vocab.txt"}) root_.write(name);
    config_.model.model_name_or_path = (root_ / "model").string();
    config_.data.datasets.push_back(
        {.path = root_.write("data.jsonl").string(), .type = "auto", .samples = {}, .name = ""});
    config_.report.output_dir = output_.string();
  }
  /// Writes the results of a run of Hone, and files of other programs next to them.
  void earlier_run() {
    for (const char* name :
         {"metrics.jsonl", "run.log", "config.resolved.yaml", "model.safetensors", "trainer_state.json",
          "runs/events.out.tfevents.1700000000.host", "merged/model.safetensors", "merged/config.json"})
      root_.write(std::string("out/") + name, "old");
    CheckpointFolder(output_).write(4, [](const fs::path& temporary, FileChecksums&) {
      save_training_state(temporary, ParameterStore(), {.step = 4});
    });
    for (const char* name :
         {"notes.txt", "data/x.jsonl", "runs/events.out.tfevents.1700000000.host.4711.0", "runs/mine",
          "merged/README.md", "checkpoint-of-my-thesis/chapter", "checkpoint-9/of-another-program"})
      root_.write(std::string("out/") + name, "mine");
  }
  std::vector<std::string> files(const fs::path& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file() && entry.path().filename() != kLockName)
        names.push_back(fs::relative(entry.path(), folder));
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string refused() const {
    try {
      check_inputs_stay(config_);
    } catch (const UserError& error) {
      return error.message() + " " + error.where();
    }
    return "";
  }

  TestRoot root_;
  const fs::path output_ = root_ / "out";
  RunConfig config_;
  Console console_{Terminal{.fd = -1, .seen = false}};
  Logger logger_{console_, LogLevel::kOff};
};

const Names kOthers = {"checkpoint-9/of-another-program",
                       "checkpoint-of-my-thesis/chapter",
                       "data/x.jsonl",
                       "merged/README.md",
                       "notes.txt",
                       "run.log",
                       "runs/events.out.tfevents.1700000000.host.4711.0",
                       "runs/mine"};

TEST_F(RunFolders, EarlierResultsWaitUntilNewOnesStandAndOthersFilesStay) {
  earlier_run();
  const Names before = files(output_);
  {
    RunFolder folder(output_, logger_);
    folder.set_aside();
    Names here = files(output_);
    std::erase_if(here, [](const std::string& name) { return name.starts_with("replaced.hone-"); });
    EXPECT_EQ(here, kOthers);
    root_.write("out/metrics.jsonl", "new");
  }
  EXPECT_EQ(files(output_), before) << "the run failed before its first checkpoint";
  EXPECT_EQ(TestRoot::read(output_ / "metrics.jsonl"), "old");
  {
    RunFolder folder(output_, logger_);
    folder.set_aside();
    root_.write("out/metrics.jsonl", "new");
    folder.keep_new();
  }
  Names after = kOthers;
  after.insert(std::find(after.begin(), after.end(), "notes.txt"), "metrics.jsonl");
  EXPECT_EQ(files(output_), after);
}

/// Leaves the state of a killed run: no destructor runs.
void leave(const fs::path& output, const char* ending) {
  const fs::path aside = output / (std::string("replaced.hone-01234567.") + ending);
  fs::create_directories(aside);
  mark_temporary(aside);
  for (const char* name : {"metrics.jsonl", "checkpoint-4"}) fs::rename(output / name, aside / name);
}

TEST_F(RunFolders, AKilledRunsNextStartPutsBackOrDeletesWhatWaited) {
  earlier_run();
  const Names before = files(output_);
  for (const char* ending : {"old", "moving"}) {
    leave(output_, ending);
    fs::remove(output_ / "model.safetensors");
    root_.write("out/metrics.jsonl", "new");
    { const RunFolder folder(output_, logger_); }
    root_.write("out/model.safetensors", "old");
    EXPECT_EQ(files(output_), before) << ending;
    EXPECT_EQ(TestRoot::read(output_ / "metrics.jsonl"), "old");
  }
  leave(output_, "moving");  // killed while moving aside: the remaining model is an old one, too
  { const RunFolder folder(output_, logger_); }
  EXPECT_EQ(files(output_), before);
  leave(output_, "old");
  root_.write("out/metrics.jsonl", "new");
  { const RunFolder folder(output_, logger_); }  // there is a model, so it is the new run's
  EXPECT_EQ(TestRoot::read(output_ / "metrics.jsonl"), "new");
  EXPECT_FALSE(fs::exists(output_ / "checkpoint-4"));
}

TEST_F(RunFolders, OneRunWritesAndAFolderThatHoldsOnlyLogsIsEmpty) {
  EXPECT_NO_THROW(check_output_dir(config_));
  const RunFolder folder(output_, logger_);
  EXPECT_THROW(RunFolder(output_, logger_), UserError);
  root_.write("out/run.log");
  root_.write("out/logs/rank_0.log");
  EXPECT_NO_THROW(check_output_dir(config_));
  root_.write("out/notes.txt");
  EXPECT_THROW(check_output_dir(config_), UserError);
  config_.checkpoint.resume_from_checkpoint = ResumeFrom("auto");
  EXPECT_NO_THROW(check_output_dir(config_));
  root_.write("out/model.safetensors");
  EXPECT_THROW(check_output_dir(config_), UserError) << "somebody else's model";
  root_.write("out/training_info.json");
  EXPECT_NO_THROW(check_output_dir(config_));
}

TEST_F(RunFolders, WhatIsReadIsNeverWrittenOver) {
  EXPECT_EQ(refused(), "");
  earlier_run();
  config_.data.datasets[0].path = output_ / "data/x.jsonl";
  config_.checkpoint.overwrite_output_dir = true;
  EXPECT_EQ(refused(), "") << "nothing touches it";
  for (const char* data : {"metrics.jsonl", "runs/events.out.tfevents.1700000000.host", "merged/config.json",
                           "checkpoint-4/training_state.json"}) {
    config_.data.datasets[0].path = output_ / data;
    EXPECT_THAT(refused(), HasSubstr("the data set would be written over")) << data;
  }
  fs::create_hard_link(output_ / "metrics.jsonl", root_ / "hard.jsonl");
  config_.data.datasets[0].path = root_ / "hard.jsonl";
  EXPECT_THAT(refused(), HasSubstr("metrics.jsonl"));
  config_.data.datasets[0].path = root_.write("out/vocab.txt");
  EXPECT_THAT(refused(), HasSubstr("vocab.txt")) << "the model's file of that name is copied there";
  config_.data.datasets[0].path = root_ / "data.jsonl";
  config_.model.model_name_or_path = output_ / "checkpoint-4";
  EXPECT_THAT(refused(), HasSubstr("the model would be written over"));
  config_.model.model_name_or_path = output_;
  EXPECT_THAT(refused(), HasSubstr("the model would be written over"));
  config_.model.model_name_or_path = root_ / "model";
  config_.report.output_dir = root_ / "model/run1";
  EXPECT_THAT(refused(), HasSubstr("the model would be written over"));
}

TEST_F(RunFolders, AMergedModelIsApartFromWhatIsRead) {
  config_.model.finetuning_type = FinetuningType::kLora;
  config_.checkpoint.merge_after_training = true;
  EXPECT_EQ(refused(), "");
  config_.checkpoint.export_dir = root_ / "model";
  EXPECT_THAT(refused(), HasSubstr("the model would be written over"));
  config_.checkpoint.export_dir = root_.path();
  EXPECT_THAT(refused(), HasSubstr("would be written over"));
}

TEST_F(RunFolders, TooLittleSpaceIsSaidWithWhatWaits) {
  earlier_run();
  const RunFolder folder(output_, logger_);
  EXPECT_NO_THROW(folder.require_space(1000, true));
  try {
    folder.require_space(int64_t{1} << 60, true);
    FAIL() << "no disk has that";
  } catch (const UserError& error) {
    EXPECT_THAT(error.message(), HasSubstr("in addition to the earlier results"));
  }
}

}  // namespace
}  // namespace hone
