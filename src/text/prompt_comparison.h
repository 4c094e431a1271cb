// What stands in front of an answer that is learnt, beside the prompt that the model will be asked with.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "text/chat_template.h"

namespace hone {

/// An answer is learnt after one text and asked for with another.
struct PromptDifference {
  std::string learnt, asked;  ///< from the header of the answer on, as far as they differ and a tag in front
  std::string advice;         ///< how to ask, or what to train on

  bool operator==(const PromptDifference&) const = default;
};

/// May be used from many threads.
class PromptComparison {
 public:
  /// `chat` is a rendering by `chat_template` of which `message` is learnt from byte `begin` on; `before` makes its
  /// input with the messages before that one alone. Compares the text between the message before it and `begin` with
  /// what the template writes there for add_generation_prompt. Nothing if they agree, if there is no message before, or
  /// if the template has no generation prompt or refuses the messages.
  std::optional<PromptDifference> compare(const ChatTemplate& chat_template, const RenderedChat& chat, size_t message,
                                          size_t begin, const std::function<ChatInput()>& before) const;

 private:
  std::string advice(const ChatTemplate& chat_template, const ChatInput& prompt, size_t message,
                     const std::string& learnt, const std::string& asked) const;

  mutable std::mutex mutex_;
  mutable std::map<std::pair<std::string, std::string>, std::string> advice_;  // by learnt and asked
};

}  // namespace hone
