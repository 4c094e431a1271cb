#include "text/chat_template.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "core/error.h"
#include "text/chat_inputs.h"
#include "text/jinja/template.h"

namespace hone {

namespace {

Json message(const char* role, const char* content) { return {{"role", role}, {"content", content}}; }

std::string without_leading_space(std::string text) {
  text.erase(0, std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return text;
}

}  // namespace

/// Headers by the variables they were found with: a conversation's own text does not change them.
struct ChatTemplate::HeaderCache {
  std::mutex mutex;
  std::map<std::string, std::optional<std::string>> by_variables;
};

ChatTemplate::ChatTemplate(std::string_view source, std::string name, std::optional<std::time_t> now)
    : template_(std::make_unique<jinja::Template>(source, std::move(name))),
      now_(now),
      headers_(std::make_unique<HeaderCache>()) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

namespace {

RenderedChat render_once(const jinja::Template& engine, const ChatInput& input, std::optional<std::time_t> now) {
  ChatInputs inputs;
  auto context = inputs.context(input);
  RenderedChat chat;
  inputs.describe(engine.render(std::move(context), {}, now), chat);
  return chat;
}

/// What the template adds for add_generation_prompt behind one question.
std::optional<std::string> generation_prompt(const jinja::Template& engine, ChatInput probe,
                                             std::optional<std::time_t> now) {
  probe.messages = Json::array({message("user", "question")});
  probe.add_generation_prompt = false;
  const std::string without = render_once(engine, probe, now).text;
  probe.add_generation_prompt = true;
  const std::string with = render_once(engine, probe, now).text;
  const std::string added = with.starts_with(without) ? without_leading_space(with.substr(without.size())) : "";
  return added.empty() ? std::nullopt : std::optional(added);
}

/// The template's text in front of an answer, from the start of the answer's iteration.
std::optional<std::string> text_before_answer(const jinja::Template& engine, ChatInput probe,
                                              std::optional<std::time_t> now) {
  probe.messages = Json::array({message("user", "question"), message("assistant", "answer")});
  probe.add_generation_prompt = false;
  const RenderedChat chat = render_once(engine, probe, now);
  std::string header;
  bool owned = false;
  for (const Span& span : chat.spans) {
    if (span.message_index != 1) continue;
    if (span.kind == SpanKind::kContent && (owned || span.begin == 0)) return without_leading_space(header);
    if (span.kind == SpanKind::kContent) return std::nullopt;
    owned = owned || span.kind == SpanKind::kTemplate || span.kind == SpanKind::kVariable;
    header += chat.text.substr(span.begin, span.end - span.begin);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> ChatTemplate::answer_header(const ChatInput& input) const {
  const std::string key = input.variables.dump(-1, ' ', false, Json::error_handler_t::replace);
  {
    const std::lock_guard lock(headers_->mutex);
    const auto found = headers_->by_variables.find(key);
    if (found != headers_->by_variables.end()) return found->second;
  }
  ChatInput probe;
  probe.variables = input.variables;
  std::optional<std::string> header;
  for (auto* find : {generation_prompt, text_before_answer}) {
    try {
      if (!header) header = find(*template_, probe, now_);
    } catch (const UserError&) {
      // A template may refuse the probe (it wants a system message, say). Then only what came from the messages tells
      // where an answer begins.
    }
  }
  const std::lock_guard lock(headers_->mutex);
  return headers_->by_variables.emplace(key, header).first->second;
}

RenderedChat ChatTemplate::render(const ChatInput& input) const {
  RenderedChat chat = render_once(*template_, input, now_);
  chat.answer_header = answer_header(input);
  return chat;
}

}  // namespace hone
