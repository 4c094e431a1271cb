// Tests of the output folder: what a run may write there, and how it treats earlier results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "device_main.h"
#include "program.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class OutputFolder : public ::testing::Test {
 protected:
  OutputFolder() : model_(make_model(folder_)), data_(folder_.write("data.jsonl", progressions(24))) {}

  std::vector<std::string> arguments(const std::vector<std::string>& more) const {
    std::vector<std::string> own = {"max_steps=4", "save_steps=2", "eval_strategy=no"};
    own.insert(own.end(), more.begin(), more.end());
    return train_arguments(model_, data_, out_, own);
  }
  Outcome train(const std::vector<std::string>& more = {}) const { return run_hone(arguments(more)); }
  void flip_a_bit(const fs::path& file) const {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(-9, std::ios::end);
    const char byte = static_cast<char>(bytes.get() ^ 0x40);
    bytes.seekp(-9, std::ios::end);
    bytes.put(byte);
  }

  Folder folder_;
  const std::string model_, data_;
  const fs::path out_ = folder_ / "out";
};

TEST_F(OutputFolder, OneRunWritesAndAnotherIsRefusedWithItsName) {
  const Process first(arguments({"max_steps=100000", "save_steps=100000"}));
  for (int i = 0; i < 400 && !fs::exists(out_ / "metrics.jsonl"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  const std::string log = read_file(out_ / "run.log");
  const Outcome second = train({"resume=auto"});
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(second.err, HasSubstr("another run writes to this folder: "));
  EXPECT_THAT(second.err, HasSubstr("pid "));
  EXPECT_EQ(read_file(out_ / "run.log").substr(0, log.size()), log);
}

TEST_F(OutputFolder, ADamagedCheckpointIsPassedOverInTheSameStart) {
  ASSERT_EQ(train().code, 0);
  ASSERT_EQ(
      run_hone(train_arguments(model_, data_, folder_ / "whole", {"max_steps=8", "save_steps=2", "eval_strategy=no"}))
          .code,
      0);
  flip_a_bit(out_ / "checkpoint-4/training_state.safetensors");
  const Outcome resumed = train({"resume=auto", "max_steps=8"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out + resumed.err,
              HasSubstr("checkpoint-4 is damaged and was skipped: training_state.safetensors"));
  EXPECT_THAT(resumed.out + resumed.err, HasSubstr("at step 2"));
  EXPECT_THAT(names_in(out_), Contains("checkpoint-4.damaged"));
  EXPECT_TRUE(read_file(out_ / "model.safetensors") == read_file(folder_ / "whole/model.safetensors"));
  flip_a_bit(out_ / "checkpoint-8/model.safetensors");
  const Outcome named = train({"resume=" + (out_ / "checkpoint-8").string(), "max_steps=8"});
  EXPECT_EQ(named.code, 2);
  EXPECT_THAT(named.err, HasSubstr("the checkpoint is damaged: model.safetensors has other bytes"));
  EXPECT_THAT(names_in(out_), Contains("checkpoint-8"));
}

TEST_F(OutputFolder, EarlierResultsComeBackWhereTheNewRunFailsFirst) {
  ASSERT_EQ(train().code, 0);
  std::ofstream(out_ / "notes.txt") << "mine";
  const std::string before = read_file(out_ / "model.safetensors"), metrics = read_file(out_ / "metrics.jsonl");
  const Outcome lost = train({"overwrite_output_dir=true", "learning_rate=3e38", "weight_decay=1e5", "max_steps=1"});
  EXPECT_EQ(lost.code, 3) << lost.out << lost.err;
  EXPECT_TRUE(read_file(out_ / "model.safetensors") == before);
  EXPECT_TRUE(read_file(out_ / "metrics.jsonl") == metrics);
  EXPECT_THAT(names_in(out_), Contains("checkpoint-4"));
  EXPECT_THAT(read_file(out_ / "run.log"), HasSubstr("ERROR"));
  ASSERT_EQ(train({"overwrite_output_dir=true", "max_steps=2"}).code, 0);
  EXPECT_THAT(names_in(out_), Not(Contains("checkpoint-4")));
  EXPECT_EQ(read_file(out_ / "notes.txt"), "mine");
  EXPECT_THAT(names_in(out_), Not(Contains(HasSubstr(".hone-"))));
}

TEST_F(OutputFolder, TheCorrectedCommandRunsWhereARefusedOneLeftALog) {
  const std::string data = folder_.write("broken.jsonl", "{\"input_ids\": [1, 2, 999999]}\n");
  const Outcome refused = train({"datasets=" + data});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(read_file(out_ / "run.log"), HasSubstr("ERROR"));
  EXPECT_EQ(train().code, 0);
}

TEST_F(OutputFolder, WhatIsReadStays) {
  const std::string before = read_file(fs::path(model_) / "model.safetensors");
  const Outcome own = run_hone(train_arguments(model_, data_, model_, {"overwrite_output_dir=true"}));
  EXPECT_EQ(own.code, 2);
  EXPECT_THAT(own.err, HasSubstr("the model would be written over"));
  ASSERT_EQ(train().code, 0);
  const Outcome source =
      run_hone(train_arguments((out_ / "checkpoint-4").string(), data_, out_, {"overwrite_output_dir=true"}));
  EXPECT_EQ(source.code, 2);
  EXPECT_THAT(names_in(out_), Contains("checkpoint-4"));
  const Outcome merged =
      train({"finetuning_type=lora", "lora_target_modules=[attention]", "resume=auto", "merge_after_training=true",
             "export_dir=" + model_, "output_dir=" + (folder_ / "lora").string()});
  EXPECT_EQ(merged.code, 2);
  EXPECT_TRUE(read_file(fs::path(model_) / "model.safetensors") == before);
}

TEST_F(OutputFolder, ASignalOfABatchSystemSavesAndStops) {
  for (const int signal : {SIGUSR1, SIGHUP}) {
    fs::remove_all(out_);
    Process run(arguments({"max_steps=100000", "save_steps=100000"}));
    for (int i = 0; i < 400 && !fs::exists(out_ / "metrics.jsonl"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
    run.send(signal);
    const Outcome outcome = run.wait();
    EXPECT_EQ(outcome.code, 75) << outcome.err;
    EXPECT_THAT(names_in(out_), Contains(HasSubstr("checkpoint-")));
    EXPECT_THAT(names_in(out_), Not(Contains(".hone.lock")));
  }
}

TEST_F(OutputFolder, EvaluationsSaveWhatIsAskedFor) {
  const std::vector<std::string> evaluating = {"eval_strategy=steps", "eval_steps=1", "val_split=4", "save_steps=4",
                                               "max_steps=6"};
  const auto with = [&](std::vector<std::string> more) {
    fs::remove_all(out_);
    more.insert(more.begin(), evaluating.begin(), evaluating.end());
    return train(more);
  };
  ASSERT_EQ(with({}).code, 0);
  EXPECT_THAT(names_in(out_), Not(Contains("checkpoint-1")));
  EXPECT_THAT(names_in(out_), Contains("checkpoint-4"));
  ASSERT_EQ(with({"load_best_model_at_end=true", "max_steps=3", "save_steps=100", "metric_for_best_model=eval_loss",
                  "greater_is_better=true"})
                .code,
            0);
  // The loss falls, so by this measure the first evaluation remains the best; only its weights are kept.
  EXPECT_TRUE(fs::exists(out_ / "checkpoint-1/best_weights.json"));
  EXPECT_FALSE(fs::exists(out_ / "checkpoint-1/training_state.json"));
  EXPECT_TRUE(read_file(out_ / "model.safetensors") == read_file(out_ / "checkpoint-1/model.safetensors"));
  const Outcome best = train({"resume=best", "max_steps=3", "eval_strategy=steps", "eval_steps=1", "val_split=4"});
  EXPECT_EQ(best.code, 2);
  EXPECT_THAT(best.err, HasSubstr("save_strategy: best"));
  ASSERT_EQ(with({"save_strategy=best"}).code, 0);

  EXPECT_TRUE(fs::exists(
      fs::path(Json::parse(read_file(out_ / "trainer_state.json"))["best_model_checkpoint"].get<std::string>()) /
      "training_state.json"));
}

}  // namespace
}  // namespace hone
