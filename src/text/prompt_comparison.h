// Compares the text before a supervised answer with the prompt that inference uses.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "text/chat_template.h"

namespace hone {

/// A supervised answer follows one text in training and another one in the prompt.
struct PromptDifference {
  std::string learnt, asked;  ///< from the answer's header on, as far as they differ, with the tag before
  std::string advice;         ///< which prompt to use, or what to train on

  bool operator==(const PromptDifference&) const = default;
};

/// Thread-safe.
class PromptComparison {
 public:
  /// `chat` is a rendering by `chat_template`; its message `message` is supervised from byte `begin` on. `before`
  /// returns the input with only the messages before that one. Compares the text between the previous message and
  /// `begin` with the text that add_generation_prompt writes there. Returns nothing if they agree, if there is no
  /// previous message, or if the template has no generation prompt or rejects the messages.
  std::optional<PromptDifference> compare(const ChatTemplate& chat_template, const RenderedChat& chat, size_t message,
                                          size_t begin, const std::function<ChatInput()>& before) const;

 private:
  std::string advice(const ChatTemplate& chat_template, const ChatInput& prompt, size_t message,
                     const std::string& learnt, const std::string& asked) const;

  mutable std::mutex mutex_;
  mutable std::map<std::pair<std::string, std::string>, std::string> advice_;  // by learnt and asked
};

}  // namespace hone
