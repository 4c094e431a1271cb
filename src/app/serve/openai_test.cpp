#include "app/serve/openai.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/text/json.h"

namespace hone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// The field and the message of a body's error; "" for none.
std::pair<std::string, std::string> problem(ApiForm form, const std::string& body) {
  try {
    read_request(form, body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    const JsonValue json = error.json();
    const Json& param = json["error"]["param"];
    return {param.is_null() ? "" : param.get<std::string>(), error.what()};
  }
  return {};
}

std::string chat_with(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "a"}], )" + fields + "}";
}

TEST(OpenAiRequest, ReadsAChat) {
  const ApiRequest request = read_request(
      ApiForm::kChat,
      chat_with(R"("model": "m", "max_completion_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": -1, "n": 2,
        "seed": -3, "stop": "x", "stream": true, "stream_options": {"include_usage": true}, "logprobs": true,
        "top_logprobs": 3, "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto",
        "chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "low", "user": "u", "logit_bias": {},
        "presence_penalty": 0, "response_format": {"type": "text"}, "frequency_penalty": null)"));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.sampling.max_new_tokens, 5);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.do_sample, true);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(request.count, 2);
  EXPECT_THAT(request.stop, ElementsAre("x"));
  EXPECT_TRUE(request.stream && request.tells_usage);
  EXPECT_EQ(request.likely, 3);
  EXPECT_EQ(request.tools.size(), 1u);
  EXPECT_EQ(request.template_kwargs->dump(), R"({"enable_thinking":false,"reasoning_effort":"low"})");
  EXPECT_EQ(read_request(ApiForm::kChat, chat_with(R"("temperature": 0)")).sampling.do_sample, false);
  EXPECT_FALSE(read_request(ApiForm::kChat, chat_with(R"("logprobs": false)")).likely);
  EXPECT_TRUE(read_request(ApiForm::kChat, chat_with(R"("tool_choice": "none", "tools": [{}])")).tools.is_null());
}

TEST(OpenAiRequest, ReadsTextsAndTokens) {
  const auto prompts = [](const std::string& prompt) {
    return read_request(ApiForm::kText, R"({"prompt": )" + prompt + "}").prompts;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_THAT(prompts(R"("a")"), ElementsAre(ApiPrompt("a")));
  EXPECT_THAT(prompts("[1, 2]"), ElementsAre(ApiPrompt(Ids{1, 2})));
  EXPECT_THAT(prompts(R"(["a", [3]])"), ElementsAre(ApiPrompt("a"), ApiPrompt(Ids{3})));
  EXPECT_EQ(read_request(ApiForm::kText, R"({"prompt": "", "logprobs": 0})").likely, 0);
}

TEST(OpenAiRequest, RefusesByName) {
  const std::pair<const char*, const char*> fields[] = {
      {R"("temperatur": 1)", "temperatur"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": 1e300)", "max_tokens"},
      {R"("temperature": "hot")", "temperature"},
      {R"("n": 1000)", "n"},
      {R"("stop": [""])", "stop"},
      {R"("stop": {})", "stop"},
      {R"("stream": 1)", "stream"},
      {R"("stream_options": {"x": 1})", "stream_options"},
      {R"("presence_penalty": 0.5)", "presence_penalty"},
      {R"("logit_bias": {"5": 1})", "logit_bias"},
      {R"("response_format": {"type": "json_object"})", "response_format"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("top_logprobs": 3)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
      {R"("prompt": "a")", "prompt"},
      {R"("messages": [])", "messages"},
      {R"("stop_token_ids": [-1])", "stop_token_ids"},
      {R"("ignore_eos": 1)", "ignore_eos"},
  };
  for (const auto& [field, name] : fields) EXPECT_EQ(problem(ApiForm::kChat, chat_with(field)).first, name) << field;
  EXPECT_THAT(problem(ApiForm::kChat, chat_with(R"("temperatur": 1)")).second,
              HasSubstr("Did you mean 'temperature'?"));
  for (const char* body : {"", "[]", "{", "\xff", "null", R"("text")"}) {
    EXPECT_THAT(problem(ApiForm::kChat, body).second, HasSubstr("not a JSON object")) << body;
  }
  EXPECT_EQ(problem(ApiForm::kChat, "{}").first, "messages");
  for (const char* prompt : {"[]", "{}", "[[]]", "[1, \"a\"]", "1", "[1.5]", "null"}) {
    EXPECT_EQ(problem(ApiForm::kText, std::string(R"({"prompt": )") + prompt + "}").first, "prompt") << prompt;
  }
  EXPECT_EQ(problem(ApiForm::kText, R"({"prompt": "a", "echo": true})").first, "echo");
  EXPECT_NE(problem(ApiForm::kChat, std::string(100000, '[')).second, "");
}

TEST(OpenAiAnswer, IsAsClientsReadIt) {
  const ApiAnswer answer{.form = ApiForm::kChat, .id = "chatcmpl-1", .model = "m", .created = 7, .tells_likely = true};
  ApiChoice choice{
      .index = 1, .piece = {.content = "a\xff", .reasoning = "r", .calls = {{"f", "{}"}}}, .finish = "stop"};
  choice.tokens = {{.chosen = {"a", "a", -0.5}, .likely = {{"b", "b", -0.25}}}};
  EXPECT_EQ(
      line_of(whole_answer(answer, std::span(&choice, 1),
                           {.prompt_tokens = 3, .completion_tokens = 2, .cached_tokens = 1})),
      R"({"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":1,"message":)"
      "{\"role\":\"assistant\",\"content\":\"a\xEF\xBF\xBD\",\"reasoning_content\":\"r\","
      R"("tool_calls":[{"id":"call_1_1_0","type":"function","function":{"name":"f","arguments":"{}"}}]},)"
      R"("logprobs":{"content":[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[{"token":"b",)"
      R"("logprob":-0.25,"bytes":[98]}]}],"refusal":null},"finish_reason":"stop"}],)"
      R"("usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}})");
  const ApiChoice named{.piece = {.calls = {{"f", "{}", "functions.f:0"}}}};
  EXPECT_THAT(line_of(whole_answer(answer, std::span(&named, 1), {})),
              HasSubstr(R"("tool_calls":[{"id":"functions.f:0")"));
  ApiChoice first{.index = 0, .piece = {.content = "x"}};
  const ApiAnswer plain{.form = ApiForm::kChat, .id = "chatcmpl-1", .model = "m", .created = 7};
  EXPECT_EQ(line_of(chunk(plain, first, true)),
            R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,)"
            R"("delta":{"role":"assistant","content":"x"},"logprobs":null,"finish_reason":null}]})");
  const ApiAnswer text{.form = ApiForm::kText, .id = "cmpl-1", .model = "m", .created = 7, .tells_likely = true};
  choice.text_offset = 4;
  EXPECT_THAT(line_of(chunk(text, choice, false)),
              HasSubstr(R"("logprobs":{"tokens":["a"],"token_logprobs":[-0.5],"top_logprobs":[{"b":-0.25}],)"
                        R"("text_offset":[4]},"finish_reason":"stop")"));
}

}  // namespace
}  // namespace hone
