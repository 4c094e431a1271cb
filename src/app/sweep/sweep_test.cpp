#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "app/sweep/stop_rule.h"
#include "app/sweep/sweep_file.h"
#include "app/sweep/sweep_record.h"
#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

SweepFile sweep_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_sweep(parse_config_text(text, "sweep.yaml"), overrides);
}

std::vector<std::string> names_of(const SweepFile& sweep) {
  std::vector<std::string> names;
  for (const SweepRun& run : sweep.runs) names.push_back(run.name);
  return names;
}

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    sweep_of(text, overrides);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(SweepFile, AGridHasEveryCombinationInReadableFolders) {
  const SweepFile sweep =
      sweep_of("base: run.yaml\nkeys: {max_steps: 5}\ngrid:\n  learning_rate: [1e-4, 5e-5]\n  lora_r: [8, 16]\n");
  EXPECT_THAT(names_of(sweep), ElementsAre("learning_rate-1e-4_lora_r-8", "learning_rate-1e-4_lora_r-16",
                                           "learning_rate-5e-5_lora_r-8", "learning_rate-5e-5_lora_r-16"));
  EXPECT_EQ(sweep.base, "run.yaml");
  EXPECT_THAT(sweep.words(sweep.runs[1], {"seed=7"}),
              ElementsAre("max_steps=5", "seed=7", "learning_rate=1e-4", "lora_r=16"));
}

TEST(SweepFile, ValuesOfEveryKindBecomeWordsAndNames) {
  const SweepFile sweep = sweep_of(
      "runs:\n  - {}\n  - {datasets: data/a b.jsonl, lora_target_modules: [q_proj, v_proj]}\n"
      "  - {name: '../{rs} x', use_rslora: true, lr: '1e-4'}\n  - {save_steps: null, generation.top_k: 5}\n");
  EXPECT_THAT(names_of(sweep), ElementsAre("base", "datasets-a-b.jsonl_lora_target_modules-q-proj-v-proj", "rs-x",
                                           "save_steps-null_generation.top_k-5"));
  EXPECT_THAT(sweep.words(sweep.runs[1], {}),
              ElementsAre("datasets=data/a b.jsonl", "lora_target_modules=[\"q_proj\",\"v_proj\"]"));
  EXPECT_THAT(sweep.words(sweep.runs[2], {}), ElementsAre("use_rslora=true", "learning_rate=\"1e-4\""));
  EXPECT_THAT(sweep.words(sweep.runs[3], {}), ElementsAre("save_steps=null", "generation.top_k=5"));
}

TEST(SweepFile, MistakesAreNamed) {
  EXPECT_THAT(error_of("grid: {learning_rat: [1]}"), HasSubstr("Did you mean 'learning_rate'"));
  EXPECT_THAT(error_of("grids: {learning_rate: [1]}"), HasSubstr("Did you mean 'grid'"));
  EXPECT_THAT(error_of("grid: {learning_rate: 1}"), HasSubstr("not a list"));
  EXPECT_THAT(error_of("grid: {learning_rate: []}"), HasSubstr("no values"));
  EXPECT_THAT(error_of("grid: {output_dir: [a, b]}"), HasSubstr("stated by the sweep itself"));
  EXPECT_THAT(error_of("keys: {resume: auto}\nruns: [{}]"), HasSubstr("stated by the sweep itself")) << "an alias, too";
  EXPECT_THAT(error_of("grid: {lr: [1e-4], learning_rate: [1e-5]}"), HasSubstr("stated twice"));
  EXPECT_THAT(error_of("grid: {seed: [1, 1]}"), HasSubstr("two runs are alike"));
  EXPECT_THAT(error_of("runs: [{name: a, seed: 1}, {name: a, seed: 2}]"), HasSubstr("two runs have the name a"));
  EXPECT_THAT(error_of("runs: [{name: logs}]"), HasSubstr("something else"));
  EXPECT_THAT(names_of(sweep_of("runs: [{name: ..}]")), ElementsAre("none"));
  EXPECT_THAT(error_of("base: run.yaml"), HasSubstr("no runs"));
  EXPECT_THAT(error_of("ranks: 0\nruns: [{}]"), HasSubstr("at least 1"));
  EXPECT_THAT(error_of("grid: {seed: [1, 2]}", {"seed=3"}), HasSubstr("varies in this sweep"));
  EXPECT_THAT(error_of("grid: {generation.top_k: [1, 2]}", {"generation.top_k=3"}), HasSubstr("varies in this sweep"));
  const SweepFile halved = sweep_of("runs: [{}]\nhalving: {at: [10, 20], keep: 0.25}");
  EXPECT_THAT(halved.rungs, ElementsAre(10, 20));
  EXPECT_EQ(halved.keep, 0.25);
  EXPECT_THAT(error_of("runs: [{}]\nhalving: {keep: 0.5}"), HasSubstr("halving has no steps"));
  EXPECT_THAT(error_of("runs: [{}]\nhalving: {at: [20, 20]}"), HasSubstr("do not ascend"));
  EXPECT_THAT(error_of("runs: [{}]\nhalving: {at: [20], keep: 1}"), HasSubstr("between 0 and 1"));
  EXPECT_THAT(error_of("runs: [{}]\nhalving: {at: [20], kep: 1}"), HasSubstr("Did you mean 'keep'"));
  EXPECT_THAT(error_of("runs: [{}]\nhalving: [20]"), HasSubstr("not a mapping"));
  EXPECT_THAT(error_of("runs: [{}]\nstop_worse: true\nhalving: {at: [20]}"), HasSubstr("keep one"));
  std::string many;
  for (int i = 0; i < 40; ++i) many += (i == 0 ? "" : ", ") + std::to_string(i);
  EXPECT_THAT(error_of("grid: {seed: [" + many + "], lora_r: [" + many + "]}"), HasSubstr("at most 1000 runs"));
}

TEST(StopRule, ARunAboveTheMedianOfThreeOthersEnds) {
  StopRule rule(0);
  const std::vector<Evaluation> bad = {{10, 3.2}, {20, 4.0}};
  rule.add({{10, 3.0}, {20, 2.0}, {30, 1.0}});
  rule.add({{10, 4.5}, {20, 4.5}});
  EXPECT_FALSE(rule.worse_than(bad)) << "two others";
  rule.add({{10, 3.5}});
  EXPECT_FALSE(rule.worse_than(bad)) << "of three, one never got to step 20";
  rule.add({{20, 3.0}});
  EXPECT_EQ(rule.worse_than(bad), 3.0);
  EXPECT_FALSE(rule.worse_than({{10, 2.5}, {20, 9.0}})) << "its least loss counts";
  EXPECT_FALSE(rule.worse_than({{20, 3.0}})) << "as good as the median";
  EXPECT_TRUE(rule.worse_than({{20, INFINITY}}));
  EXPECT_FALSE(rule.worse_than({}));
  StopRule later(25);
  for (int i = 0; i < 3; ++i) later.add({{20, 1.0}, {30, 1.0}});
  EXPECT_FALSE(later.worse_than(bad));
  EXPECT_TRUE(later.worse_than({{20, 4.0}, {30, 4.0}}));
}

TEST(Halving, TheLeastLossUpToTheRungCounts) {
  const std::vector<Evaluation> run = {{10, 3.0}, {20, 3.5}, {30, 1.0}};
  EXPECT_EQ(loss_at(run, 10), 3.0);
  EXPECT_EQ(loss_at(run, 15), 3.0) << "at step 20, the first so late";
  EXPECT_EQ(loss_at(run, 30), 1.0);
  EXPECT_FALSE(loss_at(run, 31));
  EXPECT_FALSE(loss_at({}, 1));
}

TEST(Halving, TheBetterPartGoesOn) {
  EXPECT_THAT(better_part({3, 1, 2, INFINITY}, 0.5), ElementsAre(false, true, true, false));
  EXPECT_THAT(better_part({2, 2, 2}, 0.5), ElementsAre(true, true, false)) << "rounded up, the first of equals";
  EXPECT_THAT(better_part({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.3).size(), 10u);
  EXPECT_EQ(better_part({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.3)[3], false) << "three, in spite of rounding";
  EXPECT_THAT(better_part({INFINITY}, 0.1), ElementsAre(true));
  EXPECT_TRUE(better_part({}, 0.5).empty());
}

class SweepFolder : public testing::Test {
 protected:
  SweepFolder() { fs::create_directories(folder_); }
  ~SweepFolder() override { fs::remove_all(folder_); }

  const fs::path folder_ = fs::path(testing::TempDir()) / "hone_sweep_test";
};

TEST_F(SweepFolder, EvaluationsAreReadWhileTheyAreWritten) {
  RunEvaluations evaluations(folder_);
  EXPECT_TRUE(evaluations.read_on().empty());
  std::ofstream(folder_ / "metrics.jsonl")
      << "{\"step\":0,\"eval_loss\":9}\n{\"step\":1,\"loss\":3}\n"
         "{\"step\":2,\"eval_loss\":2.5}\n{\"step\":4,\"eval_loss\":null}\n{\"step\":6,\"eval_lo";
  const std::vector<Evaluation>& found = evaluations.read_on();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].step, 2);
  EXPECT_EQ(found[0].loss, 2.5);
  EXPECT_EQ(found[1].loss, INFINITY);
  std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << "ss\":1.5}\n";
  evaluations.read_on();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[2].step, 6);
}

TEST_F(SweepFolder, ARecordIsReadBack) {
  const SweepFile sweep = sweep_of("grid: {seed: [1, 2]}");
  SweepRecord record(folder_);
  record.row("seed-1") = {.status = SweepStatus::kFailed, .why = "memory", .seconds = 2, .config = Json{{"seed", "1"}}};
  record.row("seed-2").status = SweepStatus::kRunning;
  record.row("other") = {.status = SweepStatus::kFinished};
  const std::string text = record.text(sweep, "sweep.yaml", folder_, "seed-1");
  EXPECT_TRUE(SweepRecord::is_record(text));
  const Json json = Json::parse(text);
  EXPECT_EQ(json["best"], "seed-1");
  EXPECT_EQ(json["runs"][0]["settings"], (Json{{"seed", "1"}}));
  EXPECT_EQ(json["runs"][2]["name"], "other") << "what the file no longer has stays";
  std::ofstream(folder_ / "sweep.json") << text;
  SweepRecord again(folder_);
  EXPECT_EQ(again.row("seed-1").why, "memory");
  EXPECT_EQ(again.row("seed-1").config, (Json{{"seed", "1"}}));
  EXPECT_EQ(again.row("seed-2").status, SweepStatus::kInterrupted) << "its sweep was killed";
  EXPECT_EQ(again.row("other").status, SweepStatus::kFinished);
  std::ofstream(folder_ / "sweep.json") << "{\"mine\": 1}";
  EXPECT_THROW(SweepRecord{folder_}, UserError);
}

TEST(SweepRecordKeys, WhatChangedIsNamed) {
  const Json before = {{"seed", "1"}, {"lora_r", "8"}}, now = {{"seed", "2"}, {"max_steps", "4"}};
  EXPECT_THAT(changed_keys(before, now), ElementsAre("seed (1 before, 2 now)", "max_steps (not set before, 4 now)",
                                                     "lora_r (8 before, not set now)"));
  EXPECT_TRUE(changed_keys(before, before).empty());
}

}  // namespace
}  // namespace hone
