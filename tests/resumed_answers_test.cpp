// Tests of the command line: hone generate goes on after a kill, with the same bytes.
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "app/chat/chat_model_testing.h"
#include "program.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class ResumedAnswers : public testing::Test {
 protected:
  ResumedAnswers() {
    write_chat_model(folder_ / "model");
    std::string rows;
    for (int i = 0; i < 60; ++i) rows += Json{{"id", i}, {"question", "Question " + std::to_string(i)}}.dump() + "\n";
    input_ = folder_.write("in.jsonl", rows);
  }

  Words words(const std::string& output, int ranks = 1, const Words& more = {}) const {
    Words all = {"generate",
                 "--model",
                 (folder_ / "model").string(),
                 "--input",
                 input_,
                 "--output",
                 output,
                 "--device",
                 "cpu",
                 "--threads",
                 "1",
                 "--dtype",
                 "float32",
                 "--batch-size",
                 "2",
                 "--max-new-tokens",
                 "40",
                 "--temperature",
                 "1",
                 "--ranks",
                 std::to_string(ranks)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string partial(const std::string& output) const { return output + ".hone-partial"; }

  /// Kills a run as soon as some of its answers are there.
  void kill_midway(const std::string& output, int ranks) const {
    const Process process(words(output, ranks));
    const auto lines = [&] {
      const std::string text = fs::exists(partial(output)) ? read_file(partial(output)) : "";
      return std::count(text.begin(), text.end(), '\n');
    };
    while (process.runs() && lines() < 4) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    process.send(SIGKILL);
  }

  const Folder folder_;
  std::string input_;
};

TEST_F(ResumedAnswers, AreThoseOfAnUninterruptedRun) {
  const std::string whole = (folder_ / "whole.jsonl").string(), output = (folder_ / "out.jsonl").string();
  ASSERT_EQ(run_hone(words(whole)).code, 0);
  EXPECT_FALSE(fs::exists(partial(whole)));
  kill_midway(output, 1);
  ASSERT_TRUE(fs::exists(partial(output))) << "the run ended before it was killed";
  EXPECT_FALSE(fs::exists(output));
  // A kill may leave a line that is not complete.
  std::string left = read_file(partial(output));
  left.resize(left.rfind('\n') + 1);
  const auto ready = std::count(left.begin(), left.end(), '\n') - 1;
  folder_.write("out.jsonl.hone-partial", left + R"({"id": 59, "questi)");
  const Outcome resumed = run_hone(words(output));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr(std::to_string(ready) + " of 60 answers are there from before"));
  EXPECT_EQ(read_file(output), read_file(whole));
  EXPECT_FALSE(fs::exists(partial(output)));
  // Other ranks go on with what one left: answers do not depend on them.
  folder_.write("ranks.jsonl.hone-partial", left);
  const std::string by_ranks = (folder_ / "ranks.jsonl").string();
  const Outcome more_ranks = run_hone(words(by_ranks, 2));
  EXPECT_EQ(more_ranks.code, 0) << more_ranks.err;
  EXPECT_EQ(read_file(by_ranks), read_file(whole));
}

TEST_F(ResumedAnswers, OfAnotherInputModelOrSettingsAreRefused) {
  const std::string output = (folder_ / "out.jsonl").string();
  kill_midway(output, 1);
  ASSERT_TRUE(fs::exists(partial(output))) << "the run ended before it was killed";
  const std::string left = read_file(partial(output));
  const auto problem = [&](const Words& command) {
    const Outcome outcome = run_hone(command);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(read_file(partial(output)), left);
    return outcome.err;
  };
  EXPECT_THAT(problem(words(output, 1, {"--seed", "7"})), HasSubstr("the settings of this one"));
  folder_.write("in.jsonl", read_file(input_) + R"({"id": 60, "question": "One more"})" + "\n");
  EXPECT_THAT(problem(words(output)), HasSubstr("the input of this one"));
  const Outcome anew = run_hone(words(output, 1, {"--force"}));
  EXPECT_EQ(anew.code, 0) << anew.err;
  EXPECT_EQ(read_json_lines(output).size(), 61u);
  EXPECT_FALSE(fs::exists(partial(output)));
  folder_.write("out2.jsonl.hone-partial", "mine\n");
  const std::string other = (folder_ / "out2.jsonl").string();
  EXPECT_THAT(run_hone(words(other)).err, HasSubstr("exists already"));
  EXPECT_EQ(read_file(partial(other)), "mine\n");
}

}  // namespace
}  // namespace hone
