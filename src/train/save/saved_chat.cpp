#include "train/save/saved_chat.h"

#include <optional>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "weights/checkpoint.h"

namespace hone {

namespace {

constexpr const char* kFile = "hone_chat.json";
constexpr const char* kKwargs = "chat_template_kwargs";
constexpr const char* kTokens = "tokens";
constexpr const char* kSplit = "split_special_tokens";

}  // namespace

void save_chat_settings(const std::filesystem::path& directory, const ChatSettings& settings) {
  if (settings.empty()) {
    std::filesystem::remove(directory / kFile);
    return;
  }
  Json json = {{kKwargs, settings.kwargs}};
  if (!settings.tokens.empty()) json[kTokens] = settings.tokens.to_json();
  if (settings.split_special_tokens) json[kSplit] = true;
  write_text_file(directory / kFile, json.dump(2) + "\n");
}

ChatSettings saved_chat_settings(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kFile;
  const std::optional<Json> read = read_json_if_there(path);
  if (!read) return {};
  const auto is_object = [](const Json& json, const char* name) {
    return json.is_object() && json.contains(name) && json[name].is_object();
  };
  if (!is_object(*read, kKwargs) || (read->contains(kTokens) && !is_object(*read, kTokens)) ||
      (read->contains(kSplit) && !(*read)[kSplit].is_boolean())) {
    throw UserError("the file does not hold the chat settings of a run", path.string(),
                    "remove it, and set --chat-template-kwargs");
  }
  return {(*read)[kKwargs], TokenChoice::from_json(read->value(kTokens, Json::object()), path.string()),
          read->value(kSplit, false)};
}

}  // namespace hone
