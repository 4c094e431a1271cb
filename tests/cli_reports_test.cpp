// What a run through the command line says of itself: losses of each data set, experts, answers, training_info.json;
// and the merged model it ends with.
#include <cmath>

#include "device_main.h"
#include "program.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

class Reports : public ::testing::Test {
 protected:
  Outcome train(const std::string& output, std::vector<std::string> options) const {
    return run_hone(train_arguments(model_, easy_, folder_ / output, options));
  }
  double eval_loss(const std::string& data, const std::string& model) const {
    const Outcome outcome = run_hone({"eval", "model=" + model, "datasets=" + data, "dtype=float32", "max_length=32",
                                      "device=" + test_run().device, "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out)["eval_loss"].get<double>() : NAN;
  }
  std::vector<Json> lines(const std::string& output, const std::string& with) const {
    std::vector<Json> found;
    for (const Json& line : read_json_lines(folder_ / output / "metrics.jsonl")) {
      if (line.contains(with)) found.push_back(line);
    }
    return found;
  }

  Folder folder_;
  std::string model_ = make_model(folder_), easy_ = folder_.write("easy.jsonl", progressions(12)),
              hard_ = folder_.write("hard.jsonl", random_tokens(12));
};

TEST_F(Reports, EveryDataSetHasItsLossInTrainingAndInEvaluation) {
  const std::vector<std::string> options = {"datasets=[" + easy_ + "," + hard_ + "]",
                                            "eval_datasets=[" + easy_ + "," + hard_ + "]",
                                            "dtype=float32",
                                            "per_device_train_batch_size=16",
                                            "gradient_accumulation_steps=1",
                                            "max_steps=1",
                                            "eval_on_start=true"};
  const Outcome outcome = train("out", options);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const double easy = eval_loss(easy_, model_), hard = eval_loss(hard_, model_);
  // The only step has all samples, and the model's own weights; sums of float32 losses in other orders.
  const Json step = lines("out", "loss").front(), evaluation = lines("out", "eval_loss").front();
  EXPECT_NEAR(step["loss/easy"].get<double>(), easy, 1e-5);
  EXPECT_NEAR(step["loss/hard"].get<double>(), hard, 1e-5);
  EXPECT_NEAR(evaluation["eval_easy_loss"].get<double>(), easy, 1e-5);
  EXPECT_NEAR(evaluation["eval_hard_loss"].get<double>(), hard, 1e-5);
  EXPECT_GT(std::abs(easy - hard), 1e-3) << "or the test could not tell them apart";
  ASSERT_EQ(train("one", {"max_steps=1", "val_split=2"}).code, 0);
  EXPECT_FALSE(lines("one", "loss").front().contains("loss/easy")) << "one data set is the loss itself";
}

TEST_F(Reports, LossesOfDataSetsAddUpOverMicroBatches) {
  const std::string both = "datasets=[" + easy_ + "," + hard_ + "]";
  ASSERT_EQ(train("one", {both, "per_device_train_batch_size=16", "gradient_accumulation_steps=1", "max_steps=1",
                          "dtype=float32"})
                .code,
            0);
  ASSERT_EQ(train("many", {both, "per_device_train_batch_size=1", "gradient_accumulation_steps=64", "max_steps=1",
                           "dtype=float32"})
                .code,
            0);
  const Json one = lines("one", "loss").front(), many = lines("many", "loss").front();
  for (const char* name : {"loss", "loss/easy", "loss/hard"})
    EXPECT_NEAR(one[name].get<double>(), many[name].get<double>(), 1e-5) << name;
}

TEST_F(Reports, TheLoadOfExpertsIsDrawnAndWrittenByLayer) {
  const Outcome outcome =
      train("out", {"moe_log_expert_load=true", "max_steps=4", "val_split=2", "eval_steps=2", "logging_steps=2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("expert utilization"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("layer 1"), std::string::npos) << outcome.out;
  const Json step = lines("out", "loss").back();
  double mean = 0;
  for (const char* layer : {"0", "1"}) {
    const std::string name = std::string("router/layer_") + layer + "/";
    for (const char* metric : {"load_max_over_mean", "effective_experts", "entropy", "dead_experts"})
      EXPECT_TRUE(step.contains(name + metric)) << name << metric;
    const double effective = step[name + "effective_experts"];
    EXPECT_GE(effective, 2 - 1e-9) << "two experts a token";
    EXPECT_LE(effective, 4 + 1e-9);
    mean += step[name + "load_max_over_mean"].get<double>() / 2;
  }
  EXPECT_NEAR(step["router/load_max_over_mean"].get<double>(), mean, 1e-9);
  ASSERT_EQ(train("off", {"max_steps=1"}).code, 0);
  EXPECT_FALSE(lines("off", "loss").front().contains("router/layer_0/entropy"));
}

TEST_F(Reports, ARunWhoseRoutersCollapseSaysSoAndGoesOn) {
  // An enormous rate for routers that nothing balances.
  const Outcome outcome =
      train("out", {"freeze_parameters=[\"*norm*\",\"*proj*\",\"*embed*\",\"*lm_head*\"]", "max_steps=60",
                    "router_aux_loss_coef=0", "learning_rate=3", "max_grad_norm=0"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(lines("out", "loss").size(), 60u);
  const std::string all = outcome.out + outcome.err;
  EXPECT_NE(all.find("routers: "), std::string::npos) << all;
  EXPECT_NE(all.find("set router_aux_loss_coef: 0.001"), std::string::npos) << all;
}

TEST_F(Reports, SamplesAreAnsweredAtEvaluationsAndAfterAResumeOnce) {
  const std::vector<std::string> options = {
      "generate_samples=true", "num_generation_samples=2", "generation.max_new_tokens=5", "val_split=3", "eval_steps=2",
      "save_steps=2"};
  const auto run = [&](const std::string& output, std::vector<std::string> more) {
    more.insert(more.end(), options.begin(), options.end());
    return train(output, more);
  };
  const Outcome whole = run("whole", {"max_steps=4"});
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_NE(whole.out.find("generated"), std::string::npos) << whole.out;
  const std::vector<Json> rows = read_json_lines(folder_ / "whole/generations.jsonl");
  ASSERT_EQ(rows.size(), 4u);
  for (const Json& row : rows) {
    EXPECT_EQ(row["generated_tokens"], 5);
    EXPECT_FALSE(row["prompt"].get<std::string>().empty());
    EXPECT_FALSE(row["expected"].get<std::string>().empty());
  }
  EXPECT_EQ(rows.back()["step"], 4);
  EXPECT_EQ(lines("whole", "eval_loss").back()["generation/tokens"], 5);
  ASSERT_EQ(run("parts", {"max_steps=2"}).code, 0);
  ASSERT_EQ(run("parts", {"max_steps=4", "resume=auto"}).code, 0);
  EXPECT_EQ(read_file(folder_ / "whole/generations.jsonl"), read_file(folder_ / "parts/generations.jsonl"));
  EXPECT_EQ(read_file(folder_ / "whole/model.safetensors"), read_file(folder_ / "parts/model.safetensors"));
  EXPECT_EQ(train("refused", {"generate_samples=true"}).code, 2);
}

TEST_F(Reports, TrainingInfoHasItsSections) {
  ASSERT_EQ(train("out", {"finetuning_type=lora", "lora_r=4", "max_steps=3", "val_split=2"}).code, 0);
  const Json info = Json::parse(read_file(folder_ / "out/training_info.json"));
  for (const char* section :
       {"metadata", "model", "lora", "training", "dataset", "hardware", "moe", "metrics", "versions"})
    ASSERT_TRUE(info[section].is_object()) << section;
  EXPECT_EQ(info["metadata"]["status"], "completed");
  EXPECT_EQ(info["lora"]["lora_r"], 4);
  EXPECT_EQ(info["metrics"]["global_step"], 3);
  EXPECT_NEAR(info["metrics"]["loss"].get<double>(), lines("out", "loss").back()["loss"].get<double>(), 1e-12);
  EXPECT_EQ(info["moe"]["num_experts"], 4);
  EXPECT_GT(info["model"]["trainable_parameters"].get<int64_t>(), 0);
  EXPECT_LT(info["model"]["trainable_percent"].get<double>(), 100);
  EXPECT_EQ(info["dataset"]["eval_samples"], 2);
  ASSERT_EQ(train("full", {"max_steps=1"}).code, 0);
  EXPECT_TRUE(Json::parse(read_file(folder_ / "full/training_info.json"))["lora"].is_null());
}

TEST_F(Reports, TheAdapterIsMergedAfterTrainingIfThatIsAsked) {
  const std::string merged = (folder_ / "merged").string();
  const Outcome outcome = train("out", {"finetuning_type=lora", "max_steps=10", "learning_rate=1e-2",
                                        "merge_after_training=true", "export_dir=" + merged, "dtype=float32"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_LT(eval_loss(easy_, merged), eval_loss(easy_, model_) - 0.1);
  // A folder in use is refused before the run.
  const Outcome refused =
      train("again", {"finetuning_type=lora", "max_steps=10", "merge_after_training=true", "export_dir=" + merged});
  EXPECT_EQ(refused.code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "again"));
  ASSERT_EQ(train("here", {"finetuning_type=lora", "max_steps=1", "merge_after_training=true"}).code, 0);
  EXPECT_TRUE(fs::exists(folder_ / "here/merged/config.json"));
}

}  // namespace
}  // namespace hone
