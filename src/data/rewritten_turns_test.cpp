#include "data/rewritten_turns.h"

#include <gmock/gmock.h>

#include "data/data_testing.h"
#include "data/sample_encoder.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const Tokenizer& qwen() {
  static const Tokenizer tokenizer = qwen_tokenizer();
  return tokenizer;
}

EncodedRow encoded(const std::string& row, ChatEncoderOptions options, SampleFormat format = SampleFormat::kMessages) {
  options.chat_template = read_fixture("templates/think_tools.jinja");
  const SampleEncoder encoder(&qwen(), options, 10'000);
  return encoder.encode(format_row(Json::parse(row), format, "d.jsonl:7"), "d.jsonl:7");
}

std::string learnt(const Sample& sample) { return supervised_text(sample, qwen()); }
std::string text(const Sample& sample) { return qwen().decode(sample.input_ids, false); }

/// Thoughts in the fields and in the content; the template shows those behind the last question only.
const std::string kThoughtful = R"({"messages": [
  {"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1", "reasoning_content": "t1"},
  {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"},
  {"role": "user", "content": "q3"}, {"role": "assistant", "content": "<think>\nt3\n</think>\n\na3"},
  {"role": "user", "content": "q4"}, {"role": "assistant", "content": "a4", "reasoning_content": "t4"}]})";

/// Two answers of one turn, with a tool between them: the template shows the thoughts of both until the next question.
const std::string kAgent = R"({"messages": [
  {"role": "user", "content": "q1"},
  {"role": "assistant", "content": "", "reasoning_content": "t1",
   "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
  {"role": "tool", "content": "r1"}, {"role": "assistant", "content": "a1", "reasoning_content": "t2"},
  {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2", "reasoning_content": "t3"}]})";

TEST(RewrittenTurns, AreEachLearntInASampleThatEndsWithThem) {
  const EncodedRow row = encoded(kThoughtful, {});
  EXPECT_EQ(learnt(row.sample), "a2<|im_end|>|<think>\nt4\n</think>\n\na4<|im_end|>");
  ASSERT_EQ(row.expanded.size(), 2u);
  EXPECT_EQ(learnt(row.expanded[0]), "<think>\nt1\n</think>\n\na1<|im_end|>");
  EXPECT_EQ(text(row.expanded[0]),
            "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\n<think>\nt1\n</think>\n\na1<|im_end|>\n");
  EXPECT_EQ(learnt(row.expanded[1]), "<think>\nt3\n</think>\n\na3<|im_end|>");
  EXPECT_THAT(text(row.expanded[1]), HasSubstr("assistant\na1<|im_end|>"));  // as it is shown at that time
  EXPECT_TRUE(row.history_rewritten);
  EXPECT_FALSE(row.partly_shown);
}

TEST(RewrittenTurns, OfOneTurnShareASample) {
  const EncodedRow row = encoded(kAgent, {});
  EXPECT_EQ(learnt(row.sample), "<think>\nt3\n</think>\n\na2<|im_end|>");
  ASSERT_EQ(row.expanded.size(), 1u);
  EXPECT_EQ(
      learnt(row.expanded[0]),
      "<think>\nt1\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call><|im_end|>|"
      "<think>\nt2\n</think>\n\na1<|im_end|>");
}

TEST(RewrittenTurns, EveryAnswerIsLearntOnceWhateverThePolicyKeeps) {
  // The characters that all samples learn, together, are those of all answers: none twice, none left out.
  for (const std::string& conversation : {kThoughtful, kAgent}) {
    const EncodedRow row = encoded(conversation, {});
    std::string all = learnt(row.sample);
    for (const Sample& sample : row.expanded) all += learnt(sample);
    const Json messages = Json::parse(conversation)["messages"];
    for (const char* part : {"t1", "t3", "a1", "a2"}) {
      const size_t at = all.find(part);
      ASSERT_NE(at, std::string::npos) << part;
      EXPECT_EQ(all.find(part, at + 1), std::string::npos) << part;
    }
  }
}

TEST(RewrittenTurns, AreNotLearntUnderMask) {
  const EncodedRow row = encoded(kThoughtful, {.history_rewrites = HistoryRewrites::kMask});
  EXPECT_EQ(learnt(row.sample), "a2<|im_end|>|<think>\nt4\n</think>\n\na4<|im_end|>");
  EXPECT_TRUE(row.expanded.empty());
  EXPECT_TRUE(row.history_rewritten);
}

TEST(RewrittenTurns, AreRefusedUnderError) {
  const auto options = ChatEncoderOptions{.history_rewrites = HistoryRewrites::kError};
  EXPECT_THAT(refusal([&] { encoded(kThoughtful, options); }),
              AllOf(HasSubstr("messages[1]"), HasSubstr("d.jsonl:7"), HasSubstr("history_rewrites: expand")));
  EXPECT_EQ(refusal([&] {
              encoded(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
                         {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})",
                      options);
            }),
            "");
}

TEST(RewrittenTurns, ConcernOnlyAnswersThatAreLearnt) {
  const EncodedRow last = encoded(kThoughtful, {.train_on = TrainOn::kLast});
  EXPECT_EQ(learnt(last.sample), "<think>\nt4\n</think>\n\na4<|im_end|>");
  EXPECT_FALSE(last.history_rewritten);
  EXPECT_FALSE(encoded(kThoughtful, {.train_on = TrainOn::kAll}).history_rewritten);
  Json without = Json::parse(kThoughtful);
  for (const int message : {1, 5}) without["messages"][static_cast<size_t>(message)]["train"] = false;
  EXPECT_FALSE(encoded(without.dump(), {.history_rewrites = HistoryRewrites::kError}).history_rewritten);
}

TEST(RewrittenTurns, KeepTheirWeights) {
  Json weighted = Json::parse(kThoughtful);
  weighted["messages"][1]["weight"] = 0.5;
  const EncodedRow row = encoded(weighted.dump(), {});
  const Sample& sample = row.expanded.at(0);
  ASSERT_EQ(sample.weights.size(), sample.labels.size());
  for (size_t i = 0; i < sample.labels.size(); ++i) {
    if (sample.labels[i] != kIgnoredLabel) {
      EXPECT_EQ(sample.weights[i], 0.5f);
    }
  }
}

TEST(RewrittenTurns, OfACompletionAreLearntOnceToo) {
  const std::string row_text = R"({"prompt": [{"role": "user", "content": "q1"}], "completion": [
      {"role": "assistant", "content": "a1", "reasoning_content": "t1"}, {"role": "user", "content": "q2"},
      {"role": "assistant", "content": "a2", "reasoning_content": "t2"}]})";
  const EncodedRow row = encoded(row_text, {.train_on = TrainOn::kCompletion}, SampleFormat::kPromptCompletion);
  ASSERT_EQ(row.expanded.size(), 1u);
  EXPECT_EQ(learnt(row.expanded[0]), "<think>\nt1\n</think>\n\na1<|im_end|>");
  EXPECT_THAT(learnt(row.sample), AllOf(HasSubstr("q2"), HasSubstr("t2"), Not(HasSubstr("a1"))));
}

TEST(RewrittenTurns, WhenAllAreMaskedTheRowSaysWhy) {
  const EncodedRow row = encoded(
      R"({"messages": [{"role": "user", "content": "q"},
          {"role": "assistant", "content": "a", "reasoning_content": "t"}, {"role": "user", "content": "bye"}]})",
      {.history_rewrites = HistoryRewrites::kMask});
  EXPECT_THAT(row.nothing_learnt, HasSubstr("history_rewrites: mask"));
  EXPECT_FALSE(row.masked_by_data);
}

TEST(RewrittenTurns, AreTheRowsOnlySampleIfNothingElseIsLearnt) {
  const EncodedRow row = encoded(
      R"({"messages": [{"role": "user", "content": "q"},
          {"role": "assistant", "content": "a", "reasoning_content": "t"}, {"role": "user", "content": "bye"}]})",
      {});
  EXPECT_EQ(learnt(row.sample), "<think>\nt\n</think>\n\na<|im_end|>");
  EXPECT_TRUE(row.expanded.empty());
  EXPECT_EQ(row.nothing_learnt, "");
}

TEST(RewrittenTurns, PolicyIsReadByName) {
  EXPECT_EQ(history_rewrites_of("mask"), HistoryRewrites::kMask);
  EXPECT_THAT(refusal([] { history_rewrites_of("drop"); }), HasSubstr("one of expand, mask, error"));
}

}  // namespace
}  // namespace hone
