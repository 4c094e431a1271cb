#include "data/contrary_columns.h"

#include <gmock/gmock.h>

#include "data/data_testing.h"
#include "data/dataset_builder.h"
#include "data/dataset_reader.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kMessages =
    R"("messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])";

class ContraryColumns : public testing::Test {
 protected:
  /// The error of a file with these rows, or "".
  std::string error(const std::string& rows, const Json& mapping = {}, const std::vector<std::string>& ignored = {},
                    const std::string& name = "d.jsonl") {
    DatasetEntry entry{folder_.write(name, rows)};
    entry.mapping = ColumnMapping::parse(mapping, "d");
    entry.mapping.ignore(ignored, "d");
    return refusal([&] {
      DatasetReader reader(entry);
      for (DatasetRow row; reader.next(row);) read_row(row, entry.mapping);
    });
  }

  DataFolder folder_;
};

TEST_F(ContraryColumns, LabelsThatAreFalseAreRefusedWithTheLineToPaste) {
  const std::string good = "{" + kMessages + R"(, "label": true})" + "\n";
  EXPECT_EQ(error(good), "");
  for (const char* name : {"label", "kto_tag"}) {
    const std::string bad = "{" + kMessages + ", \"" + name + "\": false}\n";
    EXPECT_THAT(error(good + bad), AllOf(HasSubstr(std::string("the column '") + name + "' is false"),
                                         HasSubstr(":2\n"), HasSubstr(std::string("ignore_columns: [") + name + "]")));
    EXPECT_EQ(error(good + bad, {}, {name}), "");
  }
  EXPECT_THAT(error(R"({"prompt": "q", "completion": "a", "label": false})"), HasSubstr("ignore_columns: [label]"));
  EXPECT_THAT(error("question,answer,label\nq,a,False\n", {}, {}, "d.csv"), HasSubstr("ignore_columns: [label]"));
  EXPECT_EQ(error("question,answer,label\nq,a,true\n", {}, {}, "d.csv"), "");
}

TEST_F(ContraryColumns, ClassLabelsAreListedOnly) {
  EXPECT_EQ(error(R"({"text": "a film", "label": 0})"), "");
  EXPECT_EQ(error(R"({"text": "a film", "label": "negative"})"), "");
  EXPECT_EQ(error("{" + kMessages + R"(, "label": 0})"), "");
}

TEST_F(ContraryColumns, MediaAreRefusedUnlessTheListIsEmpty) {
  for (const char* name : {"images", "image", "videos", "audios"}) {
    EXPECT_THAT(error("{" + kMessages + ", \"" + name + "\": [\"a.png\"]}"),
                AllOf(HasSubstr("holds media"), HasSubstr(std::string("ignore_columns: [") + name + "]")));
    EXPECT_EQ(error("{" + kMessages + ", \"" + name + "\": []}"), "");
    EXPECT_EQ(error("{" + kMessages + ", \"" + name + "\": null}"), "");
  }
  EXPECT_THAT(error(R"({"text": "a cat", "image": "cat.png"})"), HasSubstr("ignore_columns: [image]"));
}

TEST_F(ContraryColumns, RejectedAnswersAreRefusedBesideAnything) {
  EXPECT_THAT(error(R"({"text": "t", "rejected": "no"})"), HasSubstr("ignore_columns: [rejected]"));
  EXPECT_THAT(error("{" + kMessages + R"(, "rejected_response": "no"})"), HasSubstr("[rejected_response]"));
  const std::string dpo =
      R"({"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "a"},
      "rejected": {"from": "gpt", "value": "b"}})";
  std::string row = dpo;
  std::erase(row, '\n');
  EXPECT_THAT(error(row), AllOf(HasSubstr("ignore_columns: [rejected, chosen]"), HasSubstr("column_mapping")));
  EXPECT_THAT(error(row, {}, {"rejected"}), HasSubstr("ignore_columns: [rejected, chosen]"));
  EXPECT_EQ(error("{" + kMessages + R"(, "rejected": ""})"), "");
}

TEST_F(ContraryColumns, ChosenThatIsWhatMessagesAreIsListedOnly) {
  const std::string list = kMessages.substr(kMessages.find('['));
  const std::string row = "{" + kMessages + ", \"chosen\": " + list + ", \"rejected\": []}";
  EXPECT_EQ(error(row), "");
  const std::string pair = "{" + kMessages + ", \"chosen\": " + list + ", \"rejected\": " + list + "}";
  EXPECT_THAT(error(pair), AllOf(HasSubstr("ignore_columns: [rejected]"), Not(HasSubstr("'chosen'"))));
}

TEST_F(ContraryColumns, AMappingThatReadsAColumnSettlesIt) {
  const std::string row = R"({"question": "q", "chosen": "a", "rejected": "b"})";
  EXPECT_THAT(error(row), AllOf(HasSubstr("preference pairs"), HasSubstr("ignore_columns: [rejected]")));
  EXPECT_EQ(error(row, {{"prompt", "question"}, {"response", "chosen"}}), "");
  EXPECT_EQ(error(R"({"a": "q", "label": "false"})", {{"prompt", "a"}, {"response", "label"}}), "");
}

TEST_F(ContraryColumns, IgnoredColumnsAreAbsentForTheFormatToo) {
  const std::string both = "{" + kMessages + R"(, "text": "t"})";
  EXPECT_THAT(error(both), HasSubstr("the columns fit several formats"));
  EXPECT_EQ(error(both, {}, {"text"}), "");
  EXPECT_THAT(refusal([] {
                ColumnMapping mapping = ColumnMapping::parse({{"prompt", "a"}}, "d");
                mapping.ignore({"a"}, "d");
              }),
              HasSubstr("column_mapping reads the column 'a', and ignore_columns leaves it out"));
}

TEST_F(ContraryColumns, AllColumnsThatAreNotUsedAreListed) {
  DataOptions options;
  options.vocab_size = 5000;
  options.datasets = {{folder_.write("d.jsonl", "{" + kMessages + R"(, "id": 1, "label": true})" + "\n{" + kMessages +
                                                    R"(, "source": "x", "label": null})" + "\n")}};
  options.datasets[0].mapping.ignore({"label", "rejectd"}, "d");
  const Tokenizer tokenizer = qwen_tokenizer();
  ThreadPool pool(2);
  const auto said = [&] {
    return build_training_data(options, &tokenizer, pool).train_reports.front().unused_columns_text();
  };
  const std::string expected = "columns not used: id, label, source; ignore_columns names 'rejectd', which no row has";
  EXPECT_EQ(said(), expected);
  options.tokenized_cache = folder_ / "cache";
  EXPECT_EQ(said(), expected);
  EXPECT_EQ(said(), expected);  // from the cache
}

TEST_F(ContraryColumns, NamesThatDifferInCaseAreGivenWithTheirMapping) {
  const std::string text = error("Question,Answer\nq,a\n", {}, {}, "d.csv");
  EXPECT_THAT(text, AllOf(HasSubstr("differ in upper and lower case"),
                          HasSubstr("column_mapping: {question: Question, answer: Answer}")));
  EXPECT_EQ(error("Question,Answer\nq,a\n", {{"question", "Question"}, {"answer", "Answer"}}, {}, "d.csv"), "");
}

TEST_F(ContraryColumns, HowAnswersAreAskedForIsSaidOnceADifference) {
  DataOptions options;
  options.vocab_size = 5000;
  options.datasets = {{folder_.write("d.jsonl", "{" + kMessages + "}\n{" + kMessages + "}\n")}};
  options.chat.chat_template =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif "
      "%}"
      "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  options.tokenized_cache = folder_ / "cache";
  const Tokenizer tokenizer = qwen_tokenizer();
  ThreadPool pool(2);
  for (int run = 0; run < 2; ++run) {  // built, and from the cache
    const auto lines = build_training_data(options, &tokenizer, pool).train_reports.front().asked_otherwise_lines();
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_THAT(lines[0],
                AllOf(HasSubstr("2 of 2 answers (100.0 %) are learnt after "
                                "\"<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n\", but the model is asked with "
                                "\"<|im_start|>assistant\\n\""),
                      HasSubstr("d.jsonl:1"), HasSubstr("learn_empty_thinking: true")));
  }
  options.chat.learn_empty_thinking = true;
  EXPECT_TRUE(build_training_data(options, &tokenizer, pool).train_reports.front().asked_otherwise_lines().empty());
}

}  // namespace
}  // namespace hone
