// Sample formats: what the columns of a row mean.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/json.h"
#include "data/column_mapping.h"

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

/// "auto", "messages", "sharegpt", "alpaca", "prompt_response", "prompt_completion", "text" or "tokenized"; anything
/// else is a UserError.
SampleFormat sample_format_of(std::string_view name);
std::string_view name_of(SampleFormat format);

/// Rows of the format go through the chat template (of prompt_completion those that are messages).
bool is_chat(SampleFormat format);

/// Characters of a message's content with a factor of their own: bytes [begin, end) of it.
struct TrainDetail {
  size_t begin = 0, end = 0;
  float weight = 1;
};

/// A chat, for the chat template.
struct Conversation {
  Json messages = Json::array();  ///< without the keys that say what is learnt
  Json tools = nullptr;
  Json template_kwargs = Json::object();
  /// [messages] factor of each message's loss, from its `train`, `weight`, `loss` or `loss_mask`; 0: not learnt.
  std::vector<float> weights;
  /// [messages, or fewer] from `train_detail`: if not empty, what of the content is learnt, ascending, without overlap.
  std::vector<std::vector<TrainDetail>> details = {};
  /// Of prompt_completion: the first message of the completion.
  std::optional<size_t> completion_begin;
  /// A message of another role than assistant asks to be learnt.
  bool other_roles_ask = false;
};

/// Plain text and what is to follow it. Of the format text the prompt is empty.
struct PromptCompletion {
  std::string prompt, completion;
  bool encoded_apart = false;  ///< also by a tokenizer that puts a space in front of every text
};

/// Tokens as they are. labels are aligned with input_ids, kIgnoredLabel where nothing is learnt.
struct TokenizedRow {
  std::vector<int32_t> input_ids, labels;
  std::vector<float> weights;  ///< of each label; empty: all 1
};

using FormattedRow = std::variant<Conversation, PromptCompletion, TokenizedRow>;

/// Reads the columns of `row` (an object) as `format`, which is not kAuto. Throws UserError at `where` (file:line):
/// a missing column (with those found and the nearest name), a column of the wrong type. `unread`, if not null, becomes
/// the columns that it did not look at (RowColumns::unread).
FormattedRow format_row(const Json& row, SampleFormat format, const std::string& where,
                        const ColumnMapping& mapping = {}, std::vector<std::string>* unread = nullptr);

/// A row for detection.
struct LocatedRow {
  Json row;
  std::string where;
};

struct DetectedFormat {
  SampleFormat format = SampleFormat::kAuto;
  std::string reason;  ///< "column 'messages' in chat.jsonl:1"
};

/// The format that the columns of all `rows` (at least one) fit and that reads every column of the mapping. Throws
/// UserError: no format or several fit (with their names), rows disagree, the columns are those of preference pairs.
DetectedFormat detect_format(std::span<const LocatedRow> rows, const ColumnMapping& mapping = {});

/// Throws UserError at `where` if the mapping names a column that the format does not read.
void check_mapping(SampleFormat format, const ColumnMapping& mapping, const std::string& where);

// Columns that no format reads and that reverse what a row means: answers that are not wanted, media.

/// Throws UserError at `where` (file:line), with the ignore_columns to write, for a row of this format with
///   - `label` or `kto_tag` that is false, as JSON or as text, where the row holds a chat or a prompt and its
///   completion;
///   - `rejected`, `rejected_response` or `rejected_messages` that is not empty; and beside it `chosen`, unless it is
///     what `messages` is;
///   - `images`, `videos`, `audios` or the singular of one that is not empty.
/// What the mapping reads or ignores is settled, and so is the one of `chosen` and `rejected` if it reads the other.
void refuse_contrary_columns(const Json& row, SampleFormat format, const std::string& where,
                             const ColumnMapping& mapping);

}  // namespace hone
