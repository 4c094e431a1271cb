#include "data/formats/sample_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/text/json.h"
#include "data/formats/row_columns.h"
#include "data/formats/row_formats.h"

namespace hone {
namespace {

constexpr std::array<std::string_view, 8> kFormatNames = {
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
  const auto found = std::find(kFormatNames.begin(), kFormatNames.end(), name);
  if (found != kFormatNames.end()) return static_cast<SampleFormat>(found - kFormatNames.begin());
  throw UserError(fmt::format("there is no sample format '{}'.{}", name, did_you_mean(name, kFormatNames)),
                  "datasets.type", fmt::format("one of {}", fmt::join(kFormatNames, ", ")));
}

std::string_view name_of(SampleFormat format) { return kFormatNames[static_cast<size_t>(format)]; }

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

namespace {

bool is_empty(const Json& value) { return value.is_null() || value == "" || (value.is_structured() && value.empty()); }

bool is_false(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (!value.is_string() || value.get_ref<const std::string&>().size() != 5) return false;
  return lower_case(value.get_ref<const std::string&>()) == "false";
}

/// Collects the contradicting columns of a row.
class Contrary {
 public:
  Contrary(const Json& row, const ColumnMapping& mapping) : row_(row), mapping_(mapping) {}

  void find(SampleFormat format) {
    if (is_chat(format) || format == SampleFormat::kPromptCompletion) {
      for (const char* name : {"label", "kto_tag"}) {
        const Json* label = open(name);
        if (label && is_false(*label)) add(name, "is false: the answer is rejected, but it would be trained on");
      }
    }
    for (const std::string_view name : media()) add(name, "holds media, which are not trained on in this version");
    find_pairs();
  }

  /// The columns that hold images, video or audio.
  std::vector<std::string_view> media() const {
    std::vector<std::string_view> found;
    for (const std::string_view name : media_columns()) {
      const Json* column = open(name);
      if (column && !is_empty(*column)) found.push_back(name);
    }
    return found;
  }

  void refuse(const std::string& where) const {
    if (columns_.empty()) return;
    std::vector<std::string> ignored = mapping_.ignored();
    ignored.insert(ignored.end(), columns_.begin(), columns_.end());
    const std::string paste = fmt::format("ignore_columns: [{}]", fmt::join(ignored, ", "));
    throw UserError(what_, where,
                    has_label_ ? "remove the rows with false; if the column means something else, write in the data "
                                 "set's entry: " +
                                     paste
                               : "to train on the other columns alone, write in the data set's entry: " + paste +
                                     (has_pairs_ ? "; on the chosen answers: column_mapping: {prompt: …, response: "
                                                   "chosen}, or {messages: chosen}"
                                                 : ""));
  }

 private:
  /// A column that is neither mapped nor ignored, or null.
  const Json* open(std::string_view name) const {
    const auto found = row_.find(name);
    return found == row_.end() || mapping_.takes(name) || mapping_.ignores(name) ? nullptr : &*found;
  }

  void add(std::string_view name, const char* problem) {
    what_ += fmt::format("{}the column '{}' {}", what_.empty() ? "" : "; ", name, problem);
    columns_.emplace_back(name);
    has_label_ = has_label_ || name == "label" || name == "kto_tag";
  }

  void find_pairs() {
    if (mapping_.takes("chosen") || mapping_.takes("rejected")) return;
    bool pairs = false;
    for (const char* name : {"rejected", "rejected_response", "rejected_messages"}) {
      const auto found = row_.find(name);
      if (found == row_.end() || is_empty(*found)) continue;
      pairs = true;
      if (!open(name)) continue;
      add(name, "holds an answer that is not wanted: preference pairs are not trained on in this version");
      has_pairs_ = true;
    }
    const Json* chosen = pairs ? open("chosen") : nullptr;
    if (!chosen || is_empty(*chosen) || !(chosen->is_string() || chosen->is_structured())) return;
    const std::string* mapped = mapping_.column("messages");
    const auto messages = row_.find(mapped ? std::string_view(*mapped) : "messages");
    if (messages != row_.end() && *messages == *chosen) return;
    add("chosen", "holds the preferred answer, which would not be trained on");
    has_pairs_ = true;
  }

  const Json& row_;
  const ColumnMapping& mapping_;
  std::string what_;
  std::vector<std::string> columns_;
  bool has_label_ = false, has_pairs_ = false;
};

}  // namespace

void drop_system_message(FormattedRow& row, const std::string& where) {
  Conversation* chat = std::get_if<Conversation>(&row);
  if (!chat) {
    throw UserError("drop_system_message needs rows that are chats, and this one is text or tokens", where,
                    "take it out of the data set's entry");
  }
  if (chat->messages->empty() || chat->messages->front().value("role", "") != "system") return;
  chat->messages->erase(chat->messages->begin());
  chat->weights.erase(chat->weights.begin());
  if (!chat->details.empty()) chat->details.erase(chat->details.begin());
  if (chat->completion_begin) *chat->completion_begin -= *chat->completion_begin > 0 ? 1 : 0;
}

namespace {

/// Whether a message has a part such as {"type": "image_url", …} in its content.
bool has_media_part(const Json& message) {
  if (!message.is_object()) return false;
  for (const char* key : {"content", "value"}) {
    const auto content = message.find(key);
    if (content == message.end() || !content->is_array()) continue;
    for (const Json& part : *content) {
      const bool typed = part.is_object() && part.contains("type") && part["type"].is_string();
      const std::string type = typed ? part["type"].get<std::string>() : "";
      for (const char* media : {"image", "video", "audio", "input_audio"}) {
        if (type.starts_with(media)) return true;
      }
    }
  }
  return false;
}

}  // namespace

std::string media_column(const Json& row, const ColumnMapping& mapping) {
  const std::vector<std::string_view> found = Contrary(row, mapping).media();
  if (!found.empty()) return std::string(found.front());
  for (const auto& [name, column] : row.items()) {
    if (column.is_array() && std::any_of(column.begin(), column.end(), has_media_part)) return name;
  }
  return "";
}

void refuse_contrary_columns(const Json& row, SampleFormat format, const std::string& where,
                             const ColumnMapping& mapping) {
  Contrary contrary(row, mapping);
  contrary.find(format);
  contrary.refuse(where);
}

}  // namespace hone
