#include "text/prompt_comparison.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/jinja/template.h"
#include "text/thinking.h"

namespace hone {

namespace {

/// The text from the last of the message's own characters to byte `end`; nothing if the message is not rendered.
std::optional<std::string> text_after(const RenderedChat& chat, size_t message, size_t end) {
  std::optional<size_t> begin;
  for (const Span& span : chat.spans) {
    const bool own = span.message_index == static_cast<int>(message) && span.kind != SpanKind::kTemplate &&
                     span.kind != SpanKind::kVariable && span.kind != SpanKind::kQuote;
    if (own && span.end <= end) begin = span.end;
  }
  return begin ? std::optional(chat.text.substr(*begin, end - *begin)) : std::nullopt;
}

/// The text of a prompt after its last message; nothing if the template rejects the messages.
std::optional<std::string> asked_with(const ChatTemplate& chat_template, const ChatInput& prompt, size_t message) {
  try {
    const RenderedChat chat = chat_template.render(prompt);
    return text_after(chat, message - 1, chat.text.size());
  } catch (const jinja::OutOfSteps&) {
    throw;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

/// The beginning of the last tag before the first difference.
size_t shown_from(std::string_view a, std::string_view b) {
  const size_t common = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const size_t tag = common == 0 ? std::string_view::npos : a.find_last_of("<[", common - 1);
  return tag == std::string_view::npos ? 0 : tag;
}

}  // namespace

std::string PromptComparison::advice(const ChatTemplate& chat_template, const ChatInput& prompt, size_t message,
                                     const std::string& learnt, const std::string& asked) const {
  constexpr size_t kMost = 64;
  {
    const std::lock_guard lock(mutex_);
    const auto found = advice_.find({learnt, asked});
    if (found != advice_.end()) return found->second;
  }
  const auto adds_empty_block = [](std::string_view longer, std::string_view shorter) {
    return longer.starts_with(shorter) && is_empty_think_block(longer.substr(shorter.size()));
  };
  std::string text;
  if (adds_empty_block(asked, learnt)) {
    // With thinking off, a template writes the block into the prompt and before the last answer only.
    text = "the template shows these answers without the empty block; train_on: last leaves out those of earlier turns";
  } else if (const auto name = thinking_switch(chat_template, prompt.variables)) {
    for (const bool value : {false, true}) {
      ChatInput switched = prompt;
      switched.variables[*name] = value;
      if (asked_with(chat_template, switched, message) != learnt) continue;
      text = fmt::format(
          "ask with {0}: {1} (chat_template_kwargs: {{{0}: {1}}} in the configuration is kept with the "
          "result)",
          *name, value);
    }
  }
  if (adds_empty_block(learnt, asked)) {
    text += fmt::format("{}set learn_empty_thinking: true, which teaches the model to write the empty block itself",
                        text.empty() ? "" : ", or ");
  }
  if (text.empty()) text = "give a chat_template whose generation prompt is the text before the answers";
  const std::lock_guard lock(mutex_);
  if (advice_.size() < kMost) advice_.emplace(std::pair(learnt, asked), text);
  return text;
}

std::optional<PromptDifference> PromptComparison::compare(const ChatTemplate& chat_template, const RenderedChat& chat,
                                                          size_t message, size_t begin,
                                                          const std::function<ChatInput()>& before) const {
  if (message == 0 || !chat.answer_header || chat.answer_header->empty()) return std::nullopt;
  if (std::string_view(chat.text).substr(0, begin).ends_with(*chat.answer_header)) return std::nullopt;
  ChatInput prompt = before();
  prompt.add_generation_prompt = true;
  const std::optional<std::string> learnt = text_after(chat, message - 1, begin);
  const std::optional<std::string> asked = asked_with(chat_template, prompt, message);
  if (!learnt || !asked || *learnt == *asked) return std::nullopt;
  const size_t from = shown_from(*learnt, *asked);
  return PromptDifference{learnt->substr(from), asked->substr(from),
                          advice(chat_template, prompt, message, *learnt, *asked)};
}

}  // namespace hone
