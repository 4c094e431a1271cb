// Sample formats: the meaning of the columns of a row.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/text/json_value.h"
#include "data/formats/column_mapping.h"

namespace hone {

enum class SampleFormat {
  kAuto,
  kMessages,
  kShareGpt,
  kAlpaca,
  kPromptResponse,
  kPromptCompletion,
  kText,
  kTokenized,
};

/// Parses "auto", "messages", "sharegpt", "alpaca", "prompt_response", "prompt_completion", "text" or "tokenized";
/// throws UserError for anything else.
SampleFormat sample_format_of(std::string_view name);
std::string_view name_of(SampleFormat format);

/// Whether rows of the format use the chat template (for prompt_completion if they are messages).
bool is_chat(SampleFormat format);

/// Bytes [begin, end) of a message's content with their own loss weight.
struct TrainDetail {
  size_t begin = 0, end = 0;
  float weight = 1;
};

/// A chat for the chat template.
struct Conversation {
  JsonArray messages = {};  ///< without the keys of loss weights
  JsonValue tools = {};
  JsonObject template_kwargs = {};
  /// [messages] loss weight of each message, from its `train`, `weight`, `loss` or `loss_mask`; 0: no loss.
  std::vector<float> weights;
  /// [messages, or fewer] from `train_detail`: if not empty, the supervised parts of the content, ascending, without
  /// overlap.
  std::vector<std::vector<TrainDetail>> details = {};
  /// For prompt_completion: the first message of the completion.
  std::optional<size_t> completion_begin;
  /// A message of another role than assistant has a loss weight.
  bool other_roles_ask = false;
};

/// Plain text and its completion. For the format text the prompt is empty.
struct PromptCompletion {
  std::string prompt, completion;
  bool encoded_apart = false;  ///< also if the tokenizer adds a space before every text
};

/// A tokenized row. labels are aligned with input_ids; kIgnoredLabel: no loss.
struct TokenizedRow {
  std::vector<int32_t> input_ids, labels;
  std::vector<float> weights;  ///< one for each label; empty: all 1
};

using FormattedRow = std::variant<Conversation, PromptCompletion, TokenizedRow>;

/// Reads the columns of `row` (an object) as `format`, which is not kAuto. Throws UserError at `where` (file:line) for
/// a missing column (with those found and the nearest name) and a column of the wrong type. Sets `unread`, if not null,
/// to the columns that it did not read (RowColumns::unread).
FormattedRow format_row(const Json& row, SampleFormat format, const std::string& where,
                        const ColumnMapping& mapping = {}, std::vector<std::string>* unread = nullptr);

/// A row for format detection.
struct LocatedRow {
  JsonValue row;
  std::string where;
};

struct DetectedFormat {
  SampleFormat format = SampleFormat::kAuto;
  std::string reason;  ///< "column 'messages' in chat.jsonl:1"
};

/// Returns the format that matches the columns of all `rows` (at least one) and reads every mapped column. Throws
/// UserError if no format or several match (with their names), if rows differ in format, or if the columns are those of
/// preference pairs.
DetectedFormat detect_format(std::span<const LocatedRow> rows, const ColumnMapping& mapping = {});

/// Throws UserError at `where` if the mapping has a name that the format does not read.
void check_mapping(SampleFormat format, const ColumnMapping& mapping, const std::string& where);

/// Removes a chat's first message if it is the system's. UserError at `where` for a row that is no chat.
void drop_system_message(FormattedRow& row, const std::string& where);

// Columns that no format reads and that contradict training on the row: rejected answers, media.

/// Throws UserError at `where` (file:line), with the ignore_columns to set, for a row of this format with
///   - `label` or `kto_tag` that is false, as JSON or as text, if the row has a chat or a prompt with a completion;
///   - `rejected`, `rejected_response` or `rejected_messages` that is not empty; and then `chosen`, unless it equals
///     `messages`;
///   - `images`, `videos`, `audios` or the singular of one that is not empty.
/// Accepts columns that are mapped or ignored, and `chosen` or `rejected` if the mapping reads the other one.
void refuse_contrary_columns(const Json& row, SampleFormat format, const std::string& where,
                             const ColumnMapping& mapping);

/// The first column of `row` that holds images, video or audio, or a list of messages with a part that is one; "" if
/// none does. Mapped and ignored columns do not count as the former.
std::string media_column(const Json& row, const ColumnMapping& mapping);

}  // namespace hone
