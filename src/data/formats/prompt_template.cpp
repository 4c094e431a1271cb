#include "data/formats/prompt_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/base/error.h"
#include "core/text/json.h"
#include "data/formats/row_formats.h"

namespace hone {

namespace {

struct BuiltIn {
  std::string_view name, format, no_input_format, system_format;
};

// Stanford Alpaca's prompt, and the same text in other formats (Axolotl's type: alpaca:chat etc.).
constexpr std::string_view kAlpacaSystem =
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request.";
constexpr std::string_view kAlpacaSystemWithoutInput =
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.";

constexpr std::array<BuiltIn, 4> kAlpaca = {{
    {"alpaca", "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
     "### Instruction:\n{instruction}\n\n### Response:\n", "{system}\n\n"},
    {"alpaca_chat",
     "USER: {instruction}\n{input}\nASSISTANT:", "USER: {instruction}\nASSISTANT:", "SYSTEM: {system}\n"},
    {"alpaca_chatml", "<|im_start|>user\n{instruction}\n{input}<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>user\n{instruction}<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>system\n{system}<|im_end|>\n"},
    {"alpaca_phi", "<|user|>\n{instruction}<|end|>{input}<|assistant|>",
     "<|user|>\n{instruction}<|end|>\n<|assistant|>\n", "<|system|>\n{system}<|end|>\n"},
}};

constexpr std::array<std::string_view, 5> kTemplateNames = {"alpaca", "alpaca_chat", "alpaca_chatml", "alpaca_phi",
                                                            "plain"};
constexpr std::array<std::string_view, 4> kMembers = {"format", "no_input_format", "system_format", "system_prompt"};

/// The values of the placeholders.
struct Values {
  std::string_view instruction, input, system;

  const std::string_view* find(std::string_view name) const {
    return name == "instruction" ? &instruction : name == "input" ? &input : name == "system" ? &system : nullptr;
  }
};

/// `text` with its placeholders replaced; check_text() has accepted it.
std::string filled(std::string_view text, const Values& values) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      result += c;
      i += 2;
    } else if (c == '{') {
      const size_t end = text.find('}', i);
      result += *values.find(text.substr(i + 1, end - i - 1));
      i = end + 1;
    } else {
      result += c;
      ++i;
    }
  }
  return result;
}

/// Throws UserError at `where` for an unclosed brace, or a placeholder that `member` does not allow.
void check_text(const std::string& text, std::string_view member, const std::string& where) {
  const Values names;
  const bool of_system = member == "system_format";
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c != '{' && c != '}') continue;
    if (i + 1 < text.size() && text[i + 1] == c) {
      ++i;
      continue;
    }
    const size_t end = c == '{' ? text.find('}', i) : std::string::npos;
    const std::string name = end == std::string::npos ? "" : text.substr(i + 1, end - i - 1);
    if (end == std::string::npos || !names.find(name) || (name == "system") != of_system) {
      throw UserError(fmt::format("prompt_template.{} has a brace that is not {}: '{}'", member,
                                  of_system ? "{system}" : "{instruction} or {input}",
                                  text.substr(i, std::min<size_t>(20, text.size() - i))),
                      where, "write {{ and }} for literal braces");
    }
    i = end;
  }
}

std::string member_of(const Json& json, std::string_view name, const std::string& otherwise, const std::string& where) {
  const auto found = json.find(std::string(name));
  if (found == json.end() || found->is_null()) return otherwise;
  if (!found->is_string()) throw UserError(fmt::format("prompt_template.{} is not text", name), where);
  return found->get<std::string>();
}

std::string without_input(const std::string& format) {
  std::string text = format;
  for (size_t at; (at = text.find("{input}")) != std::string::npos;) text.erase(at, 7);
  return text;
}

}  // namespace

const PromptTemplate& PromptTemplate::plain() {
  static const PromptTemplate plain = parse("plain", "");
  return plain;
}

PromptTemplate PromptTemplate::parse(const Json& json, const std::string& where) {
  PromptTemplate result;
  result.json_ = json;
  if (json.is_string()) {
    const auto& name = json.get_ref<const std::string&>();
    if (name == "plain") {
      result.format_ = "{instruction} {input}";
      result.no_input_format_ = "{instruction}";
      result.before_output_ = " ";
      result.reads_system_ = result.encoded_apart_ = false;
      return result;
    }
    for (const BuiltIn& built_in : kAlpaca) {
      if (built_in.name != name) continue;
      result.format_ = built_in.format;
      result.no_input_format_ = built_in.no_input_format;
      result.system_format_ = built_in.system_format;
      result.system_prompt_ = kAlpacaSystem;
      result.no_input_system_prompt_ = kAlpacaSystemWithoutInput;
      result.reads_system_ = false;
      return result;
    }
    throw UserError(fmt::format("there is no prompt template '{}'.{}", name, did_you_mean(name, kTemplateNames)), where,
                    fmt::format("use {}, or a mapping with format: \"… {{instruction}} … {{input}} …\"",
                                fmt::join(kTemplateNames, ", ")));
  }
  if (!json.is_object()) {
    throw UserError("prompt_template is neither a name nor a mapping", where, "write {format: \"… {instruction} …\"}");
  }
  for (const auto& [name, value] : json.items()) {
    if (std::find(kMembers.begin(), kMembers.end(), name) != kMembers.end()) continue;
    throw UserError(fmt::format("prompt_template has no '{}'.{}", name, did_you_mean(name, kMembers)), where,
                    fmt::format("it has {}", fmt::join(kMembers, ", ")));
  }
  result.format_ = member_of(json, "format", "", where);
  if (result.format_.find("{instruction}") == std::string::npos) {
    throw UserError("prompt_template.format has no {instruction}", where,
                    "write format: \"… {instruction} {input} …\"");
  }
  result.no_input_format_ = member_of(json, "no_input_format", without_input(result.format_), where);
  result.system_format_ = member_of(json, "system_format", result.system_format_, where);
  result.system_prompt_ = result.no_input_system_prompt_ = member_of(json, "system_prompt", "", where);
  check_text(result.format_, "format", where);
  check_text(result.no_input_format_, "no_input_format", where);
  check_text(result.system_format_, "system_format", where);
  return result;
}

PromptCompletion PromptTemplate::fill(const RowColumns& columns) const {
  const OneTurnColumns names = alpaca_columns(columns);
  const std::string& instruction = columns.text_at(names.prompt);
  const std::string input = columns.text_or_empty(names.input);
  const bool stated = reads_system_ && columns.find("system") != nullptr;
  const std::string& usual = input.empty() ? no_input_system_prompt_ : system_prompt_;
  const std::string system = stated ? columns.text_or_empty("system") : usual;
  PromptCompletion row;
  if (!system.empty()) row.prompt = filled(system_format_, {.instruction = {}, .input = {}, .system = system});
  row.prompt +=
      filled(input.empty() ? no_input_format_ : format_, {.instruction = instruction, .input = input, .system = {}});
  row.completion = before_output_ + columns.text_at(names.response);
  row.encoded_apart = encoded_apart_;
  return row;
}

}  // namespace hone
