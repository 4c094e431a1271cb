// The prompts of `hone generate` and `hone eval`: from the command line or the rows of a file to tokens.
#pragma once

#include <string>
#include <vector>

#include "data/column_mapping.h"
#include "infer/chat_prompt.h"

namespace hone {

/// A prompt and where it came from.
struct PromptRow {
  Json row;           ///< of a file, {"prompt": line} of a .txt; null for a prompt of the command line
  std::string where;  ///< file:line
  std::vector<int32_t> ids;
  std::string asked;     ///< what is asked: the text, or the last message; empty: tokens alone
  bool is_chat = false;  ///< the chat template wrote it
};

struct PromptReaderOptions {
  std::string system;                        ///< put before messages that do not begin with a system message
  Json template_variables = Json::object();  ///< for the chat template, where the row does not state them
  bool raw = false;                          ///< texts are encoded as they are
  ColumnMapping mapping = {};                ///< of the rows of a file
};

class PromptReader {
 public:
  /// Both outlive this.
  PromptReader(const Tokenizer& tokenizer, const ChatPrompt& chat, const PromptReaderOptions& options);

  /// A text of the command line. UserError if it has no tokens.
  PromptRow read_text(const std::string& text, const std::string& where) const;

  /// The lines of a .txt file that are not blank, or the rows of any other data that training reads, file or folder.
  /// The answer may be missing (`prompt` or `question` alone, `instruction` and `input`) and is not shown to the model:
  /// neither the assistant's messages at the end of a chat, nor a completion. A prompt with a completion that is text
  /// is continued without template, as training encodes it; so are tokens, up to the first that is learnt. UserError
  /// with file:line: columns of no format, nothing to answer, the errors of the files and of the chat template; with
  /// the file: no rows.
  std::vector<PromptRow> read_file(const std::string& path) const;

 private:
  std::vector<PromptRow> read_lines(const std::string& path) const;
  PromptRow read_row(const Json& row, const std::string& where) const;
  PromptRow read_messages(ChatInput input, const std::string& where) const;

  const Tokenizer& tokenizer_;
  const ChatPrompt& chat_;
  PromptReaderOptions options_;
};

/// Tokens of the longest sequence: what its prompt and answer need, within the model's context. UserError for a prompt
/// that leaves no room for an answer.
int64_t longest_sequence(const std::vector<PromptRow>& prompts, int64_t max_new_tokens, int64_t context);

}  // namespace hone
