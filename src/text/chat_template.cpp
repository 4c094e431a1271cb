#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
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
    bool of_tools = false;

    /// Whether members that are null are left out: data tools write null for every member that other rows have.
    bool drops_nulls() const { return message_index >= 0 || of_tools; }
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
  jinja::Value convert_function(const Json& json, const Origin& origin, int depth);
  jinja::Value convert_functions(const Json& list, const Origin& origin);
  jinja::Value convert_arguments(const Json& json, const Origin& origin, int depth);
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
      if (item.is_null() && origin.drops_nulls()) continue;
      const bool counts_below = counted || (origin.kind == SpanKind::kContent && name == "text");
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

/// The arguments of a call: an object (or list), which templates may also read as its JSON; or a text that is not JSON.
Value ChatInputs::convert_arguments(const Json& json, const Origin& origin, int depth) {
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    const Json parsed = text.find_first_not_of(" \t\r\n") == std::string::npos ? Json::object() : parse_json(text);
    if (parsed.is_structured()) return convert(parsed, origin, true, depth).as_json_text();
  }
  const Value value = convert(json.is_null() ? Json::object() : json, origin, true, depth);
  return json.is_string() ? value : value.as_json_text();
}

/// A call or a tool, or the function in it. Its name counts for Coverage, and so do the arguments of a call.
Value ChatInputs::convert_function(const Json& json, const Origin& origin, int depth) {
  constexpr int kDeepest = 3;  // in the list of calls: a call, its function
  if (!json.is_object() || depth > kDeepest) return convert(json, origin, false, depth);
  const SourceId source = add(origin);
  const bool is_call = origin.kind == SpanKind::kToolCall;
  std::vector<std::pair<Value, Value>> entries;
  bool has_arguments = false;
  const auto put = [&](const std::string& name, const auto& convert_item) {
    Value key = convert_string(name, origin, false);
    entries.emplace_back(std::move(key), convert_item());
  };
  const auto put_arguments = [&](const Json& item) {
    has_arguments = true;
    put("arguments", [&] { return convert_arguments(item, origin, depth + 1); });
  };
  for (const auto& member : json.items()) {
    const std::string& name = member.key();
    const Json& item = member.value();
    if (name == "arguments" && is_call) {
      put_arguments(item);
    } else if (item.is_null()) {
      continue;
    } else if (name == "function") {
      put(name, [&] { return convert_function(item, origin, depth + 1); });
    } else {
      put(name, [&] { return convert(item, origin, name == "name" && item.is_string(), depth + 1); });
    }
  }
  if (is_call && !has_arguments && json.contains("name") && !json.contains("function")) put_arguments(nullptr);
  return Value::dict(std::move(entries)).with_source(source);
}

Value ChatInputs::convert_functions(const Json& list, const Origin& origin) {
  if (!list.is_array()) return convert_function(list, origin, 1);
  const SourceId source = add(origin);
  std::vector<Value> items;
  for (const Json& item : list) items.push_back(convert_function(item, origin, 2));
  return Value::list(std::move(items)).with_source(source);
}

Value ChatInputs::convert_message(const Json& message, int index) {
  const auto where = fmt::format("messages[{}]", index);
  if (!message.is_object()) {
    throw UserError("chat template: a message is not an object", where, "write {\"role\": ..., \"content\": ...}");
  }
  roles_.push_back(message.contains("role") && message["role"].is_string() ? message["role"].get<std::string>() : "");
  const SourceId source = add({index, SpanKind::kField});
  std::vector<std::pair<Value, Value>> entries;
  const auto put = [&](const std::string& name, const auto& convert_item) {
    Value key = convert_string(name, {index, SpanKind::kField}, false);
    entries.emplace_back(std::move(key), convert_item());
  };
  const auto put_blank_content = [&] {
    put("content", [&] { return Value::blank().with_source(add({index, SpanKind::kContent})); });
  };
  for (const auto& member : message.items()) {
    const std::string& name = member.key();
    const Json& item = member.value();
    const SpanKind kind = kind_of_field(name);
    const bool counted = item.is_string() && (kind == SpanKind::kContent || kind == SpanKind::kReasoning);
    if (item.is_null()) {
      if (kind == SpanKind::kContent) put_blank_content();
    } else if (kind == SpanKind::kToolCall) {
      put(name, [&] { return convert_functions(item, {index, kind}); });
    } else {
      put(name, [&] { return convert(item, {index, kind}, counted, 1); });
    }
  }
  if (!message.contains("content")) put_blank_content();
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
  context.emplace_back("tools", convert_functions(input.tools, {-1, SpanKind::kVariable, true}));
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
        source.origin.of_tools
            ? &chat.tools
            : coverage_of(chat.messages[static_cast<size_t>(source.origin.message_index)], source.origin.kind);
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

/// What does not depend on the messages of a conversation.
struct ChatTemplate::Probed {
  std::optional<std::string> header;
  AnswerEnds ends;
};

/// Cache of these by variables.
struct ChatTemplate::ProbeCache {
  std::mutex mutex;
  std::map<std::string, Probed> by_variables;
};

ChatTemplate::ChatTemplate(std::string_view source, std::string name, std::optional<std::time_t> now)
    : template_(std::make_unique<jinja::Template>(source, std::move(name))),
      now_(now),
      probes_(std::make_unique<ProbeCache>()) {}
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

/// Renders plain conversations to find what a template writes around any answer.
class TemplateProbe {
 public:
  TemplateProbe(const jinja::Template& engine, const Json& variables, std::optional<std::time_t> now)
      : engine_(engine), variables_(variables), now_(now) {}

  std::optional<std::string> header() const {
    std::optional<std::string> found = or_else<std::optional<std::string>>([&] { return generation_prompt(); });
    return found ? found : or_else<std::optional<std::string>>([&] { return text_before_answer(); });
  }

  AnswerEnds ends() const {
    AnswerEnds ends;
    const Json question = message("user", "question"), answer = message("assistant", "answer");
    ends.last = or_else<std::string>([&] { return text_after(rendered({question, answer}), 1); });
    or_else<bool>([&] {
      const RenderedChat chat = rendered({question, answer, question});
      ends.followed = text_after(chat, 1);
      ends.next_question = text_before(chat, 2);
      return true;
    });
    const Json function = {{"name", "look"}, {"arguments", {{"at", "it"}}}};
    const Json call = {{"id", "call00000"}, {"type", "function"}, {"function", function}};
    const Json calling = {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}};
    const Json result = {{"role", "tool"}, {"name", "look"}, {"tool_call_id", "call00000"}, {"content", "result"}};
    ends.next_result = or_else<std::string>([&] { return text_before(rendered({question, calling, result}), 2); });
    return ends;
  }

 private:
  /// The result of `find`, or an empty one: a template may reject the probe, for example without a system message. Then
  /// the provenance of the characters alone tells where an answer begins and ends.
  template <class Result>
  static Result or_else(const auto& find) {
    try {
      return find();
    } catch (const jinja::OutOfSteps&) {
      throw;
    } catch (const UserError&) {
      return {};
    }
  }

  RenderedChat rendered(std::initializer_list<Json> messages, bool add_generation_prompt = false) const {
    ChatInput probe;
    for (const Json& one : messages) probe.messages->push_back(one);
    probe.variables = variables_;
    probe.add_generation_prompt = add_generation_prompt;
    return render_once(engine_, probe, now_);
  }

  /// The text that add_generation_prompt adds after one question.
  std::optional<std::string> generation_prompt() const {
    const std::string without = rendered({message("user", "question")}).text;
    const std::string with = rendered({message("user", "question")}, true).text;
    const std::string added = with.starts_with(without) ? without_leading_space(with.substr(without.size())) : "";
    return added.empty() ? std::nullopt : std::optional(added);
  }

  /// The template's text before an answer, from the start of the answer's iteration.
  std::optional<std::string> text_before_answer() const {
    const RenderedChat chat = rendered({message("user", "question"), message("assistant", "answer")});
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

  /// What the iteration of message `index` writes before its content.
  static std::string text_before(const RenderedChat& chat, int index) {
    std::string text;
    for (const Span& span : chat.spans) {
      if (span.message_index != index) continue;
      if (span.kind == SpanKind::kContent) return text;
      text += chat.text.substr(span.begin, span.end - span.begin);
    }
    return {};
  }

  /// What the iteration of message `index` writes after its content.
  static std::string text_after(const RenderedChat& chat, int index) {
    std::string text;
    for (const Span& span : chat.spans) {
      if (span.message_index != index) continue;
      text += chat.text.substr(span.begin, span.end - span.begin);
      if (span.kind == SpanKind::kContent) text.clear();
    }
    return text;
  }

  const jinja::Template& engine_;
  const Json& variables_;
  std::optional<std::time_t> now_;
};

}  // namespace

ChatTemplate::Probed ChatTemplate::probed(const ChatInput& input) const {
  const std::string key = input.variables->dump(-1, ' ', false, Json::error_handler_t::replace);
  {
    const std::lock_guard lock(probes_->mutex);
    const auto found = probes_->by_variables.find(key);
    if (found != probes_->by_variables.end()) return found->second;
  }
  const TemplateProbe probe(*template_, input.variables, now_);
  Probed probed{probe.header(), probe.ends()};
  constexpr size_t kMost = 1024;  // each row may have variables of its own
  const std::lock_guard lock(probes_->mutex);
  if (probes_->by_variables.size() < kMost) probes_->by_variables.emplace(key, probed);
  return probed;
}

RenderedChat ChatTemplate::render(const ChatInput& input) const {
  RenderedChat chat = render_once(*template_, input, now_);
  Probed found = probed(input);
  chat.answer_header = std::move(found.header);
  chat.ends = std::move(found.ends);
  return chat;
}

}  // namespace hone
