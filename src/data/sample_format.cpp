#include "data/sample_format.h"

#include <fmt/format.h>

#include <array>

#include "core/error.h"
#include "data/conversation_format.h"
#include "data/row_columns.h"
#include "data/tokenized_format.h"

namespace hone {

namespace {

struct Named {
  std::string_view name;
  SampleFormat format;
};
constexpr std::array<Named, 4> kFormats = {{{"auto", SampleFormat::kAuto},
                                            {"messages", SampleFormat::kMessages},
                                            {"prompt_completion", SampleFormat::kPromptCompletion},
                                            {"tokenized", SampleFormat::kTokenized}}};

FormattedRow prompt_completion(const Json& row, const std::string& where) {
  const RowColumns columns(row, "prompt_completion", where);
  const Json& prompt = columns.at("prompt");
  const Json& completion = columns.at("completion");
  if (prompt.is_array()) {
    if (!completion.is_array()) columns.fail_type("completion", "a list of messages as the prompt is", completion);
    return conversation_of_completion(columns);
  }
  if (!prompt.is_string()) columns.fail_type("prompt", "text or a list of messages", prompt);
  if (!completion.is_string()) columns.fail_type("completion", "text as the prompt is", completion);
  return PromptCompletion{prompt.get<std::string>(), completion.get<std::string>()};
}

struct Fit {
  SampleFormat format = SampleFormat::kAuto;
  std::string columns;
};

Fit fit_of(const LocatedRow& located) {
  const RowColumns columns(located.row, "auto", located.where);
  std::vector<Fit> fits;
  if (columns.find("messages")) fits.push_back({SampleFormat::kMessages, "column 'messages'"});
  if (columns.find("prompt") && columns.find("completion"))
    fits.push_back({SampleFormat::kPromptCompletion, "columns 'prompt' and 'completion'"});
  if (columns.find("input_ids")) fits.push_back({SampleFormat::kTokenized, "column 'input_ids'"});
  if (fits.size() == 1) return fits.front();
  if (fits.empty()) {
    refuse_other_formats(located.row, located.where);
    static constexpr std::array<std::string_view, 4> kColumns = {"messages", "prompt", "completion", "input_ids"};
    std::string hint;
    for (const auto& [name, value] : located.row.items()) {
      if (hint.empty()) hint = did_you_mean(name, kColumns);
    }
    throw UserError(fmt::format("the columns fit no format: {}", column_names(located.row)), located.where,
                    fmt::format("messages needs 'messages', prompt_completion 'prompt' and 'completion', tokenized "
                                "'input_ids'.{}",
                                hint));
  }
  throw UserError(fmt::format("the columns fit {} and {}", name_of(fits[0].format), name_of(fits[1].format)),
                  located.where, "say which: type: messages, prompt_completion or tokenized in the data set's entry");
}

}  // namespace

SampleFormat sample_format_of(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Named& known : kFormats) {
    if (known.name == name) return known.format;
    names.push_back(known.name);
  }
  throw UserError(fmt::format("there is no sample format '{}'.{}", name, did_you_mean(name, names)), "datasets.type",
                  "auto, messages, prompt_completion or tokenized");
}

std::string_view name_of(SampleFormat format) { return kFormats[static_cast<size_t>(format)].name; }

FormattedRow format_row(Json row, SampleFormat format, const std::string& where) {
  switch (format) {
    case SampleFormat::kMessages:
      return conversation_of_messages(RowColumns(row, "messages", where));
    case SampleFormat::kPromptCompletion:
      return prompt_completion(row, where);
    case SampleFormat::kTokenized:
      return tokenized_row(RowColumns(row, "tokenized", where));
    case SampleFormat::kAuto:
      break;
  }
  HONE_ASSERT(false, "the format is detected before rows are read");
}

DetectedFormat detect_format(std::span<const LocatedRow> rows) {
  HONE_ASSERT(!rows.empty());
  const Fit first = fit_of(rows.front());
  for (const LocatedRow& row : rows.subspan(1)) {
    const Fit fit = fit_of(row);
    if (fit.format == first.format) continue;
    throw UserError(
        fmt::format("this row is {}, but {} is {}", name_of(fit.format), rows.front().where, name_of(first.format)),
        row.where, "give each data set one format");
  }
  return {first.format, fmt::format("{} in {}", first.columns, rows.front().where)};
}

}  // namespace hone
