// The chat settings of a run beside its result, in a file that other programs leave alone: hone_chat.json.
#pragma once

#include <filesystem>

#include "core/json.h"
#include "text/tokenizer_config.h"

namespace hone {

struct ChatSettings {
  Json kwargs = Json::object();  ///< chat_template_kwargs
  TokenChoice tokens;            ///< of an adapter: a whole model's own files say which tokens it has

  bool empty() const { return kwargs.empty() && tokens.empty(); }
};

/// Writes {"chat_template_kwargs": kwargs, "tokens": {role: token, "eot_tokens": [...]}} to hone_chat.json in
/// `directory`; without any settings there is no such file afterwards, so that one of the base model does not stay.
void save_chat_settings(const std::filesystem::path& directory, const ChatSettings& settings);

/// The settings of that file, empty ones without it. Throws UserError for a file that is not of this kind.
ChatSettings saved_chat_settings(const std::filesystem::path& directory);

}  // namespace hone
