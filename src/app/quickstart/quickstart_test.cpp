// Runs the quickstart with a budget too small to learn anything, and checks that all parts run and write their files.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "app/quickstart/made_files.h"
#include "app/quickstart/quickstart.h"
#include "app/quickstart/quickstart_files.h"
#include "config/resolve.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "report/folder_testing.h"
#include "text/tokenizer.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

const QuickstartBudget kSmall = {
    .english_steps = 3, .german_steps = 2, .log_lines = 2, .test_examples = 6, .new_examples = 3};

constexpr int64_t kAll = 1'000'000;

TEST(QuickstartFiles, AreThoseOfTheFolderOfExamples) {
  const fs::path folder = fs::path(HONE_SOURCE_DIR) / "examples/quickstart";
  std::set<std::string> names;
  for (const QuickstartFile& file : quickstart_files()) {
    EXPECT_EQ(file.text, read_text(folder / file.name)) << file.name;
    names.emplace(file.name);
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    const bool is_about = name == "README.md" || name == "make_data.py";
    EXPECT_TRUE(is_about || !entry.is_regular_file() || names.contains(name)) << name;
  }
}

TEST(QuickstartFiles, TokenizerGivesEveryTextBackAndEveryDigitATokenOfItsOwn) {
  const Tokenizer tokenizer = Tokenizer::load(fs::path(HONE_SOURCE_DIR) / "examples/quickstart/model");
  for (const char* file : {"data/english_train.jsonl", "data/german_new_wordings.jsonl"}) {
    for (const Example& example : read_examples(file, 50)) {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(example.question, false), false), example.question);
    }
  }
  EXPECT_EQ(tokenizer.encode("2031", false).size(), 4u);
  ASSERT_EQ(tokenizer.special_tokens().stop.size(), 1u);
  EXPECT_EQ(tokenizer.special_tokens().stop.front(), tokenizer.token_to_id("<|end|>"));
}

TEST(QuickstartFiles, NoMomentOrQuestionOfATestIsInTheTrainingData) {
  std::set<std::string> taught;
  for (const char* file : {"data/english_train.jsonl", "data/german_train.jsonl"}) {
    std::set<std::string> questions;
    const std::vector<Example> examples = read_examples(file, kAll);
    for (const Example& example : examples) {
      EXPECT_TRUE(questions.insert(example.question).second) << example.question << " is there twice";
      taught.insert({example.question, example.answer});
    }
    EXPECT_GE(examples.size(), 14'000u);
  }
  for (const char* file : {"data/english_test.jsonl", "data/german_test.jsonl", "data/english_new_wordings.jsonl",
                           "data/german_new_wordings.jsonl"}) {
    const std::vector<Example> examples = read_examples(file, kAll);
    EXPECT_GE(examples.size(), 200u);
    for (const Example& example : examples) {
      EXPECT_FALSE(taught.contains(example.answer)) << file << ": " << example.answer;
      EXPECT_FALSE(taught.contains(example.question)) << file << ": " << example.question;
    }
  }
}

TEST(Quickstart, RunsOfTheDefaultFolderAreTheFiles) {
  for (const char* name : {"act1.yaml", "act2.yaml"}) {
    EXPECT_EQ(run_in_folder(name, "quickstart", {{"seed", "42"}}), quickstart_file(name));
  }
}

TEST(Quickstart, ConfigurationsAreReadWithoutRemark) {
  const TestFolder folder;
  for (const std::string& text :
       {run_in_folder("act1.yaml", folder / "a \"folder\"", {{"seed", "7"}, {"max_steps", "3"}}),
        run_in_folder("act2.yaml", folder / "a \"folder\"", {{"seed", "7"}, {"max_steps", "3"}})}) {
    write_text(folder / "act.yaml", text);
    const ResolvedConfig config = load_config(folder / "act.yaml", {});
    EXPECT_TRUE(config.notes.empty());
    EXPECT_EQ(config.run.machine.seed, 7);
    EXPECT_EQ(config.run.schedule.max_steps, 3);
    EXPECT_TRUE(config.run.report.output_dir.starts_with(folder / "a \"folder\"/act")) << config.run.report.output_dir;
    EXPECT_EQ(name_of(config.run.model.dtype), "float32");
  }
}

TEST(Quickstart, WritesReportModelAdapterAndMergedModelAndSaysThatTheBarsWereMissed) {
  const TestFolder folder;
  const QuickstartOptions options{.output = folder / "quickstart", .seed = 5, .budget = kSmall};
  EXPECT_EQ(run_quickstart(options), static_cast<int>(ExitCode::kCheckFailed));
  const Json report = Json::parse(read_text(options.output + "/report.json"));
  for (const char* key : {"exact_match_before", "exact_match_after"}) {
    EXPECT_GE(report.at("act1").at(key).get<double>(), 0.0);
    EXPECT_LE(report.at("act1").at(key).get<double>(), 1.0);
  }
  for (const char* key : {"german_before", "german_after", "english_after"}) {
    EXPECT_GE(report.at("act2").at(key).get<double>(), 0.0);
    EXPECT_LE(report.at("act2").at(key).get<double>(), 1.0);
  }
  for (const char* act : {"act1", "act2"}) EXPECT_GT(report.at(act).at("seconds").get<double>(), 0.0);
  for (const char* file :
       {"model/model.safetensors", "act1/model.safetensors", "act1/metrics.jsonl", "act1/report.html",
        "act2/adapter_model.safetensors", "act2/report.html", "merged/model.safetensors", "merged/tokenizer.json"}) {
    EXPECT_TRUE(fs::exists(fs::path(options.output) / file)) << file;
  }
  // What was written can be written again, and nothing else.
  EXPECT_NO_THROW(MadeFiles(options.output, false));
  write_text(options.output + "/act1.yaml", read_text(options.output + "/act1.yaml") + "max_steps: 9\n");
  EXPECT_THROW(MadeFiles(options.output, false), UserError);
}

TEST(MadeFiles, AreWrittenAgainAndOthersAreRefused) {
  const TestFolder folder;
  const std::string output = folder / "quickstart";
  const auto write = [&](const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(output + "/" + name).parent_path());
    write_text(output + "/" + name, text);
  };
  const auto make = [&](bool force = false) {
    MadeFiles made(output, force);
    made.make("data/a.jsonl", [&] { write("data/a.jsonl", "a"); });
    made.make("act1", [&] { write("act1/model.safetensors", "weights"); });
  };
  make();
  make();
  const auto refusal = [&] {
    try {
      make();
    } catch (const UserError& error) {
      return error.message();
    }
    return std::string();
  };
  for (const char* name : {"my-run/model.safetensors", "data/my.jsonl", "act1/notes.txt"}) {
    write(name, "mine");
    EXPECT_NE(refusal().find(name), std::string::npos) << refusal();
    make(true);
    EXPECT_EQ(read_text(output + "/" + name), "mine");
    EXPECT_NE(refusal(), "") << "not taken for its own after --force";
    fs::remove(output + "/" + name);
  }
  write("data/a.jsonl", "b");
  EXPECT_NE(refusal().find("data/a.jsonl"), std::string::npos);
  EXPECT_EQ(read_text(output + "/data/a.jsonl"), "b");
  make(true);
  EXPECT_EQ(refusal(), "");
  const MadeFiles running(output, false);
  EXPECT_NE(refusal(), "") << "two at once";
}

TEST(MadeFiles, WhatAKilledPartLeavesIsItsOwn) {
  const TestFolder folder;
  const std::string output = folder / "quickstart";
  EXPECT_THROW(MadeFiles(output, false)
                   .make("act1",
                         [&] {
                           fs::create_directories(output + "/act1");
                           write_text(output + "/act1/metrics.jsonl", "1");
                           throw UserError("killed");
                         }),
               UserError);
  EXPECT_NO_THROW(MadeFiles(output, false));
}

TEST(MadeFiles, LinksAreNotFollowed) {
  const TestFolder folder;
  const std::string output = folder / "quickstart";
  {
    MadeFiles(output, false).make("act1", [] {});
  }
  fs::create_directories(folder / "elsewhere");
  fs::create_directory_symlink(folder / "elsewhere", output + "/act1");
  EXPECT_THROW(MadeFiles(output, false), UserError);
  EXPECT_THROW(MadeFiles(output, true).make("act1", [] { FAIL() << "written through a link"; }), UserError);
}

TEST(MadeFiles, AFolderOfAnEarlierVersionHasNoList) {
  const TestFolder folder;
  fs::create_directories(folder / "old");
  write_text(folder / "old/.hone-quickstart", "made by hone quickstart; the next one replaces this folder\n");
  EXPECT_NO_THROW(MadeFiles(folder / "old", false)) << "nothing is in it";
  write_text(folder / "old/.hone-quickstart", "made by hone quickstart; the next one replaces this folder\n");
  write_text(folder / "old/act1.yaml", "mine");
  EXPECT_THROW(MadeFiles(folder / "old", false), UserError);
  EXPECT_EQ(read_text(folder / "old/act1.yaml"), "mine");
}

TEST(Quickstart, RefusesAFolderThatIsNotItsOwn) {
  const TestFolder folder;
  fs::create_directories(folder / "mine");
  write_text(folder / "mine/thesis.txt", "years of work");
  try {
    run_quickstart({.output = folder / "mine", .budget = kSmall});
    FAIL() << "a folder of somebody else was accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.where(), folder / "mine");
  }
  EXPECT_EQ(read_text(folder / "mine/thesis.txt"), "years of work");
}

}  // namespace
}  // namespace hone
