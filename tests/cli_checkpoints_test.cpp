// Tests of evaluation, saving, early stopping and resuming through the command line.
#include <cmath>

#include "device_main.h"
#include "program.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

/// Training and evaluation data are unrelated, so the evaluation loss rises from the first steps on.
class Checkpoints : public ::testing::Test {
 protected:
  Outcome train(const std::string& output, std::vector<std::string> options, bool overfits = true) const {
    if (overfits) options.insert(options.end(), {"eval_datasets=" + noise_, "learning_rate=1e-2"});
    return run_hone(train_arguments(model_, data_, folder_ / output, options));
  }
  std::vector<int64_t> checkpoints(const std::string& output) const {
    std::vector<int64_t> steps;
    for (const std::string& name : names_in(folder_ / output)) {
      if (name.starts_with("checkpoint-")) steps.push_back(std::stoll(name.substr(11)));
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }
  std::vector<Json> lines(const std::string& output, const std::string& with) const {
    std::vector<Json> found;
    for (const Json& line : read_json_lines(folder_ / output / "metrics.jsonl")) {
      if (line.contains(with)) found.push_back(line);
    }
    return found;
  }
  int64_t best_step(const std::string& output) const {
    double best = INFINITY;
    int64_t step = 0;
    for (const Json& line : lines(output, "eval_loss")) {
      if (line["eval_loss"] < best) best = line["eval_loss"], step = line["step"];
    }
    return step;
  }
  void expect_same_file(const std::string& a, const std::string& b) const {
    EXPECT_TRUE(read_file(folder_ / a) == read_file(folder_ / b)) << a << " and " << b << " differ";
  }

  Folder folder_;
  std::string model_ = make_model(folder_), data_ = folder_.write("data.jsonl", progressions(40)),
              noise_ = folder_.write("noise.jsonl", random_tokens(20));
};

TEST_F(Checkpoints, EarlyStoppingEndsTheRunAndSavesTheBestModel) {
  const std::vector<std::string> options = {
      "max_steps=200",     "eval_steps=2", "save_steps=100", "early_stopping_patience=3", "load_best_model_at_end=true",
      "save_total_limit=1"};
  const Outcome outcome = train("out", options);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("no better eval_loss in 3 evaluations"), std::string::npos) << outcome.out;
  const int64_t best = best_step("out"), last = lines("out", "loss").back()["step"];
  EXPECT_EQ(last, best + 6);
  EXPECT_EQ(checkpoints("out"), (std::vector<int64_t>{best, last}));
  expect_same_file("out/model.safetensors", "out/checkpoint-" + std::to_string(best) + "/model.safetensors");
  // Resuming stops again; with more patience it continues.
  std::vector<std::string> again = options;
  again.push_back("resume=auto");
  ASSERT_EQ(train("out", again).code, 0);
  EXPECT_EQ(lines("out", "loss").back()["step"], last);
  expect_same_file("out/model.safetensors", "out/checkpoint-" + std::to_string(best) + "/model.safetensors");
  again[3] = "early_stopping_patience=4";
  ASSERT_EQ(train("out", again).code, 0);
  EXPECT_EQ(lines("out", "loss").back()["step"], last + 2);
}

TEST_F(Checkpoints, AStopThatIsResumedCountsOn) {
  const std::vector<std::string> options = {"eval_steps=2", "save_steps=2", "early_stopping_patience=4",
                                            "early_stopping_threshold=0.5"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), options.begin(), options.end());
    return more;
  };
  // No evaluation improves on the first one by 0.5 nats.
  ASSERT_EQ(train("whole", with({"max_steps=100"})).code, 0);
  ASSERT_EQ(lines("whole", "loss").back()["step"], 10);
  ASSERT_EQ(train("parts", with({"max_steps=6", "lr_scheduler_type=constant"})).code, 0);
  ASSERT_EQ(train("parts", with({"max_steps=100", "resume=auto"})).code, 0);
  EXPECT_EQ(lines("parts", "loss").back()["step"], 10);
  expect_same_file("whole/checkpoint-10/training_state.json", "parts/checkpoint-10/training_state.json");
  expect_same_file("whole/model.safetensors", "parts/model.safetensors");
}

TEST_F(Checkpoints, OnlyTheBestAreSavedIfThatIsTheStrategy) {
  const Outcome outcome = train("out", {"max_steps=12", "eval_steps=2", "save_strategy=best", "save_total_limit=1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(checkpoints("out"), std::vector<int64_t>{best_step("out")});
  ASSERT_LT(best_step("out"), 12);
}

TEST_F(Checkpoints, SoManyAnEpochAndMajorOnesForEver) {
  // 40 rows: an epoch has 5 steps.
  const Outcome outcome = train("out", {"num_train_epochs=2", "packing=false", "evals_per_epoch=1", "saves_per_epoch=2",
                                        "save_total_limit=1", "save_major_steps=4", "eval_datasets=" + noise_});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::vector<int64_t> evaluated;
  for (const Json& line : lines("out", "eval_loss")) evaluated.push_back(line["step"]);
  const int64_t steps = lines("out", "loss").back()["step"];
  EXPECT_EQ(steps, 20);
  EXPECT_EQ(evaluated, (std::vector<int64_t>{10, 20}));
  const std::vector<int64_t> kept = checkpoints("out");
  for (const int64_t major : {4, 8, 12, 16, 20}) EXPECT_TRUE(std::count(kept.begin(), kept.end(), major)) << major;
  EXPECT_FALSE(std::count(kept.begin(), kept.end(), 15)) << "one of the two an epoch, and pruned";
  EXPECT_NE(read_file(folder_ / "out/config.resolved.yaml").find("save_steps: 5"), std::string::npos);
}

TEST_F(Checkpoints, TheBestOneIsResumedFromAndWhatCameAfterItGoes) {
  const std::vector<std::string> options = {"max_steps=12", "eval_steps=2", "save_steps=2", "save_total_limit=null"};
  ASSERT_EQ(train("out", options).code, 0);
  const int64_t best = best_step("out");
  ASSERT_LT(best, 10);
  std::vector<std::string> more = options;
  more[0] = "max_steps=" + std::to_string(best + 2);
  more.push_back("load_best=true");
  const Outcome outcome = train("out", more);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("at step " + std::to_string(best)), std::string::npos) << outcome.out;
  EXPECT_EQ(checkpoints("out").back(), best + 2);
  const Outcome none = train("fresh", {"resume=best"});
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("there is no best checkpoint to resume from"), std::string::npos) << none.err;
}

TEST_F(Checkpoints, WeightsAloneAreTakenWithOrWithoutTheirPosition) {
  ASSERT_EQ(train("out", {"max_steps=4", "save_only_model=true"}, false).code, 0);
  const std::string checkpoint = (folder_ / "out/checkpoint-4").string();
  const Outcome refused = train("a", {"max_steps=6", "resume=" + checkpoint}, false);
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("resume_only_model=true loads its weights"), std::string::npos) << refused.err;
  ASSERT_EQ(train("b", {"max_steps=6", "resume=" + checkpoint, "resume_only_model=true"}, false).code, 0);
  EXPECT_EQ(lines("b", "loss").front()["step"], 1);
  // With a training state the run continues at its position; otherwise it starts from these weights.
  ASSERT_EQ(train("full", {"max_steps=4"}, false).code, 0);
  const std::string full = (folder_ / "full/checkpoint-4").string();
  ASSERT_EQ(train("c", {"max_steps=6", "resume=" + full, "resume_only_model=true"}, false).code, 0);
  EXPECT_EQ(lines("c", "loss").front()["step"], 5);
  ASSERT_EQ(
      train("d", {"max_steps=6", "resume=" + full, "resume_only_model=true", "ignore_data_skip=true"}, false).code, 0);
  ASSERT_EQ(run_hone(train_arguments(full, data_, folder_ / "e", {"max_steps=6"})).code, 0);
  expect_same_file("d/model.safetensors", "e/model.safetensors");
}

TEST_F(Checkpoints, OtherDataBeginFromTheirStartAndAreResumedThere) {
  ASSERT_EQ(train("out", {"max_steps=4"}, false).code, 0);
  const std::string other = folder_.write("other.jsonl", progressions(60, 5));
  const auto go_on = [&](const std::string& output, std::vector<std::string> options) {
    return run_hone(train_arguments(model_, other, folder_ / output, options));
  };
  const std::string from = "resume=" + (folder_ / "out/checkpoint-4").string();
  EXPECT_EQ(go_on("a", {"max_steps=8", from}).code, 2);
  ASSERT_EQ(go_on("a", {"max_steps=8", from, "ignore_data_skip=true"}).code, 0);
  ASSERT_EQ(go_on("b", {"max_steps=6", from, "ignore_data_skip=true"}).code, 0);
  ASSERT_EQ(go_on("b", {"max_steps=8", "resume=auto"}).code, 0);
  expect_same_file("a/model.safetensors", "b/model.safetensors");
}

TEST_F(Checkpoints, WhatIsOffloadedIsTrainedSavedAndResumedToTheSameBits) {
  const std::vector<std::string> full = {"max_steps=6", "eval_steps=3", "save_steps=3"};
  const std::vector<std::string> lora = {"max_steps=6", "save_steps=3", "finetuning_type=lora",
                                         "gradient_checkpointing=true"};
  const std::vector<std::string> dora = {"max_steps=6", "save_steps=3", "use_dora=true",
                                         "lora_target_modules=attention"};
  const std::string offload = "cpu_offload=[optimizer, params, activations]";
  const auto with = [](std::vector<std::string> options, const std::vector<std::string>& more) {
    options.insert(options.end(), more.begin(), more.end());
    return options;
  };
  for (const auto& [name, options, file] : {std::tuple{std::string("full"), full, "/model.safetensors"},
                                            {std::string("lora"), lora, "/adapter_model.safetensors"},
                                            {std::string("dora"), dora, "/adapter_model.safetensors"}}) {
    ASSERT_EQ(train(name, options).code, 0);
    const std::vector<std::string> offloaded = with(options, {offload, "stage3_param_persistence_threshold=0"});
    const Outcome outcome = train(name + "_offloaded", offloaded);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE((outcome.out + outcome.err).find("cpu_offload saves nothing on a CPU"), std::string::npos) << outcome.out;
    expect_same_file(name + file, name + "_offloaded" + file);
    EXPECT_EQ(lines(name, "loss").back()["loss"], lines(name + "_offloaded", "loss").back()["loss"]);
    // A checkpoint does not record the devices of its tensors.
    const std::string from = (folder_ / (name + "/checkpoint-3")).string();
    ASSERT_EQ(train(name + "_resumed", with(offloaded, {"resume=" + from})).code, 0);
    expect_same_file(name + file, name + "_resumed" + file);
  }
}

}  // namespace
}  // namespace hone
