// The prompts of `hone generate` and `hone eval`: tokenises texts of the command line and rows of files.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/text/json_value.h"
#include "data/formats/column_mapping.h"
#include "infer/chat_prompt.h"

namespace hone {

/// A prompt and its origin.
struct PromptRow {
  JsonValue row;      ///< the row of a file, {"prompt": line} for a .txt; null for a prompt of the command line
  std::string where;  ///< file:line
  std::vector<int32_t> ids;
  std::string asked;     ///< the text, or the last message; empty for a prompt of tokens
  bool is_chat = false;  ///< rendered by the chat template
};

/// What a row asks and, if it says so, the answer.
struct AskedRow {
  /// Messages for the chat template, a text to continue, or tokens.
  std::variant<ChatInput, std::string, std::vector<int32_t>> prompt;
  /// The text of the one message of the assistant at the end of a chat, or of the completion; nothing for other rows.
  std::optional<std::string> answer = {};
  std::vector<int32_t> answer_ids = {};  ///< in a row of tokens: those that are supervised after the prompt
};

/// Calls `take` with each row of a file or folder of training data, or of a pipe with JSONL, in order.
void read_rows(const std::string& path, const ColumnMapping& mapping,
               const std::function<void(Json row, const std::string& where)>& take);

struct PromptReaderOptions {
  std::string system;                  ///< prepended to messages that do not begin with a system message
  JsonObject template_variables = {};  ///< for the chat template; the row's own have precedence
  bool raw = false;                    ///< texts are encoded without chat template
  ColumnMapping mapping = {};          ///< for the rows of a file
};

class PromptReader {
 public:
  /// Tokenizer and chat prompt must outlive this object.
  PromptReader(const Tokenizer& tokenizer, const ChatPrompt& chat, const PromptReaderOptions& options);

  /// Reads a text of the command line. Throws UserError if it has no tokens.
  PromptRow read_text(const std::string& text, const std::string& where) const;

  /// Reads a row as read_file() does, at `where`: what it asks, and that with its tokens.
  AskedRow read_asked(const Json& row, const std::string& where) const;
  PromptRow encode(AskedRow asked, const std::string& where) const;
  PromptRow read_row(const Json& row, const std::string& where) const { return encode(read_asked(row, where), where); }

  /// Reads the lines of a .txt file that are not blank, or the rows of other training data, file or folder. The answer
  /// may be missing (only `prompt` or `question`, or `instruction` and `input`) and is not part of the prompt: neither
  /// the assistant's messages at the end of a chat, nor a completion. A text prompt with a completion is encoded
  /// without template, as in training; a tokenised row is cut before its first supervised token. Throws UserError with
  /// file:line for unknown columns, for a row without a prompt, and for errors of files and of the chat template; with
  /// the file if it has no rows.
  std::vector<PromptRow> read_file(const std::string& path) const;

 private:
  std::vector<PromptRow> read_lines(const std::string& path) const;
  PromptRow read_messages(ChatInput input, const std::string& where) const;

  const Tokenizer& tokenizer_;
  const ChatPrompt& chat_;
  PromptReaderOptions options_;
};

/// Tokens of the longest sequence (prompt and answer), at most the model's context. Throws UserError for a prompt that
/// fills the context.
int64_t longest_sequence(const std::vector<PromptRow>& prompts, int64_t max_new_tokens, int64_t context);

}  // namespace hone
