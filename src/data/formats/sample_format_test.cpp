#include <gmock/gmock.h>

#include "data/dataset/data_testing.h"
#include "data/dataset/dataset_builder.h"
#include "data/dataset/dataset_reader.h"
#include "data/formats/column_mapping.h"
#include "data/formats/sample_format.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

template <class Row>
Row formatted(const std::string& row, SampleFormat format) {
  return std::get<Row>(format_row(Json::parse(row), format, "d.jsonl:7"));
}

Conversation messages(const std::string& row) { return formatted<Conversation>(row, SampleFormat::kMessages); }

std::string error_of(const std::string& row, SampleFormat format) {
  return refusal([&] { format_row(Json::parse(row), format, "d.jsonl:7"); });
}

DetectedFormat detected(const std::vector<std::string>& rows) {
  std::vector<LocatedRow> located;
  for (const std::string& row : rows) {
    located.push_back({Json::parse(row), "d.jsonl:" + std::to_string(located.size() + 1)});
  }
  return detect_format(located);
}

TEST(Messages, TextPartsMayHoldTheirTextAsValue) {
  EXPECT_EQ(messages(R"({"messages": [{"role": "user", "content": [{"type": "text", "value": "a "},
      {"type": "text", "text": "b"}]}]})")
                .messages[0]["content"],
            "a b");
  EXPECT_THAT(error_of(R"({"messages": [{"role": "user", "content": [{"type": "image", "value": "a.png"}]}]})",
                       SampleFormat::kMessages),
              HasSubstr("a part that is not text"));
}

TEST(Messages, KeepMessagesToolsAndTheOrderOfKeys) {
  const Conversation chat = messages(
      R"({"id": 3, "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
          "messages": [{"role": "user", "content": "q", "name": "Ann"},
                       {"role": "assistant", "content": null, "reasoning_content": "r",
                        "tool_calls": [{"function": {"name": "f", "arguments": {"z": 1, "a": 2}}}]}],
          "chat_template_kwargs": {"enable_thinking": false}})");
  EXPECT_EQ(chat.messages.dump(),
            R"([{"role":"user","content":"q","name":"Ann"},{"role":"assistant","content":null,"reasoning_content":"r",)"
            R"("tool_calls":[{"function":{"name":"f","arguments":{"z":1,"a":2}}}]}])");
  EXPECT_EQ(chat.tools[0]["function"]["name"], "f");
  EXPECT_EQ(chat.template_kwargs, (Json{{"enable_thinking", false}}));
  EXPECT_THAT(chat.weights, ElementsAre(1, 1));
  EXPECT_FALSE(chat.completion_begin);
}

TEST(Messages, ToolsMayBeJsonAsText) {
  const std::string chat = R"("messages": [{"role": "user", "content": "q"}])";
  EXPECT_EQ(messages(R"({"tools": "[{\"name\": \"f\"}]", )" + chat + "}").tools.dump(), R"([{"name":"f"}])");
  EXPECT_TRUE(messages(R"({"tools": "", )" + chat + "}").tools.is_null());
  EXPECT_TRUE(messages(R"({"tools": null, )" + chat + "}").tools.is_null());
  EXPECT_THAT(error_of(R"({"tools": "[{", )" + chat + "}", SampleFormat::kMessages), HasSubstr("not a JSON list"));
  EXPECT_THAT(error_of(R"({"tools": {"a": 1}, )" + chat + "}", SampleFormat::kMessages),
              HasSubstr("'tools' is an object, not a list"));
}

TEST(Messages, WeightsOfMessagesAreReadAndKeptFromTheTemplate) {
  const Conversation chat = messages(
      R"({"messages": [{"role": "user", "content": "q", "train": false},
                       {"role": "assistant", "content": "a", "weight": 0.5},
                       {"role": "assistant", "content": "b", "loss": true, "loss_mask": 1},
                       {"role": "assistant", "content": "c", "loss_mask": 0},
                       {"role": "assistant", "content": "d", "weight": null}]})");
  EXPECT_THAT(chat.weights, ElementsAre(0, 0.5f, 1, 0, 1));
  for (const Json& message : *chat.messages) EXPECT_LE(message.size(), 3u);
  EXPECT_EQ(chat.messages[1].dump(), R"({"role":"assistant","content":"a"})");
  EXPECT_FALSE(chat.other_roles_ask);
  EXPECT_TRUE(messages(R"({"messages": [{"role": "user", "content": "q", "train": true}]})").other_roles_ask);
}

TEST(Messages, TextPartsAreJoined) {
  const Conversation chat = messages(
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})");
  EXPECT_EQ(chat.messages[0]["content"], "ab");
}

TEST(Messages, RefusalsNamePlaceAndReason) {
  const auto error = [](const std::string& list) {
    return error_of(R"({"messages": )" + list + "}", SampleFormat::kMessages);
  };
  EXPECT_THAT(error("[]"), AllOf(HasSubstr("'messages' is an empty list"), HasSubstr("where: d.jsonl:7")));
  EXPECT_THAT(error(R"("hi")"), HasSubstr("'messages' is text that is not a JSON list, but should be a list of"));
  EXPECT_THAT(error("3"), HasSubstr("'messages' is a number, not a list of messages"));
  EXPECT_THAT(error(R"([{"content": "a"}])"), HasSubstr("messages[0] has no 'role'"));
  EXPECT_THAT(error(R"([{"role": 3, "content": "a"}])"), HasSubstr("'messages[0].role' is a number, not text"));
  EXPECT_THAT(error(R"([{"role": "user"}])"), HasSubstr("messages[0] has neither content nor tool calls"));
  EXPECT_THAT(error(R"([{"role": "user", "content": 5}])"), HasSubstr("'messages[0].content' is a number, not text"));
  EXPECT_THAT(error(R"([{"from": "human", "value": "a"}])"),
              AllOf(HasSubstr("of the format sharegpt"), HasSubstr("type: sharegpt")));
  EXPECT_THAT(error(R"([{"role": "user", "content": [{"type": "image"}]}])"), HasSubstr("a part that is not text"));
  EXPECT_THAT(error(R"([{"role": "user", "content": "a", "weight": -1}])"), HasSubstr("messages[0].weight is -1"));
  EXPECT_THAT(error(R"([{"role": "user", "content": "a", "train": "no"}])"), HasSubstr("true, false or a number"));
  EXPECT_THAT(error(R"([{"role": "user", "content": "a", "train": false, "weight": 1}])"),
              HasSubstr("two different loss weights"));
}

TEST(PromptCompletion, TakesTextOrMessages) {
  const auto text =
      formatted<PromptCompletion>(R"({"prompt": "p", "completion": "c"})", SampleFormat::kPromptCompletion);
  EXPECT_EQ(text.prompt + "|" + text.completion, "p|c");
  const auto chat = formatted<Conversation>(
      R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
          "completion": [{"role": "assistant", "content": "a", "weight": 2}]})",
      SampleFormat::kPromptCompletion);
  EXPECT_EQ(chat.messages.size(), 3u);
  EXPECT_EQ(chat.completion_begin, 2u);
  EXPECT_THAT(chat.weights, ElementsAre(1, 1, 2));
  EXPECT_THAT(error_of(R"({"prompt": "p", "completion": [{}]})", SampleFormat::kPromptCompletion),
              HasSubstr("'completion' is an array, not text as the prompt is"));
}

TEST(Tokenized, LabelsDefaultToTheTokens) {
  const auto row = formatted<TokenizedRow>(R"({"input_ids": [5, 6, 7]})", SampleFormat::kTokenized);
  EXPECT_THAT(row.labels, ElementsAre(5, 6, 7));
  EXPECT_TRUE(row.weights.empty());
}

TEST(Tokenized, ReadsLabelsWeightsAndAMaskOfOnes) {
  const auto row = formatted<TokenizedRow>(
      R"({"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "weights": [1, 0, 0.5], "attention_mask": [1, 1, 1],
          "position_ids": [0, 1, 2]})",
      SampleFormat::kTokenized);
  EXPECT_THAT(row.labels, ElementsAre(-100, -100, 7));
  EXPECT_THAT(row.weights, ElementsAre(1, 0, 0.5f));
}

TEST(Tokenized, RefusalsNamePlaceAndReason) {
  const auto error = [](const std::string& row) { return error_of(row, SampleFormat::kTokenized); };
  EXPECT_THAT(error(R"({"input_ids": [1, 2], "labels": [1]})"), HasSubstr("'labels' has 1 entries, 'input_ids' has 2"));
  EXPECT_THAT(error(R"({"input_ids": []})"), HasSubstr("'input_ids' is an empty list"));
  EXPECT_THAT(error(R"({"input_ids": [1, "a"]})"), HasSubstr("'input_ids[1]' is text, not a whole number"));
  EXPECT_THAT(error(R"({"input_ids": [1, 1.5]})"), HasSubstr("'input_ids[1]' is a number, not a whole number"));
  EXPECT_THAT(error(R"({"input_ids": [1, 99999999999]})"), HasSubstr("input_ids[1] is 99999999999"));
  EXPECT_THAT(error(R"({"input_ids": [1, 18446744073709551615]})"), HasSubstr("token ids fit 32 bits"));
  EXPECT_THAT(error(R"({"input_ids": [1, 2], "attention_mask": [1, 0]})"), HasSubstr("remove the padding"));
  EXPECT_THAT(error(R"({"input_ids": [1, 2], "position_ids": [0, 0]})"), HasSubstr("write one document per row"));
  EXPECT_THAT(error(R"({"input_ids": [1, 2], "weights": [1, -1]})"), HasSubstr("weights[1] is -1"));
}

TEST(SampleFormat, AMissingColumnIsNamedWithThoseFound) {
  EXPECT_THAT(
      error_of(R"({"id": 1, "mesages": []})", SampleFormat::kMessages),
      AllOf(HasSubstr("the column 'messages' is missing, which the format messages needs"),
            HasSubstr("the row has the columns: id, mesages. Did you mean 'mesages'?"), HasSubstr("where: d.jsonl:7")));
  EXPECT_THAT(error_of(R"({"prompt": "a", "completion": null})", SampleFormat::kPromptCompletion),
              HasSubstr("the column 'completion' is null"));
  EXPECT_THAT(error_of(R"({"conversations": [{"from": "human", "value": "a"}]})", SampleFormat::kMessages),
              HasSubstr("conversations[0] has the keys 'from' and 'value' of the format sharegpt"));
}

TEST(SampleFormat, IsDetectedByColumns) {
  const DetectedFormat format = detected({R"({"messages": [], "id": 1})", R"({"messages": []})"});
  EXPECT_EQ(format.format, SampleFormat::kMessages);
  EXPECT_EQ(format.reason, "column 'messages' in d.jsonl:1");
  EXPECT_EQ(detected({R"({"prompt": "", "completion": ""})"}).format, SampleFormat::kPromptCompletion);
  EXPECT_EQ(detected({R"({"input_ids": [], "labels": []})"}).format, SampleFormat::kTokenized);
  EXPECT_EQ(detected({R"({"text": ""})"}).format, SampleFormat::kText);
  EXPECT_EQ(detected({R"({"conversations": [], "system": "s"})"}).format, SampleFormat::kShareGpt);
  EXPECT_EQ(detected({R"({"messages": [{"from": "human", "value": "a"}]})"}).format, SampleFormat::kShareGpt);
  EXPECT_EQ(detected({R"({"instruction": "", "input": "", "output": ""})"}).reason,
            "columns 'instruction', 'input' and 'output' in d.jsonl:1");
  EXPECT_EQ(detected({R"({"prompt": "", "question": "", "response": ""})"}).reason,
            "columns 'prompt' as system, 'question' as user and 'response' as assistant in d.jsonl:1");
  EXPECT_EQ(detected({R"({"question": "", "answer": ""})"}).reason,
            "columns 'question' as user and 'answer' as assistant in d.jsonl:1");
  EXPECT_EQ(detected({R"({"prompt": "", "response": ""})"}).format, SampleFormat::kPromptResponse);
  EXPECT_EQ(detected({R"({"prompt": "x", "messages": []})"}).format, SampleFormat::kMessages);
}

TEST(SampleFormat, DetectionRefusesWhatItCannotTell) {
  const auto error = [](const std::vector<std::string>& rows) { return refusal([&] { detected(rows); }); };
  EXPECT_THAT(error({R"({"chosen": "", "rejected": ""})"}), HasSubstr("those of preference pairs"));
  EXPECT_THAT(error({R"({"instruction": "", "output": "", "text": ""})"}),
              AllOf(HasSubstr("fit several formats: alpaca (columns 'instruction' and 'output'), text (column 'text')"),
                    HasSubstr("type: alpaca, or type: text")));
  EXPECT_THAT(error({R"({"messages": [], "conversations": []})"}),
              HasSubstr("messages (column 'messages'), sharegpt (column 'conversations')"));
  EXPECT_THAT(error({R"({"conversations": [], "conversation": []})"}), HasSubstr("several columns match"));
  EXPECT_THAT(error({R"({"message": []})"}),
              AllOf(HasSubstr("the columns fit no format: message"), HasSubstr("Did you mean 'messages'?")));
  EXPECT_THAT(error({R"({"messages": [], "input_ids": []})"}),
              HasSubstr("messages (column 'messages'), tokenized (column 'input_ids')"));
  EXPECT_THAT(error({R"({"messages": []})", R"({"input_ids": []})"}),
              AllOf(HasSubstr("this row is tokenized, but d.jsonl:1 is messages"), HasSubstr("where: d.jsonl:2")));
}

Conversation sharegpt(const std::string& row) { return formatted<Conversation>(row, SampleFormat::kShareGpt); }

TEST(ShareGpt, SpeakersBecomeRoles) {
  const Conversation chat = sharegpt(
      R"({"system": "S", "tools": "[{\"name\": \"f\"}]", "conversations": [
          {"from": "human", "value": "q"},
          {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": 2}}", "weight": 0.5},
          {"from": "observation", "value": "42"},
          {"from": "gpt", "value": "a", "train": false}]})");
  EXPECT_EQ(chat.messages.dump(),
            R"([{"role":"system","content":"S"},{"role":"user","content":"q"},)"
            R"({"role":"assistant","content":null,"tool_calls":[{"type":"function","function":{"name":"f",)"
            R"("arguments":{"z":1,"a":2}}}]},{"role":"tool","content":"42"},{"role":"assistant","content":"a"}])");
  EXPECT_THAT(chat.weights, ElementsAre(1, 1, 0.5f, 1, 0));
  EXPECT_EQ(chat.tools.dump(), R"([{"name":"f"}])");
  EXPECT_FALSE(chat.other_roles_ask);
}

TEST(MessageParts, ThoughtsAndCallsOfLlamaFactoryAreRead) {
  const auto read = [](const std::string& content) {
    return formatted<Conversation>(R"({"messages": [{"role": "assistant", "content": )" + content + "}]}",
                                   SampleFormat::kMessages)
        .messages.dump();
  };
  EXPECT_EQ(
      read(R"([{"type": "reasoning", "value": "hm"}, {"type": "text", "value": "a"}, {"type": "text", "text": "b"}])"),
      R"([{"role":"assistant","content":"ab","reasoning_content":"hm"}])");
  EXPECT_EQ(read(R"([{"type": "reasoning", "value": "hm"},
                     {"type": "tool_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},
                     {"type": "function", "value": {"name": "g"}}])"),
            R"([{"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[)"
            R"({"type":"function","function":{"name":"f","arguments":{"x":1}}},)"
            R"({"type":"function","function":{"name":"g"}}]}])");
  EXPECT_EQ(read(R"([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": null, "value": "a"}])"),
            R"([{"role":"assistant","content":"a","reasoning_content":"hm"}])");
  const auto error = [](const std::string& message) {
    return error_of(R"({"messages": [)" + message + "]}", SampleFormat::kMessages);
  };
  EXPECT_THAT(error(R"({"role": "user", "content": [{"type": "image_url", "value": "x"}]})"),
              HasSubstr("has a part that is not text"));
  EXPECT_THAT(
      error(R"({"role": "assistant", "reasoning_content": "r", "content": [{"type": "reasoning", "value": "s"}]})"),
      HasSubstr("has 'reasoning_content' and a part of content that is one"));
  EXPECT_THAT(error(R"({"role": "assistant", "content": null, "tool_calls": null})"),
              HasSubstr("has neither content nor tool calls"));
}

TEST(MessageParts, LossWeightIsLlamaFactorysName) {
  const Conversation chat = formatted<Conversation>(
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "loss_weight": 0.0}]})",
      SampleFormat::kMessages);
  EXPECT_THAT(chat.weights, ElementsAre(1, 0));
}

TEST(ShareGpt, EverySpeakerIsKnown) {
  const auto role = [](const std::string& speaker) {
    return sharegpt(R"({"conversations": [{"from": ")" + speaker + R"(", "value": "[{\"name\": \"f\"}]"}]})")
        .messages[0]["role"]
        .get<std::string>();
  };
  for (const char* speaker : {"human", "user"}) EXPECT_EQ(role(speaker), "user");
  for (const char* speaker : {"gpt", "assistant", "model", "bot", "chatgpt", "function_call", "tool_call"}) {
    EXPECT_EQ(role(speaker), "assistant") << speaker;
  }
  for (const char* speaker : {"tool", "function", "observation", "tool_response"}) EXPECT_EQ(role(speaker), "tool");
  EXPECT_EQ(role("system"), "system");
}

TEST(ShareGpt, TakesRolesAndContentsToo) {
  EXPECT_EQ(sharegpt(R"({"conversations": [{"role": "human", "content": "q"}, {"from": "gpt", "content": "a"}]})")
                .messages.dump(),
            R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])");
}

TEST(ShareGpt, RefusalsNamePlaceAndReason) {
  const auto error = [](const std::string& row) { return error_of(row, SampleFormat::kShareGpt); };
  EXPECT_THAT(error(R"({"conversations": [{"from": "asistant", "value": "a"}]})"),
              AllOf(HasSubstr("conversations[0].from is 'asistant', which is not a speaker of sharegpt. Did you mean "
                              "'assistant'?"),
                    HasSubstr("column_mapping: {roles: {assistant: asistant}}"), HasSubstr("where: d.jsonl:7")));
  EXPECT_THAT(error(R"({"conversations": [{"value": "a"}]})"), HasSubstr("conversations[0] has no 'from'"));
  EXPECT_THAT(error(R"({"conversations": [{"from": "gpt"}]})"), HasSubstr("neither content nor tool calls"));
  EXPECT_THAT(error(R"({"conversations": "x"})"), HasSubstr("text that is not a JSON list"));
  EXPECT_THAT(error(R"({"conversations": [{"from": "function_call", "value": "f 1"}]})"),
              HasSubstr("is a function call, but not JSON"));
  EXPECT_THAT(error(R"({"system": "S", "conversations": [{"from": "system", "value": "T"}]})"),
              HasSubstr("the column 'system' has another one"));
  EXPECT_THAT(error(R"({"conversation": null})"), HasSubstr("the column 'messages' is missing"));
}

TEST(Messages, TheListMayBeJsonAsText) {
  EXPECT_EQ(messages(R"({"messages": "[{\"role\": \"user\", \"content\": \"q\"}]"})").messages.size(), 1u);
}

TEST(Messages, ASystemColumnStandsInFrontUnlessItIsThere) {
  const Conversation chat = messages(R"({"system": "S", "messages": [{"role": "user", "content": "q"}]})");
  EXPECT_EQ(chat.messages[0].dump(), R"({"role":"system","content":"S"})");
  EXPECT_EQ(chat.weights.size(), 2u);
  EXPECT_EQ(messages(R"({"system": "S", "messages": [{"role": "system", "content": "S"}]})").messages.size(), 1u);
  EXPECT_EQ(messages(R"({"system": "", "messages": [{"role": "user", "content": "q"}]})").messages.size(), 1u);
}

Conversation alpaca(const std::string& row) { return formatted<Conversation>(row, SampleFormat::kAlpaca); }

TEST(Alpaca, TheInputGoesOnALineOfItsOwn) {
  const std::string both = R"([{"role":"user","content":"i\nx"},{"role":"assistant","content":"o"}])";
  EXPECT_EQ(alpaca(R"({"instruction": "i", "input": "x", "output": "o"})").messages.dump(), both);
  const std::string alone = R"([{"role":"user","content":"i"},{"role":"assistant","content":"o"}])";
  EXPECT_EQ(alpaca(R"({"instruction": "i", "input": "", "output": "o"})").messages.dump(), alone);
  EXPECT_EQ(alpaca(R"({"instruction": "i", "input": null, "output": "o"})").messages.dump(), alone);
  EXPECT_EQ(alpaca(R"({"instruction": "i", "output": "o"})").messages.dump(), alone);
  EXPECT_EQ(alpaca(R"({"instruction": "", "input": "x", "output": "o"})").messages[0]["content"], "x");
}

TEST(Alpaca, SystemAndHistoryComeFirst) {
  const Conversation chat =
      alpaca(R"({"instruction": "i", "output": "o", "system": "s", "history": [["q1", "a1"], ["q2", "a2"]]})");
  EXPECT_EQ(chat.messages.size(), 7u);
  EXPECT_EQ(chat.messages[0]["content"], "s");
  EXPECT_EQ(chat.messages[4].dump(), R"({"role":"assistant","content":"a2"})");
  EXPECT_EQ(chat.messages[5]["content"], "i");
  EXPECT_EQ(chat.weights.size(), 7u);
}

TEST(Alpaca, RefusalsNamePlaceAndReason) {
  const auto error = [](const std::string& row) { return error_of(row, SampleFormat::kAlpaca); };
  EXPECT_THAT(error(R"({"instruction": "i"})"), HasSubstr("the column 'output' is missing"));
  EXPECT_THAT(error(R"({"instruction": 3, "output": "o"})"), HasSubstr("'instruction' is a number, not text"));
  EXPECT_THAT(error(R"({"instruction": "", "output": "o"})"), HasSubstr("'instruction' is empty"));
  EXPECT_THAT(error(R"({"instruction": "i", "output": "o", "history": [["q"]]})"),
              HasSubstr("history[0] is not a turn"));
}

std::string turn(const std::string& row) {
  return formatted<Conversation>(row, SampleFormat::kPromptResponse).messages.dump();
}

TEST(PromptResponse, WithAQuestionThePromptIsTheSystemMessage) {
  EXPECT_EQ(turn(R"({"prompt": "s", "question": "q", "response": "a"})"),
            R"([{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}])");
  const std::string alone = R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])";
  EXPECT_EQ(turn(R"({"prompt": "", "question": "q", "response": "a"})"), alone);
  EXPECT_EQ(turn(R"({"question": "q", "response": "a"})"), alone);
  EXPECT_EQ(turn(R"({"question": "q", "answer": "a"})"), alone);
  EXPECT_EQ(turn(R"({"prompt": "q", "response": "a"})"), alone);
  EXPECT_EQ(turn(R"({"system": "s", "prompt": "q", "response": "a"})"),
            R"([{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}])");
}

TEST(Text, IsLearntWhole) {
  const auto text = formatted<PromptCompletion>(R"({"text": "t"})", SampleFormat::kText);
  EXPECT_EQ(text.prompt + "|" + text.completion, "|t");
  EXPECT_THAT(error_of(R"({"text": ["t"]})", SampleFormat::kText), HasSubstr("'text' is an array, not text"));
}

TEST(SampleFormat, NamesAreChecked) {
  EXPECT_EQ(sample_format_of("prompt_completion"), SampleFormat::kPromptCompletion);
  EXPECT_EQ(name_of(SampleFormat::kTokenized), "tokenized");
  EXPECT_THAT(refusal([] { sample_format_of("mesages"); }), HasSubstr("Did you mean 'messages'?"));
}

ColumnMapping mapping(const std::string& json) { return ColumnMapping::parse(Json::parse(json), "run.yaml:3"); }

std::string mapping_error(const std::string& json) {
  return refusal([&] { mapping(json); });
}

Conversation mapped_chat(const std::string& row, const std::string& json, SampleFormat format = SampleFormat::kAuto) {
  const ColumnMapping columns = mapping(json);
  if (format == SampleFormat::kAuto) {
    const std::vector<LocatedRow> rows = {{Json::parse(row), "d.jsonl:1"}};
    format = detect_format(rows, columns).format;
  }
  return std::get<Conversation>(format_row(Json::parse(row), format, "d.jsonl:1", columns));
}

std::string mapped_messages(const std::string& row, const std::string& json,
                            SampleFormat format = SampleFormat::kAuto) {
  return mapped_chat(row, json, format).messages.dump();
}

constexpr const char* kThree =
    R"([{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}])";
constexpr const char* kTwo = R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])";

TEST(ColumnMapping, NamesTheColumnsOfOneTurn) {
  EXPECT_EQ(mapped_messages(R"({"rules": "s", "ask": "q", "reply": "a"})",
                            R"({"system": "rules", "prompt": "ask", "response": "reply"})"),
            kThree);
  EXPECT_EQ(mapped_messages(R"({"prompt": "s", "question": "q", "response": "a"})",
                            R"({"system": "prompt", "prompt": "question", "response": "response"})"),
            kThree);
}

TEST(ColumnMapping, AColumnReadAsSomethingElseDoesNotStandForItself) {
  EXPECT_EQ(mapped_messages(R"({"prompt": "q", "text": "a"})", R"({"response": "text"})"), kTwo);
  EXPECT_EQ(mapped_messages(R"({"system": "q", "answer": "a"})", R"({"prompt": "system"})"), kTwo);
}

TEST(ColumnMapping, TakesTheNamesOfOtherTools) {
  // LLaMA-Factory: query is the input.
  EXPECT_EQ(
      mapped_messages(R"({"i": "q", "x": "in", "o": "a", "s": "s"})",
                      R"({"prompt": "i", "query": "x", "response": "o", "system": "s"})"),
      R"([{"role":"system","content":"s"},{"role":"user","content":"q\nin"},{"role":"assistant","content":"a"}])");
  EXPECT_EQ(mapped_messages(R"({"i": "q", "o": "a"})", R"({"prompt": "i", "response": "o"})", SampleFormat::kAlpaca),
            kTwo);
  // ms-swift maps from columns of the data.
  EXPECT_EQ(mapped_messages(R"({"text1": "q", "text2": "a"})", R"({"text1": "query", "text2": "response"})"), kTwo);
  // Axolotl.
  EXPECT_EQ(mapped_messages(R"({"dialog": [{"who": "human", "says": "q"}, {"who": "bot", "says": "a"}]})",
                            R"({"messages": "dialog", "role": "who", "content": "says",
                         "roles": {"user": ["human"], "assistant": ["gpt", "bot"]}})"),
            kTwo);
  // LLaMA-Factory's tags.
  EXPECT_EQ(mapped_messages(R"({"messages": [{"role": "h", "content": "q"}, {"role": "g", "content": "a"}]})",
                            R"({"role_tag": "role", "content_tag": "content", "user_tag": "h", "assistant_tag": "g"})"),
            kTwo);
}

TEST(ColumnMapping, MapsKeysOfMessages) {
  const Conversation learnt = mapped_chat(
      R"({"m": [{"r": "user", "c": "q", "role": 7}, {"r": "assistant", "c": "a", "t": "thought", "w": 0.5}]})",
      R"({"messages": "m", "role": "r", "content": "c", "reasoning_content": "t", "weight": "w"})");
  EXPECT_EQ(learnt.messages.dump(),
            R"([{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning_content":"thought"}])");
  EXPECT_THAT(learnt.weights, testing::ElementsAre(1, 0.5f));
  EXPECT_THAT(refusal([&] { mapped_chat(R"({"m": [{"rol": "user"}]})", R"({"messages": "m", "role": "role_"})"); }),
              AllOf(HasSubstr("m[0] has no 'role_'"), HasSubstr("it has the keys: rol. Did you mean 'rol'?")));
}

TEST(ColumnMapping, AMissingColumnIsNamedWithTheNearest) {
  EXPECT_THAT(refusal([&] { mapped_chat(R"({"question": "q", "reply": "a"})", R"({"prompt": "quesion"})"); }),
              AllOf(HasSubstr("the column 'quesion' is missing, which column_mapping reads as prompt"),
                    HasSubstr("the row has the columns: question, reply. Did you mean 'question'?"),
                    HasSubstr("where: d.jsonl:1")));
}

TEST(ColumnMapping, NamesThatAreNoneOfOursAreRefused) {
  EXPECT_THAT(mapping_error(R"({"promt": "q"})"),
              AllOf(HasSubstr("column_mapping has no 'promt'. Did you mean 'prompt'"), HasSubstr("where: run.yaml:3")));
  EXPECT_THAT(mapping_error(R"({"prompt": 3})"), HasSubstr("column_mapping.prompt is not the name of a column"));
  EXPECT_THAT(mapping_error(R"({"prompt": "a", "response": "a"})"),
              HasSubstr("reads both prompt and response from the column 'a'"));
  EXPECT_THAT(mapping_error(R"({"prompt": "a", "question": "b"})"), HasSubstr("gives prompt two columns: 'a' and 'b'"));
  EXPECT_THAT(mapping_error(R"({"images": "a"})"), HasSubstr("images, which are not trained on"));
  EXPECT_THAT(mapping_error(R"({"roles": {"asistant": "a"}})"), HasSubstr("Did you mean 'assistant'?"));
  EXPECT_THAT(mapping_error(R"({"roles": {"user": "a", "assistant": ["a"]}})"), HasSubstr("makes 'a' both user and"));
  EXPECT_THAT(mapping_error(R"({"roles": ["a"]})"), HasSubstr("is not a mapping"));
  EXPECT_THAT(mapping_error(R"(["a"])"), HasSubstr("is not a mapping"));
  EXPECT_EQ(mapping_error(R"({"system": null, "tools": ""})"), "");
}

TEST(ColumnMapping, AFormatThatDoesNotReadAColumnSaysSo) {
  EXPECT_THAT(refusal([] { check_mapping(SampleFormat::kText, mapping(R"({"prompt": "a"})"), "d.jsonl:1"); }),
              AllOf(HasSubstr("column_mapping names 'prompt', which the format text does not read"),
                    HasSubstr("it reads text")));
}

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
                AllOf(HasSubstr("2 of 2 answers (100.0 %) are trained on after "
                                "\"<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n\", but the prompt ends with "
                                "\"<|im_start|>assistant\\n\""),
                      HasSubstr("d.jsonl:1"), HasSubstr("learn_empty_thinking: true")));
  }
  options.chat.learn_empty_thinking = true;
  EXPECT_TRUE(build_training_data(options, &tokenizer, pool).train_reports.front().asked_otherwise_lines().empty());
}

TEST(DropSystemMessage, TakesTheFirstMessageOut) {
  const auto roles = [](const char* row) {
    FormattedRow formatted = format_row(Json::parse(row), SampleFormat::kMessages, "d:1");
    drop_system_message(formatted, "d:1");
    const Conversation& chat = std::get<Conversation>(formatted);
    EXPECT_EQ(chat.weights.size(), chat.messages->size());
    std::string all;
    for (const Json& message : *chat.messages) all += message["role"].get<std::string>() + " ";
    return all;
  };
  EXPECT_EQ(roles(R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
                                   {"role": "assistant", "content": "b"}]})"),
            "user assistant ");
  EXPECT_EQ(roles(R"({"system": "s", "messages": [{"role": "user", "content": "a"},
                                                  {"role": "assistant", "content": "b"}]})"),
            "user assistant ");
  EXPECT_EQ(roles(R"({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "s"},
                                   {"role": "assistant", "content": "b"}]})"),
            "user system assistant ")
      << "only the first";
  FormattedRow text = format_row(Json::parse(R"({"text": "a"})"), SampleFormat::kText, "d:1");
  EXPECT_THAT(refusal([&] { drop_system_message(text, "d:1"); }), testing::HasSubstr("needs rows that are chats"));
}

}  // namespace
}  // namespace hone
