#include "train/plan/data_report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "core/cpu/thread_pool.h"
#include "data/dataset/data_testing.h"
#include "report/terminal.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string row(const std::string& question, const std::string& answer) {
  return Json{{"messages", {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", answer}}}}}
             .dump() +
         "\n";
}

class ReportOfData : public testing::Test {
 protected:
  TrainingData build(const std::string& rows) {
    options_.datasets = {{folder_.write("chat.jsonl", rows)}};
    options_.vocab_size = 5000;
    options_.max_length = 64;
    ThreadPool pool(2);
    return build_training_data(options_, &tokenizer_, pool);
  }

  Tokenizer tokenizer_ = qwen_tokenizer();
  DataFolder folder_;
  DataOptions options_;
};

TEST_F(ReportOfData, SaysWhatIsThereAndWhatIsNotUsed) {
  std::string rows;
  for (int i = 0; i < 200; ++i) rows += row(fmt::format("question {}", i), "yes");
  rows += row("long", std::string(500, 'x') + "!");
  rows += row("question 3", " yes");
  rows += "{\"messages\": [{\"role\": \"user\", \"content\": \"alone\"}]}\n";
  const DataReport report = data_report(build(rows), 64, 80, false);
  EXPECT_THAT(report.detail, AllOf(HasSubstr("chat"), HasSubstr("messages"), HasSubstr("203"), HasSubstr("median"),
                                   HasSubstr("lengths of the rows of chat, in tokens"), HasSubstr("█")));
  EXPECT_THAT(report.brief, AllOf(HasSubstr("chat"), HasSubstr("203"), Not(HasSubstr("█"))));
  for (const std::string& line : split_lines(data_report(build(rows), 64, 60, false).detail)) {
    EXPECT_LE(display_width(line), 60) << line;
  }
  EXPECT_THAT(report.warnings, ElementsAre(AllOf(HasSubstr("longer than max_length 64: 1 dropped"),
                                                 HasSubstr("1 dropped since there is nothing to learn in them"),
                                                 HasSubstr("are not used")),
                                           AllOf(HasSubstr("nothing is learnt of 1 row:"), HasSubstr("chat.jsonl:203")),
                                           AllOf(HasSubstr("1 of 201 training rows (0.5 %) repeat an earlier one"),
                                                 HasSubstr("chat.jsonl:202 as "), HasSubstr("chat.jsonl:4"))));
}

TEST_F(ReportOfData, TheProofSheetShowsThreeSamplesAndTheEndOfATurn) {
  std::string rows;
  for (int i = 0; i < 9; ++i) rows += row(fmt::format("question {}", i), fmt::format("answer {}", i));
  const TrainingData data = build(rows);
  TokenizerConfig config;
  config.generation_eos_ids = {*tokenizer_.special_tokens().eos};
  const DataReport sheet = proof_sheet(data, &tokenizer_, config, std::nullopt, false);
  for (const int shown : {0, 3, 6}) {
    EXPECT_THAT(sheet.detail, AllOf(HasSubstr(fmt::format("[[answer {}<|im_end|>]]", shown)),
                                    HasSubstr(fmt::format("chat.jsonl:{}", shown + 1))));
  }
  EXPECT_THAT(sheet.detail, Not(HasSubstr("[[answer 1")));
  EXPECT_THAT(sheet.brief, AllOf(HasSubstr("[[answer 0<|im_end|>]]"), Not(HasSubstr("answer 3"))));
  EXPECT_THAT(
      sheet.text,
      AllOf(HasSubstr("end of turn: <|im_end|> ("),
            HasSubstr("one token, learnt at the end of 9 of 9 answers; in eos_token_id of generation_config.json")));
  EXPECT_THAT(sheet.warnings, IsEmpty());
  EXPECT_THAT(proof_sheet(data, &tokenizer_, config, 9, false).detail, HasSubstr("[[answer 1<|im_end|>]]"));
  EXPECT_THAT(proof_sheet(data, &tokenizer_, {}, 1, false).text,
              HasSubstr("it is eos_token (generation_config.json has no eos_token_id)"));
  config.generation_eos_ids = {3};
  EXPECT_THAT(
      proof_sheet(data, &tokenizer_, config, 1, false).warnings,
      ElementsAre(AllOf(HasSubstr("which is not in eos_token_id of generation_config.json"), HasSubstr("add "))));
}

TEST_F(ReportOfData, InBriefALongSampleIsItsBeginningAndManyDataSetsAreCounted) {
  std::string lines;
  for (int i = 0; i < 16; ++i) lines += "x\n";
  const DataReport sheet = proof_sheet(build(row("question", lines)), &tokenizer_, {}, std::nullopt, false);
  EXPECT_LE(split_lines(sheet.brief).size(), 9u) << sheet.brief;
  EXPECT_THAT(sheet.brief, AllOf(HasSubstr("more lines (hone prepare shows them)"), HasSubstr("[[supervised]]")));
  TrainingData data = build(row("a", "b"));
  data.train_reports.resize(12, data.train_reports.front());
  const DataReport report = data_report(data, 64, 0, false);
  EXPECT_THAT(report.brief, HasSubstr("and 7 more data sets"));
  EXPECT_LE(split_lines(report.brief).size(), 8u);
}

TEST_F(ReportOfData, CountsAnswersThatDoNotEndAndTextsWithTwoBeginnings) {
  SpecialTokens special;
  special.bos = 1;
  special.stop = {2};
  const Sample stops{{1, 5, 6, 2}, {-100, -100, 6, 2}, {}};
  const Sample goes_on{{1, 1, 6, 7, 8}, {-100, -100, 6, -100, 8}, {}};
  const TurnEnds ends = turn_ends(store_of({stops, goes_on}, 10), special);
  EXPECT_EQ(ends.answers, 3);
  EXPECT_EQ(ends.stopped, 1);
  EXPECT_EQ(ends.id, 2);
  EXPECT_EQ(ends.bos, 2);
  EXPECT_EQ(ends.doubled_bos, 1);
}

TEST_F(ReportOfData, ALearntLineEndBehindTheEndOfTurnIsStillAnEnd) {
  SpecialTokens special;
  special.stop = {2};
  const Sample all{{1, 5, 6, 2, 9}, {1, 5, 6, 2, 9}, {}};
  const TurnEnds ends = turn_ends(store_of({all}, 10), special);
  EXPECT_EQ(ends.answers, 1);
  EXPECT_EQ(ends.stopped, 1);
  EXPECT_EQ(ends.id, 2);
}

}  // namespace
}  // namespace hone
