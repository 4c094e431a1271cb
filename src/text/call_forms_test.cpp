#include "text/call_forms.h"

#include <gtest/gtest.h>

#include <map>

#include "core/text/json.h"

namespace hone {
namespace {

/// A template that writes `call` for a call; NAME and its argument as the form has them.
std::string writing(const std::string& call) {
  return "{%- for message in messages -%}<{{ message.role }}>{%- if message.tool_calls -%}"
         "{%- set tool = message.tool_calls[0].function -%}" +
         call + "{%- else -%}{{- message.content -}}{%- endif -%}{%- endfor -%}";
}

const CallForm* form_written(const std::string& source) {
  return find_call_form(ChatTemplate(source, "chat_template.jinja", std::time_t{0}), source, Json::object());
}

const std::map<std::string_view, std::string>& written_calls() {
  static const std::map<std::string_view, std::string> calls = {
      {"gpt-oss",
       "<|start|>assistant{{ ' to=functions.' + tool.name }}<|channel|>commentary json<|message|>{{ tool.arguments | "
       "tojson }}<|call|>"},
      {"Kimi-K2",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.{{ tool.name }}:0<|tool_call_argument_begin|>{}"
       "<|tool_call_end|><|tool_calls_section_end|>"},
      {"DeepSeek-V3, DeepSeek-R1",
       "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + message.tool_calls[0].type + '<｜tool▁sep｜>' + tool.name + "
       "'\\n```json\\n{}\\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>' }}"},
      {"DeepSeek-V3.1",
       "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool.name + '<｜tool▁sep｜>{}<｜tool▁call▁end｜>' }}"},
      {"MiniMax-M2",
       "{%- set begin = '<minimax:tool_call>' -%}{{ begin + '\\n<invoke name=\"' + tool.name + '\">' }}</invoke>"},
      {"Hy3",
       "{%- set suffix = ':opensource' -%}{{ '<tool_calls{}>'.format(suffix) + '<tool_sep{}>'.format(suffix) }}"},
      {"Hy3-preview", "<tool_calls>\n<tool_call>{{ tool.name }}<tool_sep>\n</tool_call>\n</tool_calls>"},
      {"Hunyuan-A13B", "<tool_calls>[{{ '{' }}\"name\": \"{{ tool.name }}\"{{ '}' }}]</tool_calls>"},
      {"Solar-Open",
       "<|tool_calls|><|tool_call:begin|>{{ message.tool_calls[0].id }}<|tool_call:name|>{{ tool.name }}"
       "<|tool_call:args|>{}<|tool_call:end|>"},
      {"Gemma 4", "<|tool_call>call:{{ tool.name }}{{ '{}' }}<tool_call|>"},
      {"Granite 3", "<|tool_call|>{{ message.tool_calls | tojson }}"},
      {"Mistral from v11 on", "[TOOL_CALLS]{{ tool.name }}[ARGS]{{ tool.arguments | tojson }}"},
      {"Mistral v3 to v7", "[TOOL_CALLS] [{{ tool | tojson }}]"},
      {"Qwen3-Coder, Qwen3.5, Nemotron-3", "<tool_call>\n<function={{ tool.name }}>\n</function>\n</tool_call>"},
      {"GLM-4.5 to 4.7",
       "<tool_call>{{ tool.name }}{% for k, v in tool.arguments.items() %}<arg_key>{{ k }}</arg_key>{% endfor %}"
       "</tool_call>"},
      {"Hermes, Qwen2.5, Qwen3, Granite 4, ERNIE 4.5", "<tool_call>\n{{ tool | tojson }}\n</tool_call>"},
      {"Llama 3",
       "{{ tools | tojson }}{{ '{\"name\": \"' + tool.name + '\", \"parameters\": ' + tool.arguments | tojson + '}' "
       "}}"},
  };
  return calls;
}

TEST(CallForms, AreFoundInWhatATemplateWrites) {
  for (const CallForm& form : call_forms()) {
    ASSERT_TRUE(written_calls().contains(form.models)) << form.models;
    const CallForm* found = form_written(writing(written_calls().at(form.models)));
    ASSERT_NE(found, nullptr) << form.models;
    EXPECT_EQ(found->models, form.models);
  }
  EXPECT_EQ(written_calls().size(), call_forms().size());
}

TEST(CallForms, AreNoneWhereATemplateWritesNone) {
  EXPECT_EQ(form_written(writing("{{ tools | tojson }}")), nullptr);
  EXPECT_EQ(form_written("{% for message in messages %}{{ message.content }}{% endfor %}"), nullptr);
  EXPECT_EQ(form_written("{{ raise_exception('no') }}"), nullptr);
}

/// A template that takes no results, or no calls, says it in what it writes of the others.
TEST(CallForms, AreFoundInPartsOfTheProbe) {
  const std::string refuses =
      "{%- for message in messages -%}{%- if message.role == 'ROLE' -%}{{ raise_exception('no') }}{%- endif -%}"
      "{%- endfor -%}";
  for (const std::string role : {"tool", "assistant"}) {
    std::string source = refuses + "{%- if tools -%}Call as <tool_call>JSON</tool_call>.{%- endif -%}";
    source.replace(source.find("ROLE"), 4, role);
    const CallForm* found = form_written(source);
    ASSERT_NE(found, nullptr) << role;
    EXPECT_EQ(found->body, CallBody::kJson);
  }
  // One that takes no chat here, as with a function of Python's: its source.
  const CallForm* found = form_written("{{ raise_exception('no') }}{{ '[TOOL_CALLS]' + name + '[ARGS]' }}");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->body, CallBody::kArguments);
}

}  // namespace
}  // namespace hone
