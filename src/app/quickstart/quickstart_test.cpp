// Runs the quickstart with a budget too small to learn anything, and checks that all parts run and write their files.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "app/quickstart/act_config.h"
#include "app/quickstart/corpus.h"
#include "app/quickstart/made_files.h"
#include "app/quickstart/quickstart.h"
#include "config/resolve.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "report/folder_testing.h"
#include "session/loaded_model.h"
#include "text/tokenizer.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

const QuickstartBudget kSmall = {.english_examples = 400,
                                 .german_examples = 300,
                                 .replay_examples = 50,
                                 .english_steps = 3,
                                 .german_steps = 2,
                                 .log_lines = 2,
                                 .test_examples = 6,
                                 .new_examples = 3};

std::vector<std::string> texts_of(Language language, int64_t count) {
  std::vector<std::string> texts;
  for (const Example& e : draw_examples({.language = language, .count = count}, 1)) {
    texts.push_back(e.question + "\n" + e.answer);
  }
  return texts;
}

TEST(TinyModel, TokenizerGivesEveryTextBackAndEveryDigitATokenOfItsOwn) {
  const TestFolder folder;
  ThreadPool pool(2);
  write_tiny_model(folder.path(), texts_of(Language::kEnglish, 500), 1, pool);
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  for (const Language language : {Language::kEnglish, Language::kGerman}) {
    for (const std::string& text : texts_of(language, 50)) {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text);
    }
  }
  EXPECT_EQ(tokenizer.encode("2031", false).size(), 4u);
  ASSERT_EQ(tokenizer.special_tokens().stop.size(), 1u);
  EXPECT_EQ(tokenizer.special_tokens().stop.front(), tokenizer.token_to_id("<|end|>"));
}

TEST(TinyModel, IsAModelOfOneToFourMillionParameters) {
  const TestFolder folder;
  ThreadPool pool(2);
  write_tiny_model(folder.path(), texts_of(Language::kEnglish, 500), 1, pool);
  LoadedModel model(folder.path(), DType::kF32);
  int64_t parameters = 0;
  for (const Parameter& parameter : model.store().all()) parameters += parameter.shape().numel();
  EXPECT_GE(parameters, 1'000'000);
  EXPECT_LE(parameters, 4'000'000);
  EXPECT_EQ(model.decoder().config().moe.num_experts, 8);
  EXPECT_EQ(model.config().architecture(), "Qwen3MoeForCausalLM");
}

TEST(Quickstart, ConfigurationsAreReadWithoutRemark) {
  const TestFolder folder;
  for (const std::string& text :
       {english_yaml(folder.path(), kSmall, {.seed = 7}), german_yaml(folder.path(), kSmall, {.seed = 7})}) {
    write_text(folder / "act.yaml", text);
    const ResolvedConfig config = load_config(folder / "act.yaml", {});
    EXPECT_TRUE(config.notes.empty());
    EXPECT_EQ(config.run.machine.seed, 7);
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
  for (const char* file : {"model/model.safetensors", "act1/model.safetensors", "act1/metrics.jsonl",
                           "act2/adapter_model.safetensors", "merged/model.safetensors", "merged/tokenizer.json"}) {
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

// Tests of moments, sentences and data.

ExampleRequest request(Language language, bool held_out, int64_t count) {
  return {.language = language, .phrasing = Phrasing::kTaught, .held_out = held_out, .count = count};
}

std::vector<std::string> sentences(const DateTime& moment, Language language, Phrasing phrasing, int count) {
  PhiloxSequence random(7);
  std::vector<std::string> result;
  for (int i = 0; i < count; ++i) result.push_back(calendar_sentence(moment, language, phrasing, random));
  return result;
}

bool any_contains(const std::vector<std::string>& texts, const std::string& part) {
  for (const std::string& text : texts) {
    if (text.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(DateTime, FebruaryFollowsTheGregorianLeapYears) {
  EXPECT_EQ(days_in_month(2024, 2), 29);
  EXPECT_EQ(days_in_month(2023, 2), 28);
  EXPECT_EQ(days_in_month(2100, 2), 28);
  EXPECT_EQ(days_in_month(2000, 2), 29);
  EXPECT_EQ(days_in_month(2031, 4), 30);
  EXPECT_EQ(days_in_month(2031, 12), 31);
}

TEST(DateTime, IsWrittenInIso8601) {
  EXPECT_EQ(iso({2031, 3, 3, 14, 45}), "2031-03-03T14:45");
  EXPECT_EQ(iso({2024, 2, 29, 0, 5}), "2024-02-29T00:05");
}

TEST(DateTime, DrawnOnesExistAndReachEveryEnd) {
  PhiloxSequence random(3);
  std::set<int> days, hours;
  bool leap_day = false;
  int full_hours = 0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const DateTime m = draw_moment(random);
    ASSERT_GE(m.year, 2020);
    ASSERT_LE(m.year, 2059);
    ASSERT_TRUE(m.day >= 1 && m.day <= days_in_month(m.year, m.month)) << iso(m);
    ASSERT_TRUE(m.hour >= 0 && m.hour < 24 && m.minute >= 0 && m.minute < 60) << iso(m);
    days.insert(m.day);
    hours.insert(m.hour);
    leap_day = leap_day || (m.month == 2 && m.day == 29);
    full_hours += m.minute == 0;
  }
  EXPECT_EQ(days.size(), 31u);
  EXPECT_EQ(hours.size(), 24u);
  EXPECT_TRUE(leap_day);
  // A quarter, and a sixtieth of the rest: 0.2625; five standard deviations of 20000 draws are 0.016.
  EXPECT_NEAR(full_hours / static_cast<double>(kDraws), 0.2625, 0.016);
}

TEST(Sentence, TwelveHourClockTurnsAtNoonAndMidnight) {
  const auto says = [](int hour, int minute, const std::string& time) {
    return any_contains(sentences({2031, 3, 3, hour, minute}, Language::kEnglish, Phrasing::kTaught, 60), time);
  };
  EXPECT_TRUE(says(0, 30, "12:30 am"));
  EXPECT_TRUE(says(12, 30, "12:30 pm"));
  EXPECT_TRUE(says(11, 59, "11:59 am"));
  EXPECT_TRUE(says(23, 59, "11:59 pm"));
  EXPECT_TRUE(says(14, 45, "2:45 pm"));
  EXPECT_TRUE(says(14, 45, "14:45"));
  EXPECT_TRUE(says(0, 0, "midnight"));
  EXPECT_TRUE(says(12, 0, "noon"));
  EXPECT_TRUE(says(12, 0, "12 pm"));
  EXPECT_FALSE(says(0, 30, " pm"));
  EXPECT_FALSE(says(12, 30, " am"));
  EXPECT_FALSE(says(0, 1, "midnight"));
}

TEST(Sentence, OrdinalsEndAsInEnglish) {
  const auto says = [](int day, const std::string& ordinal) {
    return any_contains(sentences({2031, 3, day, 14, 45}, Language::kEnglish, Phrasing::kTaught, 60), ordinal);
  };
  EXPECT_TRUE(says(1, "1st"));
  EXPECT_TRUE(says(2, "2nd"));
  EXPECT_TRUE(says(3, "3rd"));
  EXPECT_TRUE(says(11, "11th"));
  EXPECT_TRUE(says(12, "12th"));
  EXPECT_TRUE(says(13, "13th"));
  EXPECT_TRUE(says(21, "21st"));
  EXPECT_TRUE(says(30, "30th"));
}

TEST(Sentence, GermanSaysDateAndTimeInGerman) {
  const std::vector<std::string> texts = sentences({2031, 3, 3, 14, 45}, Language::kGerman, Phrasing::kTaught, 100);
  for (const char* part : {"3. März 2031", "03.03.2031", "14:45 Uhr", "14.45 Uhr", "14 Uhr 45"}) {
    EXPECT_TRUE(any_contains(texts, part)) << part;
  }
  EXPECT_FALSE(any_contains(texts, "March"));
}

TEST(Sentence, NewWordingsAreNotTaught) {
  for (const Language language : {Language::kEnglish, Language::kGerman}) {
    std::set<std::string> taught;
    for (const std::string& text : sentences({2031, 3, 3, 14, 45}, language, Phrasing::kTaught, 3000))
      taught.insert(text);
    for (const std::string& text : sentences({2031, 3, 3, 14, 45}, language, Phrasing::kNew, 300)) {
      EXPECT_FALSE(taught.contains(text)) << text;
    }
  }
}

TEST(Corpus, DependsOnTheSeedAndNothingElse) {
  const auto questions = [](uint64_t seed) {
    std::string all;
    for (const Example& e : draw_examples(request(Language::kEnglish, false, 50), seed)) all += e.question + e.answer;
    return all;
  };
  EXPECT_EQ(questions(1), questions(1));
  EXPECT_NE(questions(1), questions(2));
}

TEST(Corpus, TestMomentsAreInNoTrainingDataOfAnySeedOrLanguage) {
  std::set<std::string> trained;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    for (const Language language : {Language::kEnglish, Language::kGerman}) {
      for (const Example& e : draw_examples(request(language, false, 4000), seed)) trained.insert(e.answer);
    }
  }
  for (const Language language : {Language::kEnglish, Language::kGerman}) {
    for (const Example& e : draw_examples(request(language, true, 2000), 1)) {
      EXPECT_FALSE(trained.contains(e.answer)) << e.answer;
    }
  }
}

TEST(Corpus, SentencesAndMomentsAreUnique) {
  for (const Language language : {Language::kEnglish, Language::kGerman}) {
    std::set<std::string> questions, answers;
    for (const Example& e : draw_examples(request(language, false, 5000), 42)) {
      questions.insert(e.question);
      answers.insert(e.answer);
    }
    EXPECT_EQ(questions.size(), 5000u);
    EXPECT_EQ(answers.size(), 5000u);
  }
}

}  // namespace
}  // namespace hone
