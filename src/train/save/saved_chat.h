// The chat settings of a run, saved next to its result in hone_chat.json, which other programs ignore.
#pragma once

#include <filesystem>

#include "core/text/json_value.h"
#include "text/tokenizer_config.h"

namespace hone {

struct ChatSettings {
  JsonObject kwargs = {};   ///< chat_template_kwargs
  TokenChoice tokens = {};  ///< for an adapter only; a full model has them in its own files
  bool split_special_tokens = false;

  bool empty() const { return kwargs.empty() && tokens.empty() && !split_special_tokens; }
};

/// Writes {"chat_template_kwargs": kwargs, "tokens": {role: token, "eot_tokens": [...]}, "split_special_tokens": true}
/// to hone_chat.json in `directory`, the last two only where they say something; with empty settings removes that file,
/// so that the base model's does not remain.
void save_chat_settings(const std::filesystem::path& directory, const ChatSettings& settings);

/// Reads the settings; they are empty if the file does not exist. Throws UserError if its contents are invalid.
ChatSettings saved_chat_settings(const std::filesystem::path& directory);

}  // namespace hone
