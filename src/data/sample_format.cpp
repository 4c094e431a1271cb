#include "data/sample_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "data/conversation_format.h"
#include "data/one_turn_format.h"
#include "data/row_columns.h"
#include "data/tokenized_format.h"

namespace hone {

namespace {

constexpr std::array<std::string_view, 8> kNames = {
    "auto", "messages", "sharegpt", "alpaca", "prompt_response", "prompt_completion", "text", "tokenized"};

FormattedRow prompt_completion(const RowColumns& columns) {
  const Json& prompt = columns.at("prompt");
  const Json& completion = columns.at("completion");
  if (prompt.is_array()) {
    if (!completion.is_array()) {
      columns.fail_type(columns.label("completion"), "a list of messages as the prompt is", completion);
    }
    return conversation_of_completion(columns);
  }
  if (!prompt.is_string()) columns.fail_type(columns.label("prompt"), "text or a list of messages", prompt);
  if (!completion.is_string()) columns.fail_type(columns.label("completion"), "text as the prompt is", completion);
  return PromptCompletion{prompt.get<std::string>(), completion.get<std::string>()};
}

}  // namespace

SampleFormat sample_format_of(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) return static_cast<SampleFormat>(found - kNames.begin());
  throw UserError(fmt::format("there is no sample format '{}'.{}", name, did_you_mean(name, kNames)), "datasets.type",
                  fmt::format("one of {}", fmt::join(kNames, ", ")));
}

std::string_view name_of(SampleFormat format) { return kNames[static_cast<size_t>(format)]; }

bool is_chat(SampleFormat format) {
  return format == SampleFormat::kMessages || format == SampleFormat::kShareGpt || format == SampleFormat::kAlpaca ||
         format == SampleFormat::kPromptResponse;
}

namespace {

FormattedRow read_columns(const RowColumns& columns, SampleFormat format) {
  switch (format) {
    case SampleFormat::kMessages:
      return conversation_of_messages(columns);
    case SampleFormat::kShareGpt:
      return conversation_of_sharegpt(columns);
    case SampleFormat::kAlpaca:
      return conversation_of_turn(columns, alpaca_columns(columns));
    case SampleFormat::kPromptResponse:
      return conversation_of_turn(columns, prompt_response_columns(columns));
    case SampleFormat::kPromptCompletion:
      return prompt_completion(columns);
    case SampleFormat::kText:
      return PromptCompletion{"", columns.text_at("text")};
    case SampleFormat::kTokenized:
      return tokenized_row(columns);
    case SampleFormat::kAuto:
      break;
  }
  HONE_ASSERT(false, "the format is detected before rows are read");
}

}  // namespace

FormattedRow format_row(const Json& row, SampleFormat format, const std::string& where, const ColumnMapping& mapping,
                        std::vector<std::string>* unread) {
  const RowColumns columns(row, name_of(format), where, mapping);
  FormattedRow formatted = read_columns(columns, format);
  if (unread) *unread = columns.unread();
  return formatted;
}

}  // namespace hone
