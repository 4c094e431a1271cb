#include "text/named_templates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/text/json.h"
#include "text/chat_mask.h"
#include "text/chat_template.h"

namespace hone {
namespace {

/// Each template begins with this: the text of a message, which may be a list of parts.
constexpr const char* kTextOf = R"({%- macro text_of(content) -%}
  {%- if content is string -%}{{- content -}}
  {%- elif content is iterable and content is not mapping -%}
    {%- for part in content -%}{%- if 'text' in part -%}{{- part.text -}}{%- endif -%}{%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
)";

std::string whole(const std::string& body) { return kTextOf + body; }

constexpr const char* kChatml = R"({%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\n' + text_of(message.content) + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
)";

/// ChatML with the turns that Qwen's templates know.
constexpr const char* kQwenTurns = R"({%- if tools -%}
  {{- raise_exception('chats with tools need the template of the model: leave chat_template out, or give a file') -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role not in ['system', 'user', 'assistant'] or message.tool_calls -%}
    {{- raise_exception('tool calls need the template of the model: leave chat_template out, or give a file') -}}
  {%- endif -%}
  {{- '<|im_start|>' + message.role + '\n' + text_of(message.content) + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
)";

/// The system message of Qwen2.5 where a chat has none.
constexpr const char* kQwenSystem = R"({%- if messages[0].role != 'system' -%}
  {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' -}}
{%- endif -%}
)";

/// Thoughts stay in the answers after the last question; the last of them has a think block even if it is empty.
constexpr const char* kQwen3 = R"({%- if tools -%}
  {{- raise_exception('chats with tools need the template of the model: leave chat_template out, or give a file') -}}
{%- endif -%}
{%- set last = namespace(question=messages|length - 1, answered=true) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}{%- set last.question = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
  {%- set content = text_of(message.content) -%}
  {%- if message.role not in ['system', 'user', 'assistant'] or message.tool_calls -%}
    {{- raise_exception('tool calls need the template of the model: leave chat_template out, or give a file') -}}
  {%- elif message.role == 'assistant' -%}
    {%- set thoughts = '' -%}
    {%- if message.reasoning_content is string -%}
      {%- set thoughts = message.reasoning_content -%}
    {%- elif '</think>' in content -%}
      {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
      {%- set content = content.split('</think>')[-1].lstrip('\n') -%}
    {%- endif -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- if loop.index0 > last.question and (loop.last or thoughts) -%}
      {{- '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') -}}
    {%- else -%}
      {{- content -}}
    {%- endif -%}
    {{- '<|im_end|>\n' -}}
  {%- else -%}
    {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
  {%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}
{%- endif -%}
)";

constexpr const char* kLlama3 = R"({{- bos_token|default('', true) -}}
{%- for message in messages -%}
  {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + text_of(message.content)|trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%}
)";

/// Every question begins with bos, and the system message stands inside the first one.
constexpr const char* kLlama2 = R"({%- set first = namespace(system='') -%}
{%- for message in messages -%}
  {%- set content = text_of(message.content)|trim -%}
  {%- if message.role == 'system' and loop.first -%}
    {%- set first.system = '<<SYS>>\n' + text_of(message.content) + '\n<</SYS>>\n\n' -%}
  {%- elif message.role == 'user' -%}
    {{- bos_token|default('', true) + '[INST] ' + first.system + content + ' [/INST]' -}}
    {%- set first.system = '' -%}
  {%- elif message.role == 'assistant' -%}
    {{- ' ' + content + ' ' + eos_token -}}
  {%- else -%}
    {{- raise_exception('this template has a system message first, questions and answers, and no ' + message.role) -}}
  {%- endif -%}
{%- endfor -%}
)";

/// Mistral's formats differ in the blanks around their brackets, and in the question that the system message precedes.
constexpr const char* kMistral = R"({%- set at = namespace(system='', question=-1) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' and (at.question < 0 or system_in_last) -%}
    {%- set at.question = loop.index0 -%}
  {%- endif -%}
{%- endfor -%}
{{- bos_token|default('', true) -}}
{%- for message in messages -%}
  {%- if message.role == 'system' and loop.first -%}
    {%- set at.system = text_of(message.content) + '\n\n' -%}
  {%- elif message.role == 'user' -%}
    {{- open -}}{%- if loop.index0 == at.question -%}{{- at.system -}}{%- endif -%}
    {{- text_of(message.content) + close -}}
  {%- elif message.role == 'assistant' and not message.tool_calls -%}
    {{- answer + (text_of(message.content)|trim if trims else text_of(message.content)) + eos_token -}}
  {%- else -%}
    {{- raise_exception('this template has a system message first, questions and answers, and no ' + message.role) -}}
  {%- endif -%}
{%- endfor -%}
)";

std::string mistral(const std::string& variables) { return "{%- set " + variables + " -%}\n" + kMistral; }

constexpr const char* kGemma = R"({{- bos_token|default('', true) -}}
{%- for message in messages -%}
  {%- if message.role not in ['user', 'assistant'] -%}
    {{- raise_exception('this template has questions and answers, and no ' + message.role) -}}
  {%- endif -%}
  {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\n' -}}
  {{- text_of(message.content)|trim + '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}
)";

/// The header of an answer belongs to the question before it.
constexpr const char* kPhi3 = R"({{- bos_token|default('', true) -}}
{%- for message in messages -%}
  {%- set content = text_of(message.content) -%}
  {%- if message.role == 'system' -%}{{- '<|system|>\n' + content + '<|end|>\n' -}}
  {%- elif message.role == 'user' -%}{{- '<|user|>\n' + content + '<|end|>\n<|assistant|>\n' -}}
  {%- elif message.role == 'assistant' -%}{{- content + '<|end|>\n' -}}
  {%- else -%}{{- raise_exception('this template has system, user and assistant, and no ' + message.role) -}}
  {%- endif -%}
{%- endfor -%}
)";

constexpr const char* kPhi35 = R"({%- for message in messages -%}
  {%- if message.role not in ['system', 'user', 'assistant'] -%}
    {{- raise_exception('this template has system, user and assistant, and no ' + message.role) -}}
  {%- endif -%}
  {%- if message.role != 'system' or message.content -%}
    {{- '<|' + message.role + '|>\n' + text_of(message.content) + '<|end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\n' -}}{%- endif -%}
)";

constexpr const char* kPhi4 = R"({%- for message in messages -%}
  {%- if message.role not in ['system', 'user', 'assistant'] -%}
    {{- raise_exception('this template has system, user and assistant, and no ' + message.role) -}}
  {%- endif -%}
  {{- '<|im_start|>' + message.role + '<|im_sep|>' + text_of(message.content) + '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant<|im_sep|>' -}}{%- endif -%}
)";

constexpr const char* kDeepseekV2 = R"({{- bos_token|default('', true) -}}
{%- for message in messages -%}
  {%- set content = text_of(message.content) -%}
  {%- if message.role == 'system' -%}{{- content + '\n\n' -}}
  {%- elif message.role == 'user' -%}{{- '<｜User｜>' + content -}}
  {%- elif message.role == 'assistant' -%}{{- '<｜Assistant｜>' + content + eos_token -}}
  {%- else -%}{{- raise_exception('this template has system, user and assistant, and no ' + message.role) -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<｜Assistant｜>' -}}{%- endif -%}
)";

/// System messages come first, wherever they stand; thoughts are not part of answers.
constexpr const char* kDeepseekV3 = R"({{- bos_token|default('', true) -}}
{%- set before = namespace(any=false) -%}
{%- for message in messages if message.role == 'system' -%}
  {{- ('\n\n' if before.any else '') + text_of(message.content) -}}{%- set before.any = true -%}
{%- endfor -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}{{- '<｜User｜>' + text_of(message.content) -}}
  {%- elif message.role == 'assistant' and not message.tool_calls -%}
    {{- '<｜Assistant｜>' + text_of(message.content).split('</think>')[-1] + '<｜end▁of▁sentence｜>' -}}
  {%- elif message.role != 'system' -%}
    {{- raise_exception('tool calls need the template of the model: leave chat_template out, or give a file') -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<｜Assistant｜>' -}}{%- endif -%}
)";

/// A name as users may spell it.
std::string plain_name(std::string_view name) {
  std::string plain = in_lower_case(std::string(name));
  std::replace(plain.begin(), plain.end(), '-', '_');
  return plain;
}

}  // namespace

const std::vector<NamedTemplate>& named_templates() {
  const std::vector<std::string> im = {"<|im_start|>", "<|im_end|>"};
  static const std::vector<NamedTemplate> list = {
      {.name = "chatml", .text = whole(kChatml), .tokens = im, .stop = "<|im_end|>"},
      {.name = "llama3",
       .text = whole(kLlama3),
       .tokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       .stop = "<|eot_id|>"},
      {.name = "llama2", .text = whole(kLlama2)},
      {.name = "mistral",
       .text = whole(mistral("open, close, answer, system_in_last, trims = '[INST] ', '[/INST]', ' ', false, false"))},
      {.name = "mistral_v1",
       .text =
           whole(mistral("open, close, answer, system_in_last, trims = ' [INST] ', ' [/INST]', ' ', false, false"))},
      {.name = "mistral_v2v3",
       .text = whole(mistral("open, close, answer, system_in_last, trims = '[INST] ', '[/INST]', ' ', true, true"))},
      {.name = "mistral_v3_tekken",
       .text = whole(mistral("open, close, answer, system_in_last, trims = '[INST]', '[/INST]', '', true, false"))},
      {.name = "qwen",
       .also = {"qwen_25"},
       .text = whole(kQwenSystem + std::string(kQwenTurns)),
       .tokens = im,
       .stop = "<|im_end|>"},
      {.name = "qwen3", .text = whole(kQwen3), .tokens = im, .stop = "<|im_end|>"},
      {.name = "qwen3_nothink", .text = whole(kQwenTurns), .tokens = im, .stop = "<|im_end|>"},
      {.name = "gemma", .text = whole(kGemma), .tokens = {"<start_of_turn>", "<end_of_turn>"}, .stop = "<end_of_turn>"},
      {.name = "phi_3",
       .text = whole(kPhi3),
       .tokens = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"},
       .stop = "<|end|>"},
      {.name = "phi_35",
       .text = whole(kPhi35),
       .tokens = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"},
       .stop = "<|end|>"},
      {.name = "phi4",
       .text = whole(kPhi4),
       .tokens = {"<|im_start|>", "<|im_sep|>", "<|im_end|>"},
       .stop = "<|im_end|>"},
      {.name = "deepseek_v2", .text = whole(kDeepseekV2), .tokens = {"<｜User｜>", "<｜Assistant｜>"}},
      {.name = "deepseek_v3",
       .also = {"deepseek3"},
       .text = whole(kDeepseekV3),
       .tokens = {"<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
       .stop = "<｜end▁of▁sentence｜>"},
  };
  return list;
}

const NamedTemplate* find_named_template(std::string_view name) {
  const std::string wanted = plain_name(name);
  for (const NamedTemplate& known : named_templates()) {
    if (known.name == wanted || std::find(known.also.begin(), known.also.end(), wanted) != known.also.end()) {
      return &known;
    }
  }
  return nullptr;
}

std::vector<std::string> template_name_list() {
  std::vector<std::string> names;
  for (const NamedTemplate& known : named_templates()) names.push_back(known.name);
  return names;
}

std::string template_names() { return fmt::format("{}", fmt::join(template_name_list(), ", ")); }

void require_tokens(const NamedTemplate& wanted, const Tokenizer& tokenizer, const std::string& where) {
  std::set<std::string> added;
  for (const AddedToken& token : tokenizer.added_tokens()) added.insert(token.content);
  std::vector<std::string> missing;
  for (const std::string& token : wanted.tokens) {
    if (!added.contains(token)) missing.push_back(Json(token).dump());
  }
  if (!missing.empty()) {
    const std::string all = fmt::format("{}", fmt::join(missing, ", "));
    throw UserError(
        fmt::format("the template {} writes {}, which the tokenizer does not have as one token{}", wanted.name, all,
                    missing.size() == 1 ? "" : " each"),
        where,
        fmt::format("add_special_tokens: [{}] gives the model rows for {}; or choose a template whose tokens "
                    "it has",
                    all, missing.size() == 1 ? "it" : "them"));
  }
}

TokenChoice with_stop(TokenChoice choice, const NamedTemplate& wanted) {
  const bool there = std::find(choice.eot.begin(), choice.eot.end(), wanted.stop) != choice.eot.end();
  if (!wanted.stop.empty() && !there && choice.eos != wanted.stop) choice.eot.push_back(wanted.stop);
  return choice;
}

namespace {

/// Chats whose renderings tell two templates apart.
std::vector<ChatInput> plain_chats(const Tokenizer& tokenizer) {
  const Json system = {{"role", "system"}, {"content", "a"}}, question = {{"role", "user"}, {"content", " b "}},
             answer = {{"role", "assistant"}, {"content", " c\n"}},
             thought = {{"role", "assistant"}, {"content", "d"}, {"reasoning_content", "e"}};
  std::vector<ChatInput> chats;
  for (const std::vector<Json>& messages : {std::vector<Json>{question},
                                            {system, question},
                                            {question, answer},
                                            {system, question, answer, question},
                                            {system, question, answer, question, answer},
                                            {question, thought, question, thought}}) {
    ChatInput chat;
    for (const Json& message : messages) chat.messages->push_back(message);
    chat.variables = special_token_variables(tokenizer);
    chat.add_generation_prompt = messages.back().at("role") == "user";
    chats.push_back(std::move(chat));
  }
  return chats;
}

/// Nothing for a chat that the template refuses.
std::optional<std::string> rendered(const ChatTemplate& by, const ChatInput& chat) {
  try {
    return by.render(chat).text;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace

ChosenTemplate choose_template(const std::string& stated, const Tokenizer& tokenizer, const std::string& where) {
  const NamedTemplate* named = find_named_template(stated);
  if (named == nullptr) return {stated, ""};
  require_tokens(*named, tokenizer, where);
  if (named->stop.empty() && !tokenizer.special_tokens().eos) {
    throw UserError(
        fmt::format("the template {} ends answers with eos_token, which the tokenizer does not state", named->name),
        where, "state it: special_tokens: {eos_token: TOKEN}");
  }
  const std::optional<std::string> own = tokenizer.chat_template();
  if (!own) return {named->text, ""};
  const ChatTemplate theirs(*own, "chat_template"), ours(named->text, named->name);
  for (const ChatInput& chat : plain_chats(tokenizer)) {
    if (rendered(theirs, chat) == rendered(ours, chat)) continue;
    return {named->text, fmt::format("the model's own template renders chats otherwise than {} {}, which is used",
                                     where, named->name)};
  }
  return {};
}

}  // namespace hone
