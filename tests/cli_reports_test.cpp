// Tests of a run's reports through the command line: losses by data set, experts, answers, training_info.json; and of
// the merged model.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "device_main.h"
#include "program.h"
#include "report/terminal.h"

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
  // The only step has all samples and the initial weights; float32 losses are summed in another order.
  const Json step = lines("out", "loss").front(), evaluation = lines("out", "eval_loss").front();
  EXPECT_NEAR(step["loss/easy"].get<double>(), easy, 1e-5);
  EXPECT_NEAR(step["loss/hard"].get<double>(), hard, 1e-5);
  EXPECT_NEAR(evaluation["eval_easy_loss"].get<double>(), easy, 1e-5);
  EXPECT_NEAR(evaluation["eval_hard_loss"].get<double>(), hard, 1e-5);
  EXPECT_GT(std::abs(easy - hard), 1e-3) << "or the test could not tell them apart";
  ASSERT_EQ(train("one", {"max_steps=1", "val_split=2"}).code, 0);
  EXPECT_FALSE(lines("one", "loss").front().contains("loss/easy")) << "one data set is the loss itself";
}

TEST_F(Reports, MlflowGetsSystemMetricsAndTagsWhereItsVariableAsks) {
  setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true", 1);
  setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.01", 1);
  const std::string runs = (folder_ / "mlruns").string();
  const Outcome outcome = train("out", {"max_steps=4", "report_to=[jsonl,mlflow]", "mlflow_tracking_uri=" + runs});
  unsetenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING");
  unsetenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  fs::path run;
  for (const auto& entry : fs::recursive_directory_iterator(runs)) {
    if (entry.path().filename() == "metrics") run = entry.path().parent_path();
  }
  ASSERT_FALSE(run.empty());
  for (const char* name : {"system_memory_usage_megabytes", "disk_usage_percentage", "network_receive_megabytes"}) {
    EXPECT_TRUE(fs::exists(run / "metrics" / "system" / name)) << name;
  }
  EXPECT_EQ(read_file(run / "tags" / "model"), model_);
  EXPECT_EQ(read_file(run / "tags" / "dataset"), easy_);
  ASSERT_EQ(train("silent", {"max_steps=2", "report_to=[mlflow]", "mlflow_tracking_uri=" + runs + "2"}).code, 0);
  for (const auto& entry : fs::recursive_directory_iterator(runs + "2")) {
    EXPECT_NE(entry.path().filename(), "system") << "nobody asked for them";
  }
}

TEST_F(Reports, StepsBelowOneAreSharesOfAllSteps) {
  const Outcome outcome = train("shares", {"max_steps=7", "val_split=2", "eval_steps=0.5", "save_steps=0.4",
                                           "logging_steps=0.3", "logging_first_step=false", "save_total_limit=9"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::vector<int64_t> evaluated, logged;
  for (const Json& line : lines("shares", "eval_loss")) evaluated.push_back(line["step"]);
  for (const Json& line : lines("shares", "loss")) logged.push_back(line["step"]);
  EXPECT_EQ(evaluated, (std::vector<int64_t>{4, 7})) << "every 3.5 steps, rounded up, and at the end";
  EXPECT_EQ(logged, (std::vector<int64_t>{3, 6, 7})) << "every 2.1 steps, rounded up";
  EXPECT_TRUE(fs::exists(folder_ / "shares/checkpoint-3"));
  EXPECT_TRUE(fs::exists(folder_ / "shares/checkpoint-6"));
}

/// The lines before the line of the first step.
std::vector<std::string> lines_before_step_1(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line) && line.find("  loss ") == std::string::npos;)
    lines.push_back(line);
  return lines;
}

TEST_F(Reports, AStartTakesAtMostThirtyLinesAndRunLogHasTheRest) {
  std::string sets;
  for (int i = 0; i < 9; ++i)
    sets += (i == 0 ? "" : ",") + folder_.write("set" + std::to_string(i) + ".jsonl", progressions(12));
  std::vector<std::string> options = {"max_steps=2", "val_split=4", "datasets=[" + sets + "]"};
  const std::vector<std::string> lora = {"finetuning_type=lora", "lora_r=4",
                                         "lora_target_modules=[attention,all-experts]"};
  options.insert(options.end(), lora.begin(), lora.end());
  const Outcome outcome = train("out", options);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<std::string> lines = lines_before_step_1(outcome.out);
  EXPECT_LE(lines.size(), 30u) << outcome.out;
  for (const char* part : {"and 4 more data sets", "trainable params: ", "memory ", "device ",
                           "kernels of attention: ", "; experts: ", "[[supervised]]"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
  const std::string log = read_file(folder_ / "out/run.log");
  const std::vector<std::string> detail = {"not set, so the default", "lengths of the rows of set8", "  parameters  ",
                                           "  share"};
  for (const std::string& part : detail) {
    EXPECT_EQ(outcome.out.find(part), std::string::npos) << part;
    EXPECT_NE(log.find(part), std::string::npos) << part;
  }
  options.push_back("--verbose");
  const Outcome verbose = train("verbose", options);
  for (const std::string& part : detail) EXPECT_NE(verbose.out.find(part), std::string::npos) << part;
}

TEST_F(Reports, EightyColumnsHold) {
  if (std::system("command -v script > /dev/null") != 0) GTEST_SKIP() << "script(1) makes the terminal: it is missing";
  std::string command = hone_program();
  const std::string data = folder_.write("a-data-set-with-a-rather-long-name.jsonl", progressions(300));
  for (const std::string& argument : train_arguments(model_, data, folder_ / "out", {"max_steps=2", "val_split=4"}))
    command += " '" + argument + "'";
  const fs::path shown = folder_ / "shown";
  ASSERT_EQ(std::system(("TERM=xterm script -qec \"stty cols 80; " + command + "\" '" + shown.string() +
                         "' > /dev/null < /dev/null")
                            .c_str()),
            0);
  std::istringstream text(read_file(shown));
  int lines = 0;
  for (std::string line; std::getline(text, line); ++lines) {
    if (lines == 0 || line.find("Script ") == 0) continue;  // output of script itself
    if (line.ends_with('\r')) line.pop_back();
    line = strip_color(line.substr(line.rfind('\r') + 1));  // after a progress bar that was drawn there
    const bool is_path = line.find(' ') == std::string::npos;
    EXPECT_TRUE(is_path || display_width(line) <= 80) << line;
  }
  EXPECT_GT(lines, 10);
}

TEST_F(Reports, DefaultsAreNotToldOfBeforeAnError) {
  const std::string line = "not set, so the default";
  const Outcome good = train("good", {"max_steps=1", "--verbose"});
  EXPECT_NE((good.err + good.out).find(line), std::string::npos) << good.err;
  const Outcome bad = run_hone({"train", "model=" + model_, "datasets=" + (folder_ / "none.jsonl").string()});
  EXPECT_EQ(bad.code, 2);
  EXPECT_EQ((bad.err + bad.out).find(line), std::string::npos) << bad.err;
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

TEST_F(Reports, TheLoadOfExpertsIsLoggedAndWrittenByLayer) {
  const Outcome outcome =
      train("out", {"moe_log_expert_load=true", "max_steps=4", "val_split=2", "eval_steps=2", "logging_steps=2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string line = "routers: a layer's busiest expert";
  EXPECT_NE(outcome.out.find(line), std::string::npos) << outcome.out;
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
  std::vector<int64_t> steps;
  for (const Json& row : read_json_lines(folder_ / "out/expert_load.jsonl")) {
    steps.push_back(row["step"]);
    ASSERT_EQ(row["layers"].size(), 2u);
    for (const Json& layer : row["layers"]) {
      double sum = 0;
      for (const double share : layer) sum += share;
      EXPECT_NEAR(sum, 1, 1e-5);
    }
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4})) << "a short run has each step";
  const Outcome off = train("off", {"max_steps=70"});
  ASSERT_EQ(off.code, 0) << off.err;
  EXPECT_FALSE(lines("off", "loss").front().contains("router/layer_0/entropy"));
  EXPECT_EQ(off.out.find(line), std::string::npos) << off.out;
  const std::vector<Json> rows = read_json_lines(folder_ / "off/expert_load.jsonl");
  EXPECT_EQ(rows.size(), 25u) << "the first step, every third, and the last";
  EXPECT_EQ(rows.back()["step"], 70);
}

/// The data of a page.
Json data_of(const fs::path& page) {
  const std::string text = read_file(page), begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = text.find(begin);
  if (at == std::string::npos) return nullptr;
  return Json::parse(text.substr(at + begin.size(), text.find("</script>", at) - at - begin.size()));
}

TEST_F(Reports, ARunEndsWithAPageOfIt) {
  const Outcome outcome = train("out", {"max_steps=4", "val_split=2", "eval_steps=2", "eval_on_start=true",
                                        "generate_samples=true", "generation.max_new_tokens=2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("report: "), std::string::npos) << outcome.out;
  const Json run = data_of(folder_ / "out/report.html")["runs"][0];
  EXPECT_EQ(run["name"], "out");
  EXPECT_EQ(run["state"]["text"], "completed");
  EXPECT_EQ(run["total_steps"], 4);
  EXPECT_EQ(run["series"]["loss"]["x"], (Json{1, 2, 3, 4}));
  EXPECT_EQ(run["series"]["eval_loss"]["x"], (Json{0, 2, 4}));
  EXPECT_EQ(run["load"]["layers"], 2);
  EXPECT_EQ(run["answers"].size(), 2u);
  EXPECT_EQ(run["answers"][0]["first"]["step"], 0);
  EXPECT_EQ(run["answers"][0]["last"]["step"], 4);
  EXPECT_GT(run["plan"]["memory"]["planned"].get<int64_t>(), 0);
  int64_t planned = 0;
  for (const Json& row : run["plan"]["memory"]["rows"]) planned += row["bytes"].get<int64_t>();
  EXPECT_GE(planned, run["plan"]["memory"]["planned"].get<int64_t>());
  EXPECT_EQ(run["plan"]["data"]["sets"][0]["rows"], 12);
  EXPECT_NE(run["config"].get<std::string>().find("learning_rate"), std::string::npos);
  EXPECT_EQ(run["notes"].size(), 0u) << run["notes"];
  ASSERT_EQ(train("without", {"max_steps=1", "html_report=false"}).code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "without/report.html"));
}

TEST_F(Reports, APageThatCannotBeWrittenIsAWarning) {
  folder_.write("out/report.html/mine.txt", "mine");  // a folder in its place
  const Outcome outcome = train("out", {"max_steps=1", "overwrite_output_dir=true"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("report.html is not written"), std::string::npos) << outcome.out;
  EXPECT_EQ(read_file(folder_ / "out/report.html/mine.txt"), "mine");
}

TEST_F(Reports, RunsAreShownAndComparedFromTheirFolders) {
  for (const char* rate : {"1e-2", "1e-4"}) {
    ASSERT_EQ(train(std::string("rate") + rate, {"max_steps=3", "val_split=2", "eval_steps=3", "html_report=false",
                                                 std::string("learning_rate=") + rate})
                  .code,
              0);
  }
  const std::string fast = (folder_ / "rate1e-2").string(), slow = (folder_ / "rate1e-4").string();
  const Outcome shown = run_hone({"report", fast});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(data_of(fast + "/report.html")["runs"][0]["step"], 3);
  const std::string page = (folder_ / "both.html").string();
  const Outcome table = run_hone({"compare", fast, slow, "--output", page});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("rate1e-4"), std::string::npos) << table.out;
  EXPECT_EQ(data_of(page)["runs"].size(), 2u);
  const Outcome json = run_hone({"compare", fast, slow, "--output", page, "--json"});
  ASSERT_EQ(json.code, 0) << json.err << "a page replaces a page";
  const Json compared = Json::parse(json.out);
  for (const char* name : {"rate1e-2", "rate1e-4"}) {
    const Json evaluation = lines(name, "eval_loss").back();
    const size_t at = name == std::string("rate1e-2") ? 0 : 1;
    EXPECT_EQ(compared["runs"][at]["summary"]["eval_loss"], evaluation["eval_loss"]);
  }
  EXPECT_TRUE(compared["best"].is_string());
  EXPECT_EQ(run_hone({"compare", fast}).code, 2);
  EXPECT_EQ(run_hone({"report", folder_.write("mine/a.txt", "mine").substr(0, fast.rfind('/')) + "/mine"}).code, 2);
}

TEST_F(Reports, ARunWhoseRoutersCollapseSaysSoAndGoesOn) {
  // A very large learning rate without balancing of routers.
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
  // A folder that is in use is refused before training.
  const Outcome refused =
      train("again", {"finetuning_type=lora", "max_steps=10", "merge_after_training=true", "export_dir=" + merged});
  EXPECT_EQ(refused.code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "again"));
  ASSERT_EQ(train("here", {"finetuning_type=lora", "max_steps=1", "merge_after_training=true"}).code, 0);
  EXPECT_TRUE(fs::exists(folder_ / "here/merged/config.json"));
}

}  // namespace
}  // namespace hone
