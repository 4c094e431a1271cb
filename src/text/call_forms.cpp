#include "text/call_forms.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/jinja/template.h"

namespace hone {
namespace {

constexpr CallForm kForms[] = {
    {.models = "gpt-oss",
     .written = {"<|channel|>commentary", " to=functions."},
     .body = CallBody::kChannels,
     .section_begin = "<|start|>assistant",
     .section_end = "<|end|>",
     .begin = "<|channel|>",
     .end = "<|call|>",
     .name_begin = "to=functions.",
     .name_end = "<|message|>"},
    {.models = "Kimi-K2",
     .written = {"<|tool_call_begin|>", "<|tool_call_argument_begin|>"},
     .body = CallBody::kArguments,
     .section_begin = "<|tool_calls_section_begin|>",
     .section_end = "<|tool_calls_section_end|>",
     .begin = "<|tool_call_begin|>",
     .end = "<|tool_call_end|>",
     .name_end = "<|tool_call_argument_begin|>",
     .id = CallId::kIsName},
    {.models = "DeepSeek-V3, DeepSeek-R1",
     .written = {"<｜tool▁sep｜>", "```json"},
     .body = CallBody::kArguments,
     .section_begin = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .end = "```<｜tool▁call▁end｜>",
     .name_end = "```json"},
    {.models = "DeepSeek-V3.1",
     .written = {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"},
     .body = CallBody::kArguments,
     .section_begin = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .begin = "<｜tool▁call▁begin｜>",
     .end = "<｜tool▁call▁end｜>",
     .name_end = "<｜tool▁sep｜>"},
    {.models = "MiniMax-M2",
     .written = {"<minimax:tool_call>", "<invoke name=\""},
     .body = CallBody::kPairs,
     .section_begin = "<minimax:tool_call>",
     .section_end = "</minimax:tool_call>",
     .begin = "<invoke name=\"",
     .end = "</invoke>",
     .name_end = "\">",
     .key_begin = "<parameter name=\"",
     .key_end = "\">",
     .value_end = "</parameter>"},
    {.models = "Hy3",
     .written = {"<tool_calls:opensource>", "<tool_sep:opensource>"},
     .body = CallBody::kPairs,
     .section_begin = "<tool_calls:opensource>",
     .section_end = "</tool_calls:opensource>",
     .begin = "<tool_call:opensource>",
     .end = "</tool_call:opensource>",
     .name_end = "<tool_sep:opensource>",
     .key_begin = "<arg_key:opensource>",
     .key_end = "</arg_key:opensource>",
     .value_begin = "<arg_value:opensource>",
     .value_end = "</arg_value:opensource>"},
    {.models = "Hy3-preview",
     .written = {"<tool_calls>", "<tool_sep>"},
     .body = CallBody::kPairs,
     .section_begin = "<tool_calls>",
     .section_end = "</tool_calls>",
     .begin = "<tool_call>",
     .end = "</tool_call>",
     .name_end = "<tool_sep>",
     .key_begin = "<arg_key>",
     .key_end = "</arg_key>",
     .value_begin = "<arg_value>",
     .value_end = "</arg_value>"},
    {.models = "Hunyuan-A13B",
     .written = {"<tool_calls>[{", "</tool_calls>"},
     .body = CallBody::kJson,
     .begin = "<tool_calls>",
     .end = "</tool_calls>"},
    {.models = "Solar-Open",
     .written = {"<|tool_call:begin|>", "<|tool_call:args|>"},
     .body = CallBody::kArguments,
     .section_begin = "<|tool_calls|>",
     .section_end = "<|calls|>",
     .begin = "<|tool_call:begin|>",
     .end = "<|tool_call:end|>",
     .name_end = "<|tool_call:args|>",
     .id = CallId::kBeforeName,
     .id_mark = "<|tool_call:name|>"},
    {.models = "Gemma 4",
     .written = {"<|tool_call>call:", "<tool_call|>"},
     .body = CallBody::kBraces,
     .begin = "<|tool_call>call:",
     .end = "<tool_call|>",
     .value_begin = "<|\"|>",
     .value_end = "<|\"|>"},
    {.models = "Granite 3", .written = {"<|tool_call|>", ""}, .body = CallBody::kJson, .begin = "<|tool_call|>"},
    {.models = "Mistral from v11 on",
     .written = {"[TOOL_CALLS]", "[ARGS]"},
     .body = CallBody::kArguments,
     .begin = "[TOOL_CALLS]",
     .name_end = "[ARGS]",
     .id = CallId::kAfterName,
     .id_mark = "[CALL_ID]"},
    {.models = "Mistral v3 to v7", .written = {"[TOOL_CALLS]", ""}, .body = CallBody::kJson, .begin = "[TOOL_CALLS]"},
    {.models = "Qwen3-Coder, Qwen3.5, Nemotron-3",
     .written = {"<tool_call>", "<function="},
     .body = CallBody::kPairs,
     .section_begin = "<tool_call>",
     .section_end = "</tool_call>",
     .begin = "<function=",
     .end = "</function>",
     .name_end = ">",
     .key_begin = "<parameter=",
     .key_end = ">",
     .value_end = "</parameter>",
     .lines = true},
    {.models = "GLM-4.5 to 4.7",
     .written = {"<tool_call>", "<arg_key>"},
     .body = CallBody::kPairs,
     .begin = "<tool_call>",
     .end = "</tool_call>",
     .key_begin = "<arg_key>",
     .key_end = "</arg_key>",
     .value_begin = "<arg_value>",
     .value_end = "</arg_value>"},
    {.models = "Hermes, Qwen2.5, Qwen3, Granite 4, ERNIE 4.5",
     .written = {"<tool_call>", "</tool_call>"},
     .body = CallBody::kJson,
     .begin = "<tool_call>",
     .end = "</tool_call>"},
    {.models = "Llama 3", .written = {R"({"name": "look_up", "parameters": {"city")", ""}, .body = CallBody::kJson},
};

/// What the template writes for a question, a call and its result, or for as much of it as it takes.
std::string written_for_a_call(const ChatTemplate& chat_template, const Json& variables) {
  ChatInput input;
  input.variables = variables;
  input.tools = Json::array(
      {{{"type", "function"},
        {"function",
         {{"name", "look_up"},
          {"description", "Looks up."},
          {"parameters",
           {{"type", "object"}, {"properties", {{"city", {{"type", "string"}, {"description", "Where."}}}}}}}}}}});
  const Json messages = {{{"role", "user"}, {"content", "question"}},
                         {{"role", "assistant"},
                          {"tool_calls",
                           {{{"id", "look00up0"},  // Mistral's ids have nine characters
                             {"type", "function"},
                             {"function", {{"name", "look_up"}, {"arguments", {{"city", "Bonn"}}}}}}}}},
                         {{"role", "tool"}, {"name", "look_up"}, {"tool_call_id", "look00up0"}, {"content", "result"}}};
  for (size_t count = messages.size(); count > 0; --count) {
    Json first = Json::array();
    for (size_t i = 0; i < count; ++i) first.push_back(messages[i]);
    input.messages = std::move(first);
    try {
      return chat_template.render(input).text;
    } catch (const jinja::OutOfSteps&) {
      throw;
    } catch (const UserError&) {
      continue;
    }
  }
  return "";
}

}  // namespace

std::span<const CallForm> call_forms() { return kForms; }

std::vector<std::string_view> marks_of(const CallForm& form) {
  std::vector<std::string_view> marks = {form.section_begin, form.section_end, form.begin,     form.end,
                                         form.name_begin,    form.name_end,    form.key_begin, form.key_end,
                                         form.value_begin,   form.value_end,   form.id_mark};
  std::erase(marks, "");
  return marks;
}

const CallForm* find_call_form(const ChatTemplate& chat_template, std::string_view source, const Json& variables) {
  const std::string probe = written_for_a_call(chat_template, variables);
  for (const std::string_view text : {std::string_view(probe), source}) {
    for (const CallForm& form : kForms) {
      const auto has = [&](std::string_view mark) { return text.find(mark) != std::string_view::npos; };
      if (std::all_of(form.written.begin(), form.written.end(), has)) return &form;
    }
  }
  return nullptr;
}

}  // namespace hone
