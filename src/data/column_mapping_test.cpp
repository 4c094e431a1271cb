#include "data/column_mapping.h"

#include <gmock/gmock.h>

#include "data/data_testing.h"
#include "data/sample_format.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ColumnMapping mapping(const std::string& json) { return ColumnMapping::parse(Json::parse(json), "run.yaml:3"); }

std::string error_of(const std::string& json) {
  return refusal([&] { mapping(json); });
}

Conversation chat(const std::string& row, const std::string& json, SampleFormat format = SampleFormat::kAuto) {
  const ColumnMapping columns = mapping(json);
  if (format == SampleFormat::kAuto) {
    const std::vector<LocatedRow> rows = {{Json::parse(row), "d.jsonl:1"}};
    format = detect_format(rows, columns).format;
  }
  return std::get<Conversation>(format_row(Json::parse(row), format, "d.jsonl:1", columns));
}

std::string messages(const std::string& row, const std::string& json, SampleFormat format = SampleFormat::kAuto) {
  return chat(row, json, format).messages.dump();
}

constexpr const char* kThree =
    R"([{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}])";
constexpr const char* kTwo = R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])";

TEST(ColumnMapping, NamesTheColumnsOfOneTurn) {
  EXPECT_EQ(messages(R"({"rules": "s", "ask": "q", "reply": "a"})",
                     R"({"system": "rules", "prompt": "ask", "response": "reply"})"),
            kThree);
  EXPECT_EQ(messages(R"({"prompt": "s", "question": "q", "response": "a"})",
                     R"({"system": "prompt", "prompt": "question", "response": "response"})"),
            kThree);
}

TEST(ColumnMapping, AColumnReadAsSomethingElseDoesNotStandForItself) {
  EXPECT_EQ(messages(R"({"prompt": "q", "text": "a"})", R"({"response": "text"})"), kTwo);
  EXPECT_EQ(messages(R"({"system": "q", "answer": "a"})", R"({"prompt": "system"})"), kTwo);
}

TEST(ColumnMapping, TakesTheNamesOfOtherTools) {
  // LLaMA-Factory: query is the input.
  EXPECT_EQ(
      messages(R"({"i": "q", "x": "in", "o": "a", "s": "s"})",
               R"({"prompt": "i", "query": "x", "response": "o", "system": "s"})"),
      R"([{"role":"system","content":"s"},{"role":"user","content":"q\nin"},{"role":"assistant","content":"a"}])");
  EXPECT_EQ(messages(R"({"i": "q", "o": "a"})", R"({"prompt": "i", "response": "o"})", SampleFormat::kAlpaca), kTwo);
  // ms-swift: the columns of the data first.
  EXPECT_EQ(messages(R"({"text1": "q", "text2": "a"})", R"({"text1": "query", "text2": "response"})"), kTwo);
  // Axolotl.
  EXPECT_EQ(messages(R"({"dialog": [{"who": "human", "says": "q"}, {"who": "bot", "says": "a"}]})",
                     R"({"messages": "dialog", "role": "who", "content": "says",
                         "roles": {"user": ["human"], "assistant": ["gpt", "bot"]}})"),
            kTwo);
  // LLaMA-Factory's tags.
  EXPECT_EQ(messages(R"({"messages": [{"role": "h", "content": "q"}, {"role": "g", "content": "a"}]})",
                     R"({"role_tag": "role", "content_tag": "content", "user_tag": "h", "assistant_tag": "g"})"),
            kTwo);
}

TEST(ColumnMapping, MapsKeysOfMessages) {
  const Conversation learnt =
      chat(R"({"m": [{"r": "user", "c": "q", "role": 7}, {"r": "assistant", "c": "a", "t": "thought", "w": 0.5}]})",
           R"({"messages": "m", "role": "r", "content": "c", "reasoning_content": "t", "weight": "w"})");
  EXPECT_EQ(learnt.messages.dump(),
            R"([{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning_content":"thought"}])");
  EXPECT_THAT(learnt.weights, testing::ElementsAre(1, 0.5f));
  EXPECT_THAT(refusal([&] { chat(R"({"m": [{"rol": "user"}]})", R"({"messages": "m", "role": "role_"})"); }),
              AllOf(HasSubstr("m[0] has no 'role_'"), HasSubstr("it has the keys: rol. Did you mean 'rol'?")));
}

TEST(ColumnMapping, AMissingColumnIsNamedWithTheNearest) {
  EXPECT_THAT(refusal([&] { chat(R"({"question": "q", "reply": "a"})", R"({"prompt": "quesion"})"); }),
              AllOf(HasSubstr("the column 'quesion' is missing, which column_mapping reads as prompt"),
                    HasSubstr("the row has the columns: question, reply. Did you mean 'question'?"),
                    HasSubstr("where: d.jsonl:1")));
}

TEST(ColumnMapping, NamesThatAreNoneOfOursAreRefused) {
  EXPECT_THAT(error_of(R"({"promt": "q"})"),
              AllOf(HasSubstr("column_mapping has no 'promt'. Did you mean 'prompt'"), HasSubstr("where: run.yaml:3")));
  EXPECT_THAT(error_of(R"({"prompt": 3})"), HasSubstr("column_mapping.prompt is not the name of a column"));
  EXPECT_THAT(error_of(R"({"prompt": "a", "response": "a"})"),
              HasSubstr("reads both prompt and response from the column 'a'"));
  EXPECT_THAT(error_of(R"({"prompt": "a", "question": "b"})"), HasSubstr("gives prompt two columns: 'a' and 'b'"));
  EXPECT_THAT(error_of(R"({"images": "a"})"), HasSubstr("images, which are not trained on"));
  EXPECT_THAT(error_of(R"({"roles": {"asistant": "a"}})"), HasSubstr("Did you mean 'assistant'?"));
  EXPECT_THAT(error_of(R"({"roles": {"user": "a", "assistant": ["a"]}})"), HasSubstr("makes 'a' both user and"));
  EXPECT_THAT(error_of(R"({"roles": ["a"]})"), HasSubstr("is not a mapping"));
  EXPECT_THAT(error_of(R"(["a"])"), HasSubstr("is not a mapping"));
  EXPECT_EQ(error_of(R"({"system": null, "tools": ""})"), "");
}

TEST(ColumnMapping, AFormatThatDoesNotReadAColumnSaysSo) {
  EXPECT_THAT(refusal([] { check_mapping(SampleFormat::kText, mapping(R"({"prompt": "a"})"), "d.jsonl:1"); }),
              AllOf(HasSubstr("column_mapping names 'prompt', which the format text does not read"),
                    HasSubstr("it reads text")));
}

}  // namespace
}  // namespace hone
