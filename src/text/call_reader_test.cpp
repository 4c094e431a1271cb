#include "text/call_reader.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/text/json.h"

namespace hone {
namespace {

const CallForm& form_of(std::string_view models) {
  const auto forms = call_forms();
  const auto found =
      std::find_if(forms.begin(), forms.end(), [&](const CallForm& form) { return form.models.starts_with(models); });
  if (found == forms.end()) throw std::out_of_range(std::string(models));
  return *found;
}

const Json& tools() {
  static const Json list = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {
      "text": {"type": "string"}, "whole": {"type": "integer"}, "real": {"type": "number"}, "yes": {"type": "boolean"},
      "list": {"type": "array"}, "object": {"type": "object"}, "either": {"type": ["integer", "string"]},
      "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]}}}}}, {"name": "g"}, 5, null])");
  return list;
}

std::string told(const std::vector<ToolCall>& calls) {
  std::string all;
  for (const ToolCall& call : calls) all += call.name + call.arguments + (call.id.empty() ? "" : "#" + call.id) + ";";
  return all;
}

struct Written {
  const char* models;
  std::string text, calls;
};

/// Texts that are calls from their first to their last byte.
const std::vector<Written>& written() {
  static const std::vector<Written> all = {
      {"Hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": \"</tool_call>\", \"a\": 1}}\n</tool_call>",
       R"(f{"b":"</tool_call>","a":1};)"},
      {"Hermes", R"(<tool_call>{"name": "f"}</tool_call>)", "f{};"},
      {"Hermes", R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>)", R"(f{"a": 1};)"},
      {"Qwen3-Coder",
       "<tool_call>\n<function=f>\n<parameter=text>\n1\n\n2\n</parameter>\n<parameter=whole>\n5\n</parameter>\n"
       "<parameter=yes>\nTrue\n</parameter>\n</function>\n</tool_call>",
       R"(f{"text":"1\n\n2","whole":5,"yes":true};)"},
      {"Qwen3-Coder", "<tool_call><function=f></function><function=g></function></tool_call>", "f{};g{};"},
      {"Qwen3-Coder", "<function=f>\n<parameter=text>\n<b>\n</parameter>\n</function>", R"(f{"text":"<b>"};)"},
      {"Qwen3-Coder", "<function=f>\n</function>\n</tool_call>", "f{};"},
      {"GLM",
       "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>5</arg_value>\n<arg_key>list</arg_key>\n"
       "<arg_value>[1, \"a\"]</arg_value>\n</tool_call>",
       R"(f{"text":"5","list":[1,"a"]};)"},
      {"GLM", "<tool_call>g</tool_call>", "g{};"},
      {"GLM", "<tool_call>f<arg_key>object</arg_key><arg_value>{\"a\": null}</arg_value></tool_call>",
       R"(f{"object":{"a":null}};)"},
      {"MiniMax",
       "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"real\">1.5</parameter>\n<parameter "
       "name=\"unknown\">2"
       "</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
       R"(f{"real":1.5,"unknown":"2"};g{};)"},
      {"DeepSeek-V3,",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
       "\"```\"}\n```<｜tool▁call▁end｜>\n"
       "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       R"(f{"a":"```"};g{};)"},
      {"DeepSeek-V3.1",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": [1]}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g"
       "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       R"(f{"a":[1]};g{};)"},
      {"Kimi",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}"
       "<|tool_call_end|><|tool_call_begin|>g:12<|tool_call_argument_begin|>{}<|tool_call_end|>"
       "<|tool_calls_section_end|>",
       R"(f{"a":1}#functions.f:0;g{}#g:12;)"},
      {"Mistral v3", R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}, "id": "abcdefghi"}, {"name": "g"}])",
       R"(f{"a":"]"}#abcdefghi;g{};)"},
      {"Mistral from", R"([TOOL_CALLS]f[ARGS]{"a": "}"})", R"(f{"a":"}"};)"},
      {"Mistral from", R"([TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": {}})", R"(f{"a":{}}#abcdefghi;)"},
      {"Granite 3", R"(<|tool_call|>[{"name": "f", "arguments": {"a": "\"]"}}])", R"(f{"a":"\"]"};)"},
      {"Hunyuan", R"(<tool_calls>[{"name": "f", "arguments": {}}, {"name": "g"}]</tool_calls>)", "f{};g{};"},
      {"Hy3-preview",
       "<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>whole</arg_key>\n<arg_value>-3</arg_value>\n</tool_call>\n"
       "</tool_calls>",
       R"(f{"whole":-3};)"},
      {"Hy3",
       "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>text"
       "</arg_key:opensource>\n<arg_value:opensource>a</arg_value:opensource>\n</tool_call:opensource>\n"
       "</tool_calls:opensource>",
       R"(f{"text":"a"};)"},
      {"Solar",
       "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>f<|tool_call:args|>{\"a\": 1}<|tool_call:end|><|calls|>",
       R"(f{"a":1}#a1;)"},
      {"Gemma 4",
       "<|tool_call>call:f{text:<|\"|>a, "
       "{b}<|\"|>,whole:5,list:[<|\"|>x<|\"|>,1.5,[]],object:{<|\"|>k<|\"|>:true,n:None}}"
       "<tool_call|>",
       R"(f{"text":"a, {b}","whole":5,"list":["x",1.5,[]],"object":{"k":true,"n":null}};)"},
      {"Gemma 4", "<|tool_call>call:g{}<tool_call|>", "g{};"},
  };
  return all;
}

TEST(CallReader, ReadsEveryForm) {
  for (const Written& one : written()) {
    const ReadCalls read = read_calls(form_of(one.models), one.text + "\nafter", true, tools());
    EXPECT_EQ(told(read.calls), one.calls) << one.text;
    EXPECT_EQ(read.size, one.text.size()) << one.text;
  }
  for (const CallForm& form : call_forms()) {
    if (form.body == CallBody::kChannels || form.begin.empty()) continue;  // below
    EXPECT_TRUE(std::any_of(written().begin(), written().end(), [&](const Written& one) {
      return &form_of(one.models) == &form;
    })) << form.models;
  }
}

/// A call that is cut anywhere waits for its rest; where none comes, its bytes are text or whole calls before the cut.
TEST(CallReader, WaitsForTheRestAtEveryCut) {
  for (const Written& one : written()) {
    const CallForm& form = form_of(one.models);
    for (size_t cut = 1; cut < one.text.size(); ++cut) {
      const std::string begun = one.text.substr(0, cut);
      EXPECT_TRUE(read_calls(form, begun, false, tools()).more) << begun;
      const ReadCalls last = read_calls(form, begun, true, tools());
      EXPECT_FALSE(last.more) << begun;
      EXPECT_GT(last.size, 0u) << begun;
      EXPECT_TRUE(one.calls.starts_with(told(last.calls))) << begun;
      if (last.calls.empty()) {
        EXPECT_EQ(last.size, cut) << begun;
      }
    }
  }
}

TEST(CallReader, TakesTypesFromTheSchema) {
  const auto argument = [](const std::string& key, const std::string& value) {
    const ReadCalls read = read_calls(
        form_of("GLM"), "<tool_call>f<arg_key>" + key + "</arg_key><arg_value>" + value + "</arg_value></tool_call>",
        true, tools());
    return Json::parse(read.calls.at(0).arguments)[key].dump();
  };
  EXPECT_EQ(argument("text", "5"), "\"5\"");
  EXPECT_EQ(argument("text", "{}"), "\"{}\"");
  EXPECT_EQ(argument("whole", "5"), "5");
  EXPECT_EQ(argument("whole", "five"), "\"five\"");
  EXPECT_EQ(argument("yes", "false"), "false");
  EXPECT_EQ(argument("yes", "False"), "false");
  EXPECT_EQ(argument("list", "{}"), "\"{}\"");
  EXPECT_EQ(argument("either", "7"), "7");
  EXPECT_EQ(argument("either", "seven"), "\"seven\"");
  EXPECT_EQ(argument("maybe", "null"), "null");
  EXPECT_EQ(argument("unknown", "true"), "\"true\"");
}

/// Where its form is broken a call is text, of which nothing is lost and after which reading goes on.
TEST(CallReader, LeavesWhatIsBrokenAsText) {
  const std::pair<const char*, const char*> broken[] = {
      {"Hermes", "<tool_call>no json</tool_call>"},
      {"Hermes", R"(<tool_call>{"name": 5}</tool_call>)"},
      {"Hermes", R"(<tool_call>{"name": "f", "arguments": 5}</tool_call>)"},
      {"Hermes", R"(<tool_call>{"name": "f", }</tool_call>)"},
      {"Hermes", "<tool_call>[]</tool_call>"},
      {"Hermes", R"(<tool_call>{"name": "f"} and</tool_call>)"},
      {"Qwen3-Coder", "<tool_call><function=a b></function></tool_call>"},
      {"Qwen3-Coder", "<tool_call><function=f>words</function></tool_call>"},
      {"GLM", "<tool_call>two words</tool_call>"},
      {"GLM", "<tool_call>f<arg_key>a</arg_key>b</tool_call>"},
      {"MiniMax", "<minimax:tool_call>words</minimax:tool_call>"},
      {"DeepSeek-V3.1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>[1]<｜tool▁call▁end｜>"},
      {"Kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.:0<|tool_call_argument_begin|>{}"},
      {"Mistral from", "[TOOL_CALLS]f[ARGS]words"},
      {"Mistral v3", "[TOOL_CALLS] words"},
      {"Granite 3", "<|tool_call|>[1]"},
      {"Gemma 4", "<|tool_call>call:f{a:word}<tool_call|>"},
      {"Gemma 4", "<|tool_call>call:f{a}<tool_call|>"},
  };
  for (const auto& [models, text] : broken) {
    const ReadCalls read = read_calls(form_of(models), std::string(text) + " after", false, tools());
    EXPECT_FALSE(read.more) << text;
    EXPECT_TRUE(read.calls.empty()) << text;
    EXPECT_GT(read.size, 0u) << text;
    EXPECT_LE(read.size, std::string_view(text).size()) << text;
  }
}

TEST(CallReader, BearsWhatIsNestedDeeply) {
  const std::string open(100000, '['), lists(100000, '{');
  EXPECT_TRUE(read_calls(form_of("Hermes"), "<tool_call>" + open, true, tools()).calls.empty());
  EXPECT_TRUE(
      read_calls(form_of("Hermes"), "<tool_call>" + open + std::string(100000, ']') + "</tool_call>", true, tools())
          .calls.empty());
  EXPECT_TRUE(read_calls(form_of("Gemma 4"), "<|tool_call>call:f{a:" + open, true, tools()).calls.empty());
  EXPECT_TRUE(read_calls(form_of("Gemma 4"), "<|tool_call>call:f" + lists, true, tools()).calls.empty());
  EXPECT_TRUE(
      read_calls(form_of("GLM"), "<tool_call>" + std::string(1000, 'n') + "</tool_call>", true, tools()).calls.empty());
}

/// Llama 3 marks no calls: an answer is one if it is nothing else, and names a tool of the request.
TEST(CallReader, ReadsAnAnswerThatIsACall) {
  const CallForm& form = form_of("Llama");
  const std::string call = R"({"name": "f", "parameters": {"a": 1}})";
  EXPECT_TRUE(read_calls(form, call, false, tools()).more);
  EXPECT_EQ(told(read_calls(form, call + "\n", true, tools()).calls), R"(f{"a":1};)");
  for (const std::string& text : {call + " is it", std::string(R"({"name": "h", "parameters": {}})"),
                                  std::string(R"({"answer": 5})"), call.substr(0, 20)}) {
    EXPECT_TRUE(read_calls(form, text, true, tools()).calls.empty()) << text;
  }
  EXPECT_FALSE(read_calls(form, call + " is it", false, tools()).more);
}

TEST(CallReader, ReadsMessagesOfChannels) {
  const CallForm& form = form_of("gpt-oss");
  const auto read = [&](const std::string& text, bool last, bool calls = true) {
    return read_message(form, text, last, calls);
  };
  const std::string thoughts = "<|channel|>analysis<|message|>",
                    final = "<|start|>assistant<|channel|>final<|message|>";
  EXPECT_TRUE(read(thoughts + "hm", false).thinks);
  EXPECT_EQ(read(thoughts + "hm", false).size, thoughts.size());
  EXPECT_FALSE(read(final, false).thinks);
  EXPECT_EQ(read(final, false).size, final.size());
  for (const std::string& call :
       {std::string(R"(<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>)"),
        std::string(R"( to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>)"),
        std::string(R"(<|start|>assistant to=functions.f<|channel|>commentary<|message|>{"a": 1}<|end|>)")}) {
    EXPECT_EQ(told(read(call, false).calls), R"(f{"a":1};)") << call;
    EXPECT_EQ(read(call + "x", false).size, call.size()) << call;
    EXPECT_EQ(read(call, true, false).size, 0u) << "no tools";
    for (size_t cut = 1; cut < call.size(); ++cut) {
      EXPECT_TRUE(read(call.substr(0, cut), false).more) << call.substr(0, cut);
      EXPECT_FALSE(read(call.substr(0, cut), true).more) << call.substr(0, cut);
    }
  }
  // The answer stops at the token that ends the call, and that token is not part of the text.
  EXPECT_EQ(told(read(R"(<|channel|>commentary to=functions.f<|message|>{"a": 1})", true).calls), R"(f{"a":1};)");
  for (const char* text : {"words", "<|channel|>commentary to=functions.f<|message|>{\"a\": <|call|>",
                           "<|channel|>commentary to=browser.open<|message|>{}<|call|>", "<|channel", "<|message|>"}) {
    EXPECT_EQ(read(text, true).size, 0u) << text;
  }
  EXPECT_FALSE(read("<|channel|>" + std::string(2000, 'x'), false).more);
}

}  // namespace
}  // namespace hone
