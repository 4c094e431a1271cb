#include "app/init/thinking_rows.h"

#include "core/error.h"
#include "data/dataset_reader.h"
#include "data/row_formats.h"
#include "text/chat_mask.h"
#include "text/thinking.h"
#include "text/tokenizer.h"

namespace hone {

namespace {

std::string switch_of(const std::filesystem::path& directory) {
  if (directory.empty() || !std::filesystem::exists(directory / "tokenizer.json")) return {};
  const Tokenizer tokenizer = Tokenizer::load(directory);
  const auto source = tokenizer.chat_template();
  if (!source) return {};
  const ChatTemplate chat_template(*source, "chat_template");
  return thinking_switch(chat_template, special_token_variables(tokenizer)).value_or("");
}

}  // namespace

ThinkingRows find_thoughts(const std::filesystem::path& directory, const std::string& data) {
  ThinkingRows result{switch_of(directory)};
  if (result.switch_name.empty() || data.empty()) return result;
  const DatasetEntry entry{data};
  try {
    DatasetReader reader(entry);
    for (DatasetRow row; reader.next(row);) {
      const FormattedRow formatted = read_row(row, entry.mapping);
      const auto* conversation = std::get_if<Conversation>(&formatted);
      if (!conversation) continue;
      ++result.rows;
      result.with_thoughts += has_thoughts(*conversation) ? 1 : 0;
    }
  } catch (const UserError& error) {
    result.problem = error.message();
    result.rows = result.with_thoughts = 0;
  }
  return result;
}

}  // namespace hone
