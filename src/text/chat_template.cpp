#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"
#include "text/thinking.h"

namespace hone {

// The inputs of a chat template as template values, with the provenance of each.

/// Converts JSON to values, gives each a source number, and records the origin of each number.
class ChatInputs {
 public:
  /// Returns the variables of a rendering. Throws UserError as ChatTemplate::render does.
  std::vector<std::pair<std::string, jinja::Value>> context(const ChatInput& input);

  /// The message and kind of a source; kTemplateText is template text.
  struct Origin {
    int message_index = -1;
    SpanKind kind = SpanKind::kTemplate;
  };
  Origin origin(jinja::SourceId source) const { return sources_[source].origin; }

  /// Sets `text`, `spans` and `messages` of `chat` from a rendering.
  void describe(const jinja::MarkedString& text, RenderedChat& chat) const;

 private:
  struct Source {
    Origin origin;
    bool counted = false;  ///< its characters count for Coverage
    std::string text;      ///< for strings only
  };

  jinja::SourceId add(const Origin& origin);
  jinja::Value convert(const Json& json, const Origin& origin, bool counted, int depth);
  jinja::Value convert_string(const std::string& text, const Origin& origin, bool counted);
  jinja::Value convert_message(const Json& message, int index);
  std::vector<Span> run_spans(const jinja::MarkedString& text, std::vector<std::vector<bool>>& shown) const;
  void count_rendered(const std::vector<std::vector<bool>>& shown, RenderedChat& chat) const;

  std::vector<Source> sources_ = std::vector<Source>(1);
  std::vector<std::string> roles_;
};

using jinja::SourceId;
using jinja::Value;

namespace {

/// Whether a byte counts for Coverage: the first byte of each character that is not white space.
bool counts(char byte) {
  const auto b = static_cast<unsigned char>(byte);
  return b > 0x20 && (b & 0xC0) != 0x80;
}

SpanKind kind_of_field(std::string_view name) {
  if (name == "content") return SpanKind::kContent;
  if (name == "role") return SpanKind::kRole;
  if (name == "reasoning_content" || name == "reasoning" || name == "thinking") return SpanKind::kReasoning;
  if (name == "tool_calls" || name == "function_call") return SpanKind::kToolCall;
  return SpanKind::kField;
}

/// [text.size()] whether each byte counts; the bytes of think tags do not.
std::vector<bool> counted_bytes(std::string_view text) {
  std::vector<bool> counted(text.size());
  for (size_t i = 0; i < text.size(); ++i) counted[i] = counts(text[i]);
  for (const auto& tags : kThinkTags) {
    for (const std::string_view tag : {tags.first, tags.second}) {
      for (size_t at = text.find(tag); at != std::string_view::npos; at = text.find(tag, at + tag.size())) {
        std::fill_n(counted.begin() + static_cast<std::ptrdiff_t>(at), tag.size(), false);
      }
    }
  }
  return counted;
}

Coverage* coverage_of(RenderedMessage& message, SpanKind kind) {
  switch (kind) {
    case SpanKind::kContent:
      return &message.content;
    case SpanKind::kReasoning:
      return &message.reasoning;
    case SpanKind::kToolCall:
      return &message.tool_calls;
    default:
      return nullptr;
  }
}

}  // namespace

SourceId ChatInputs::add(const Origin& origin) {
  sources_.push_back({origin, false, {}});
  return static_cast<SourceId>(sources_.size() - 1);
}

Value ChatInputs::convert_string(const std::string& text, const Origin& origin, bool counted) {
  const SourceId source = add(origin);
  sources_.back().counted = counted;
  sources_.back().text = text;
  return Value::string(jinja::MarkedString(text, source)).with_source(source);
}

Value ChatInputs::convert(const Json& json, const Origin& origin, bool counted, int depth) {
  if (depth >= jinja::kMaxValueDepth) {
    throw UserError("chat template: an input is nested too deep", {},
                    "pass messages, tools and variables with fewer levels");
  }
  if (json.is_string()) return convert_string(json.get_ref<const std::string&>(), origin, counted);
  const SourceId source = add(origin);
  if (json.is_array()) {
    std::vector<Value> items;
    for (const Json& item : json) items.push_back(convert(item, origin, counted, depth + 1));
    return Value::list(std::move(items)).with_source(source);
  }
  if (json.is_object()) {
    std::vector<std::pair<Value, Value>> entries;
    for (const auto& [name, item] : json.items()) {
      const bool counts_below = counted || (origin.kind == SpanKind::kContent && name == "text") ||
                                (origin.kind == SpanKind::kToolCall && (name == "name" || name == "arguments"));
      Value key = convert_string(name, origin, counted && origin.kind == SpanKind::kToolCall);
      entries.emplace_back(std::move(key), convert(item, origin, counts_below, depth + 1));
    }
    return Value::dict(std::move(entries)).with_source(source);
  }
  if (json.is_boolean()) return Value::boolean(json.get<bool>()).with_source(source);
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return Value::real(json.get<double>()).with_source(source);
  }
  if (json.is_number_integer()) return Value::integer(json.get<int64_t>()).with_source(source);
  if (json.is_number_float()) return Value::real(json.get<double>()).with_source(source);
  return Value::none().with_source(source);
}

Value ChatInputs::convert_message(const Json& message, int index) {
  const auto where = fmt::format("messages[{}]", index);
  if (!message.is_object()) {
    throw UserError("chat template: a message is not an object", where, "write {\"role\": ..., \"content\": ...}");
  }
  roles_.push_back(message.contains("role") && message["role"].is_string() ? message["role"].get<std::string>() : "");
  const SourceId source = add({index, SpanKind::kField});
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [name, item] : message.items()) {
    const SpanKind kind = kind_of_field(name);
    const bool counted = item.is_string() && (kind == SpanKind::kContent || kind == SpanKind::kReasoning);
    Value key = convert_string(name, {index, SpanKind::kField}, false);
    entries.emplace_back(std::move(key), convert(item, {index, kind}, counted, 1));
  }
  return Value::dict(std::move(entries)).with_source(source);
}

std::vector<std::pair<std::string, Value>> ChatInputs::context(const ChatInput& input) {
  static constexpr std::array<std::string_view, 4> kReserved = {"messages", "tools", "documents",
                                                                "add_generation_prompt"};
  if (!input.messages->is_array()) {
    throw UserError("chat template: the messages are not an array", "messages", "write [{\"role\": ..., ...}, ...]");
  }
  std::vector<Value> messages;
  for (const Json& message : *input.messages) {
    messages.push_back(convert_message(message, static_cast<int>(messages.size())));
  }
  const Origin variable{-1, SpanKind::kVariable};
  std::vector<std::pair<std::string, Value>> context;
  context.emplace_back("messages", Value::list(std::move(messages)));
  context.emplace_back("tools", convert(input.tools, variable, false, 0));
  context.emplace_back("documents", convert(input.documents, variable, false, 0));
  context.emplace_back("add_generation_prompt", Value::boolean(input.add_generation_prompt));
  for (const auto& [name, item] : input.variables->items()) {
    for (auto reserved : kReserved) {
      if (name != reserved) continue;
      throw UserError(fmt::format("chat template: the variable '{}' is set by the program", name),
                      "chat_template_kwargs", "remove it from chat_template_kwargs");
    }
    context.emplace_back(name, convert(item, variable, false, 0));
  }
  return context;
}

/// Returns one span per run; sets `shown` to the bytes of each source that are in the text.
std::vector<Span> ChatInputs::run_spans(const jinja::MarkedString& text, std::vector<std::vector<bool>>& shown) const {
  std::vector<bool> shows_at_its_own(roles_.size(), false);
  for (const jinja::Run& run : text.runs()) {
    const int from = origin(run.source).message_index, at = origin(run.owner).message_index;
    if (from >= 0 && (at == from || at == -1)) shows_at_its_own[static_cast<size_t>(from)] = true;
  }
  std::vector<Span> spans;
  size_t begin = 0;
  const jinja::Run* previous = nullptr;
  bool repeated = false;
  for (const jinja::Run& run : text.runs()) {
    const Origin from = origin(run.source);
    const int at = origin(run.owner).message_index;
    // An escape gives several runs for one character: a run that continues the previous one is new if that one was.
    const bool goes_on = previous && previous->source == run.source && run.offset >= previous->offset;
    std::vector<bool>& bytes = shown[run.source];
    const size_t end = run.offset < bytes.size() ? std::min(bytes.size(), run.offset + (run.end - begin)) : 0;
    if (!goes_on) repeated = end > run.offset;
    for (size_t i = run.offset; i < end; ++i) {
      if (!goes_on && !bytes[i]) repeated = false;
      bytes[i] = true;
    }
    Span span{begin, run.end, from.message_index, from.kind, run.generation, run.offset};
    if (from.message_index < 0) {
      span.message_index = at;
    } else if (at >= 0 && at != from.message_index && shows_at_its_own[static_cast<size_t>(from.message_index)]) {
      span.kind = SpanKind::kQuote;
    } else if (repeated) {
      span.kind = SpanKind::kField;
    }
    spans.push_back(span);
    begin = run.end;
    previous = &run;
  }
  return spans;
}

void ChatInputs::describe(const jinja::MarkedString& text, RenderedChat& chat) const {
  chat.text = text.text();
  std::vector<std::vector<bool>> shown(sources_.size());
  for (size_t i = 0; i < sources_.size(); ++i) shown[i].resize(sources_[i].text.size());
  for (const Span& span : run_spans(text, shown)) {
    Span* last = chat.spans.empty() ? nullptr : &chat.spans.back();
    const bool alike = last && last->kind == span.kind && last->message_index == span.message_index &&
                       last->generation == span.generation;
    if (alike &&
        (span.kind != SpanKind::kContent || last->content_offset + (last->end - last->begin) == span.content_offset)) {
      last->end = span.end;
    } else {
      chat.spans.push_back(span);
    }
  }
  for (const std::string& role : roles_) chat.messages.push_back({role, {}, {}, {}});
  count_rendered(shown, chat);
}

void ChatInputs::count_rendered(const std::vector<std::vector<bool>>& shown, RenderedChat& chat) const {
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    if (!source.counted) continue;
    Coverage* coverage =
        coverage_of(chat.messages[static_cast<size_t>(source.origin.message_index)], source.origin.kind);
    if (!coverage) continue;
    const std::vector<bool> counted = counted_bytes(source.text);
    for (size_t byte = 0; byte < source.text.size(); ++byte) {
      if (!counted[byte]) continue;
      ++coverage->characters;
      coverage->rendered += shown[i][byte] ? 1 : 0;
    }
  }
}

namespace {

Json message(const char* role, const char* content) { return {{"role", role}, {"content", content}}; }

std::string without_leading_space(std::string text) {
  text.erase(0, std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return text;
}

}  // namespace

/// Cache of headers by variables: the messages of a conversation do not change them.
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

/// The text that add_generation_prompt adds after one question.
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

/// The template's text before an answer, from the start of the answer's iteration.
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
  const std::string key = input.variables->dump(-1, ' ', false, Json::error_handler_t::replace);
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
      // A template may reject the probe, for example without a system message. Then only the provenance of the
      // characters gives the beginning of an answer.
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
