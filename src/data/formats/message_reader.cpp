#include "data/formats/message_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/error.h"
#include "core/text/json.h"
#include "data/readers/raw_row.h"

namespace hone {
namespace {

/// [characters + 1] the first byte of each character of valid UTF-8, and the end.
std::vector<size_t> character_starts(const std::string& text) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) starts.push_back(i);
  }
  starts.push_back(text.size());
  return starts;
}

size_t offset_of(const Json& detail, const char* key, size_t characters, const RowColumns& columns,
                 const std::string& name) {
  const auto found = detail.find(key);
  if (found == detail.end() || !found->is_number_integer()) {
    columns.fail(fmt::format("{} has no whole number '{}'", name, key),
                 R"(write {"begin_offset": 0, "end_offset": 11, "train": true})");
  }
  const double offset = found->get<double>();
  if (!(offset >= 0 && offset < static_cast<double>(characters))) {
    columns.fail(fmt::format("{}.{} is {}, but the content has {} characters", name, key, found->dump(), characters),
                 "offsets count characters from 0; end_offset is the last one of the range");
  }
  return static_cast<size_t>(offset);
}

}  // namespace

float loss_factor(const Json& value, const RowColumns& columns, const std::string& name) {
  if (!value.is_boolean() && !value.is_number()) columns.fail_type(name, "true, false or a number", value);
  const double factor = value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0) : value.get<double>();
  if (!(factor >= 0 && factor <= kMaxWeight)) {
    columns.fail(fmt::format("{} is {}", name, factor), fmt::format("a weight is in [0, {}]", kMaxWeight));
  }
  return static_cast<float>(factor);
}

std::vector<TrainDetail> train_detail_of(const Json& json, const std::string& content, const RowColumns& columns,
                                         const std::string& name) {
  if (!json.is_array()) columns.fail_type(name, "a list of ranges", json);
  const std::vector<size_t> starts = character_starts(content);
  std::vector<TrainDetail> details;
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string stretch = fmt::format("{}[{}]", name, i);
    if (!json[i].is_object())
      columns.fail_type(stretch, R"({"begin_offset": …, "end_offset": …, "train": …})", json[i]);
    const size_t begin = offset_of(json[i], "begin_offset", starts.size() - 1, columns, stretch);
    const size_t last = offset_of(json[i], "end_offset", starts.size() - 1, columns, stretch);
    if (last < begin)
      columns.fail(fmt::format("{} ends before it begins", stretch), "end_offset is its last character");
    const char* key = json[i].contains("train") ? "train" : "weight";
    if (!json[i].contains(key))
      columns.fail(fmt::format("{} has neither 'train' nor 'weight'", stretch), "set one of them");
    details.push_back({starts[begin], starts[last + 1], loss_factor(json[i][key], columns, stretch + "." + key)});
  }
  std::sort(details.begin(), details.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < details.size(); ++i) {
    if (details[i].begin < details[i - 1].end)
      columns.fail(fmt::format("{} has ranges that overlap", name), "list each character once");
  }
  return details;
}

namespace {

/// The keys of a message's loss weight.
constexpr std::array<std::string_view, 5> kWeightKeys = {"train", "weight", "loss", "loss_mask", "loss_weight"};

constexpr std::string_view kFunctionCall = "function_call";

/// Speakers of ShareGPT and of the tools that read it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 17> kSpeakers = {{{"human", "user"},
                                                                                      {"user", "user"},
                                                                                      {"gpt", "assistant"},
                                                                                      {"assistant", "assistant"},
                                                                                      {"model", "assistant"},
                                                                                      {"bot", "assistant"},
                                                                                      {"chatgpt", "assistant"},
                                                                                      {"system", "system"},
                                                                                      {"tool", "tool"},
                                                                                      {"function", "tool"},
                                                                                      {"observation", "tool"},
                                                                                      {"tool_response", "tool"},
                                                                                      {"function_response", "tool"},
                                                                                      {"function_call", kFunctionCall},
                                                                                      {"function-call", kFunctionCall},
                                                                                      {"tool_call", kFunctionCall},
                                                                                      {"tool_calls", kFunctionCall}}};

std::vector<std::string_view> speaker_names() {
  std::vector<std::string_view> names;
  for (const auto& [speaker, role] : kSpeakers) names.push_back(speaker);
  return names;
}

/// Parses JSON text, and returns any other value as it is; null for text that is not JSON.
Json unwrapped(const Json& value) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  if (nested_too_deep(text)) return nullptr;
  Json parsed = Json::parse(text, nullptr, false);
  return parsed.is_discarded() ? Json(nullptr) : parsed;
}

enum class PartKind { kText, kThoughts, kCalls, kOther };

PartKind kind_of_part(const Json& part) {
  constexpr std::array<std::pair<std::string_view, PartKind>, 7> kTypes = {{{"text", PartKind::kText},
                                                                            {"reasoning", PartKind::kThoughts},
                                                                            {"thinking", PartKind::kThoughts},
                                                                            {"tool_call", PartKind::kCalls},
                                                                            {"tool_calls", PartKind::kCalls},
                                                                            {"function", PartKind::kCalls},
                                                                            {"function_call", PartKind::kCalls}}};
  if (part.is_string()) return PartKind::kText;
  if (!part.is_object()) return PartKind::kOther;
  const auto type = part.find("type");
  if (type == part.end() || type->is_null()) return PartKind::kText;
  for (const auto& [known, kind] : kTypes) {
    if (type->is_string() && type->get_ref<const std::string&>() == known) return kind;
  }
  return PartKind::kOther;
}

/// What a part says: the part itself if it is text, its `text`, its `value` (LLaMA-Factory) or the member with the name
/// of its type. Null if it has none.
const Json* value_of_part(const Json& part) {
  if (part.is_string()) return &part;
  const auto member = [&](const std::string& key) -> const Json* {
    const auto found = part.find(key);
    return found == part.end() || found->is_null() ? nullptr : &*found;
  };
  const Json* value = member("text");
  const auto type = part.find("type");
  if (type == part.end() || !type->is_string()) return value;
  if (!value) value = member("value");
  return value ? value : member(type->get_ref<const std::string&>());
}

}  // namespace

MessageReader::MessageReader(const RowColumns& columns, Speakers speakers, Conversation& conversation)
    : columns_(columns), speakers_(speakers), conversation_(conversation) {}

void MessageReader::read(const Json& list, const std::string& name) {
  const Json parsed = list.is_array() ? Json() : columns_.list_of(name, list, "a list of messages");
  const Json& messages = list.is_array() ? list : parsed;
  if (messages.empty()) columns_.fail(fmt::format("'{}' is an empty list", name), "remove the row, or add messages");
  for (size_t i = 0; i < messages.size(); ++i) add(messages[i], fmt::format("{}[{}]", name, i));
}

/// The key of `ours` in this message.
std::string MessageReader::key_name(std::string_view ours, const Json& message) const {
  if (const std::string* mapped = columns_.mapping().message_key(ours)) return *mapped;
  if (speakers_ == Speakers::kShareGpt && !message.contains(ours)) {
    if (ours == "role") return "from";
    if (ours == "content" && message.contains("value")) return "value";
  }
  return std::string(ours);
}

Json MessageReader::with_our_keys(const Json& message, const std::string& name) const {
  const std::string role = key_name("role", message), content = key_name("content", message);
  Json result = Json::object();
  for (const auto& [key, value] : message.items()) {
    std::string ours(columns_.mapping().meaning_of_key(key));
    if (key == role) ours = "role";
    if (key == content) ours = "content";
    if (ours == key && (key == "role" || key == "content") && key != role && key != content) continue;
    if (result.contains(ours)) {
      columns_.fail(fmt::format("{} has two values for '{}'", name, ours),
                    fmt::format("it has the keys: {}", column_names(message)));
    }
    result[ours] = value;
  }
  return result;
}

std::string MessageReader::role_of(const Json& message, const std::string& name) const {
  const std::string key = key_name("role", message);
  const auto found = message.find(key);
  if (found == message.end()) {
    if (speakers_ == Speakers::kRoles && message.contains("from") && message.contains("value")) {
      columns_.fail(fmt::format("{} has the keys 'from' and 'value' of the format sharegpt", name),
                    "set type: sharegpt for this data set");
    }
    columns_.fail(fmt::format("{} has no '{}'", name, key),
                  fmt::format("it has the keys: {}.{}", column_names(message), nearest_column(message, key)));
  }
  if (!found->is_string()) columns_.fail_type(fmt::format("{}.{}", name, key), "text", *found);
  const auto& speaker = found->get_ref<const std::string&>();
  if (const std::string* mapped = columns_.mapping().role_of(speaker)) return *mapped;
  if (speakers_ == Speakers::kRoles) return speaker;
  for (const auto& [known, role] : kSpeakers) {
    if (known == speaker) return std::string(role);
  }
  const std::vector<std::string_view> known = speaker_names();
  columns_.fail(fmt::format("{}.{} is '{}', which is not a speaker of sharegpt.{}", name, key, speaker,
                            did_you_mean(speaker, known)),
                fmt::format("use one of {}, or map it: column_mapping: {{roles: {{assistant: {}}}}}",
                            fmt::join(known, ", "), speaker));
}

void MessageReader::add(const Json& message, const std::string& name) {
  if (!message.is_object()) columns_.fail_type(name, R"({"role": …, "content": …})", message);
  const std::string role = role_of(message, name);
  const Json ours = with_our_keys(message, name);
  const std::optional<float> weight = weight_of(ours, name);
  const bool call = role == kFunctionCall;
  conversation_.weights.push_back(weight.value_or(1.0f));
  if (weight.value_or(0.0f) > 0 && role != "assistant" && !call) conversation_.other_roles_ask = true;
  Json kept = Json::object();
  for (const auto& [key, value] : ours.items()) {
    if (std::find(kWeightKeys.begin(), kWeightKeys.end(), key) != kWeightKeys.end()) continue;
    if (value.is_null() && key != "content") continue;  // as if it were missing
    if (key != "content") refuse_second(kept, key, name);
    if (key == "role") {
      kept[key] = call ? "assistant" : role;
    } else if (key == "content" && call) {
      kept["content"] = nullptr;
      kept["tool_calls"] = calls_of(value, name);
    } else if (key == "content" && value.is_array()) {
      read_parts(value, name, kept);
    } else if (key == "tool_calls" && value.is_string()) {
      kept[key] = columns_.list_of(name + ".tool_calls", value, "a list of calls");
    } else {
      kept[key] = value;
    }
  }
  check_content(kept, name);
  conversation_.details.push_back(details_of(kept, name));
  conversation_.messages->push_back(std::move(kept));
}

/// Converts {"name": …, "arguments": …} or a list of them, as JSON or as text, to the form that chat templates read.
Json MessageReader::calls_of(const Json& content, const std::string& name) const {
  Json calls = unwrapped(content);
  if (calls.is_object()) calls = Json::array({std::move(calls)});
  Json result = Json::array();
  for (const Json& call : calls) {
    const Json& function = call.is_object() && call.contains("function") ? call["function"] : call;
    if (!function.is_object() || !function.contains("name")) break;
    result.push_back(call.contains("function") ? call : Json{{"type", "function"}, {"function", call}});
  }
  if (!result.empty() && result.size() == calls.size()) return result;
  columns_.fail(fmt::format("{} is a function call, but not JSON of its name and arguments", name),
                R"(write {"name": …, "arguments": {…}}, or a list of such calls)");
}

void MessageReader::check_content(const Json& message, const std::string& name) const {
  const auto content = message.find("content");
  const bool has_content = content != message.end() && !content->is_null();
  if (has_content && !content->is_string()) columns_.fail_type(name + ".content", "text", *content);
  for (auto key : {"tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"}) {
    if (has_content || (message.contains(key) && !message[key].is_null())) return;
  }
  columns_.fail(fmt::format("{} has neither content nor tool calls", name),
                fmt::format("it has the keys: {}", column_names(message)));
}

/// Throws if the message has `key` already, from a part of its content or beside it.
void MessageReader::refuse_second(const Json& message, const std::string& key, const std::string& name) const {
  const auto found = message.find(key);
  if (found == message.end() || found->is_null()) return;
  columns_.fail(fmt::format("{} has '{}' and a part of content that is one", name, key), "keep one of them");
}

/// Reads [{"type": "text", "text": "a"}, …]: texts are joined, since templates that accept parts write them without a
/// separator; thoughts and calls (LLaMA-Factory's v1) become reasoning_content and tool_calls.
void MessageReader::read_parts(const Json& parts, const std::string& name, Json& message) const {
  std::optional<std::string> text, thoughts;
  Json calls = Json::array();
  for (const Json& part : parts) {
    const PartKind kind = kind_of_part(part);
    const Json* value = kind == PartKind::kOther ? nullptr : value_of_part(part);
    if (kind == PartKind::kCalls && value) {
      for (Json& call : calls_of(*value, name)) calls.push_back(std::move(call));
      continue;
    }
    if (!value || !value->is_string()) {
      columns_.fail(
          fmt::format("{}.content has a part that is not text; images and other media are not trained in "
                      "this version",
                      name),
          R"(keep only parts of the form {"type": "text", "text": …}, and of the types reasoning and tool_call)");
    }
    std::optional<std::string>& joined = kind == PartKind::kThoughts ? thoughts : text;
    joined = joined.value_or("") + value->get_ref<const std::string&>();
  }
  const auto put = [&](const char* key, Json value) {
    refuse_second(message, key, name);
    message[key] = std::move(value);
  };
  message["content"] = text ? Json(std::move(*text)) : thoughts || !calls.empty() ? Json() : Json("");
  if (thoughts) put("reasoning_content", std::move(*thoughts));
  if (!calls.empty()) put("tool_calls", std::move(calls));
}

/// Removes the key `train_detail` from the message and parses it.
std::vector<TrainDetail> MessageReader::details_of(Json& message, const std::string& name) const {
  const auto found = message.find("train_detail");
  if (found == message.end()) return {};
  const Json detail = std::move(*found);
  message.erase("train_detail");
  if (detail.is_null()) return {};
  const auto content = message.find("content");
  const bool has_text = content != message.end() && content->is_string();
  return train_detail_of(detail, has_text ? content->get<std::string>() : "", columns_, name + ".train_detail");
}

std::optional<float> MessageReader::weight_of(const Json& message, const std::string& name) const {
  std::optional<float> weight;
  for (auto key : kWeightKeys) {
    const auto found = message.find(key);
    if (found == message.end() || found->is_null()) continue;
    const float factor = loss_factor(*found, columns_, fmt::format("{}.{}", name, key));
    if (weight && *weight != factor) {
      columns_.fail(fmt::format("{} has two different loss weights", name),
                    fmt::format("keep one of {}", fmt::join(kWeightKeys, ", ")));
    }
    weight = factor;
  }
  return weight;
}

}  // namespace hone
