// The quickstart on a budget too small to learn anything: that every part runs and writes what it should.
#include <gtest/gtest.h>

#include <fstream>

#include "app/config/resolve.h"
#include "app/quickstart/corpus.h"
#include "app/quickstart/quickstart.h"
#include "app/quickstart/tiny_model.h"
#include "core/error.h"
#include "core/thread_pool.h"
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
    EXPECT_EQ(config.run.model.dtype, "float32");
  }
}

TEST(Quickstart, WritesReportModelAdapterAndMergedModelAndSaysThatTheBarsWereMissed) {
  const TestFolder folder;
  const QuickstartOptions options{.output = folder / "quickstart", .seed = 5, .budget = kSmall};
  fs::create_directories(options.output);
  write_text(options.output + "/.hone-quickstart", "");
  write_text(options.output + "/stale.txt", "of an earlier one");
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
  EXPECT_FALSE(fs::exists(options.output + "/stale.txt"));
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
