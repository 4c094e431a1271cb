#include "app/serve/openai.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {

ApiError::ApiError(int status, std::string message, std::string param, std::string code)
    : status_(status), message_(std::move(message)), param_(std::move(param)), code_(std::move(code)) {}

JsonValue ApiError::json() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  return Json{{"error",
               {{"message", message_},
                {"type", status_ == 401   ? "authentication_error"
                         : status_ < 500  ? "invalid_request_error"
                         : status_ == 503 ? "overloaded_error"
                                          : "server_error"},
                {"param", or_null(param_)},
                {"code", or_null(code_)}}}};
}

std::string line_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

namespace {

constexpr int kMostAnswers = 128, kMostLikely = 20, kMostPrompts = 256;
constexpr size_t kMostStops = 16, kLongestStop = 1024;

[[noreturn]] void fail(const std::string& field, const std::string& expected) {
  throw ApiError(400, fmt::format("{} must be {}", field, expected), field);
}

bool truth(const Json& value, const std::string& field) {
  if (!value.is_boolean()) fail(field, "true or false");
  return value.get<bool>();
}

template <class Int>
Int whole(const Json& value, const std::string& field, Int least, Int most) {
  const std::optional<Int> number = whole_number<Int>(value);
  if (!number || *number < least || *number > most)
    fail(field, fmt::format("a whole number from {} to {}", least, most));
  return *number;
}

double real(const Json& value, const std::string& field) {
  if (!value.is_number()) fail(field, "a number");
  return value.get<double>();
}

std::string text(const Json& value, const std::string& field) {
  if (!value.is_string()) fail(field, "a text");
  return value.get<std::string>();
}

std::vector<int32_t> ids(const Json& value, const std::string& field) {
  if (!value.is_array() || value.empty()) fail(field, "a list of token ids");
  std::vector<int32_t> result;
  for (const Json& id : value) result.push_back(whole<int32_t>(id, field, 0, INT32_MAX));
  return result;
}

std::vector<std::string> stops(const Json& value) {
  std::vector<std::string> result;
  if (value.is_string()) result.push_back(value.get<std::string>());
  if (!value.is_string() && !value.is_array()) fail("stop", "a text or a list of texts");
  for (const Json& stop : value.is_array() ? value : Json::array()) result.push_back(text(stop, "stop"));
  for (const std::string& stop : result) {
    if (stop.empty() || stop.size() > kLongestStop) fail("stop", fmt::format("texts of 1 to {} bytes", kLongestStop));
  }
  if (result.size() > kMostStops) fail("stop", fmt::format("at most {} texts", kMostStops));
  return result;
}

std::vector<ApiPrompt> prompts_of(const Json& value) {
  constexpr const char* kExpected = "a text, a list of token ids, or a list of these";
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array() || value.empty() || value.size() > kMostPrompts * 1024) fail("prompt", kExpected);
  if (value.front().is_number()) return {ids(value, "prompt")};
  if (value.size() > kMostPrompts) fail("prompt", fmt::format("at most {} prompts", kMostPrompts));
  std::vector<ApiPrompt> prompts;
  for (const Json& prompt : value) {
    if (prompt.is_string()) {
      prompts.emplace_back(prompt.get<std::string>());
    } else {
      prompts.emplace_back(ids(prompt, "prompt"));
    }
  }
  return prompts;
}

/// Reads a field that is there and not null.
using ReadField = std::function<void(ApiRequest&, const Json&)>;

/// A field that may only have the value that changes nothing.
ReadField only(const char* name, std::vector<Json> neutral, const char* way_out) {
  return [name, neutral = std::move(neutral), way_out](ApiRequest&, const Json& value) {
    if (std::find(neutral.begin(), neutral.end(), value) != neutral.end()) return;
    throw ApiError(400, fmt::format("{} {} is not in this version: {}", name, line_of(value), way_out), name);
  };
}

void nothing(ApiRequest&, const Json&) {}

/// The fields that both forms have.
std::map<std::string, ReadField, std::less<>> common_fields() {
  std::map<std::string, ReadField, std::less<>> fields;
  // One line a field: its name, and what it sets.
  fields["model"] = [](ApiRequest& r, const Json& v) { r.model = text(v, "model"); };
  fields["max_tokens"] = [](ApiRequest& r, const Json& v) {
    r.sampling.max_new_tokens = whole<int64_t>(v, "max_tokens", 1, INT32_MAX);
  };
  fields["temperature"] = [](ApiRequest& r, const Json& v) {
    r.sampling.temperature = real(v, "temperature");
    r.sampling.do_sample = *r.sampling.temperature != 0;
  };
  fields["top_p"] = [](ApiRequest& r, const Json& v) { r.sampling.top_p = real(v, "top_p"); };
  fields["top_k"] = [](ApiRequest& r, const Json& v) {
    r.sampling.top_k = std::max<int64_t>(0, whole<int64_t>(v, "top_k", -1, INT32_MAX));  // -1: all, as elsewhere
  };
  fields["repetition_penalty"] = [](ApiRequest& r, const Json& v) {
    r.sampling.repetition_penalty = real(v, "repetition_penalty");
  };
  fields["seed"] = [](ApiRequest& r, const Json& v) {
    r.sampling.seed = static_cast<uint64_t>(whole<int64_t>(v, "seed", INT64_MIN, INT64_MAX));
  };
  fields["stop"] = [](ApiRequest& r, const Json& v) { r.stop = stops(v); };
  fields["stop_token_ids"] = [](ApiRequest& r, const Json& v) {
    if (!v.is_array() || !v.empty()) r.stop_ids = ids(v, "stop_token_ids");
  };
  fields["ignore_eos"] = [](ApiRequest& r, const Json& v) { r.ignores_eos = truth(v, "ignore_eos"); };
  fields["n"] = [](ApiRequest& r, const Json& v) { r.count = whole(v, "n", 1, kMostAnswers); };
  fields["stream"] = [](ApiRequest& r, const Json& v) { r.stream = truth(v, "stream"); };
  fields["stream_options"] = [](ApiRequest& r, const Json& v) {
    if (!v.is_object()) fail("stream_options", "an object");
    for (const auto& [key, value] : v.items()) {
      if (key == "include_usage") {
        r.tells_usage = truth(value, "stream_options.include_usage");
      } else if (key != "include_obfuscation" && key != "continuous_usage_stats") {
        throw ApiError(400, fmt::format("stream_options.{} is not known", key), "stream_options");
      }
    }
  };
  fields["presence_penalty"] = only("presence_penalty", {0, 0.0}, "repetition_penalty is");
  fields["frequency_penalty"] = only("frequency_penalty", {0, 0.0}, "repetition_penalty is");
  fields["min_p"] = only("min_p", {0, 0.0}, "top_p and top_k are");
  fields["logit_bias"] = only("logit_bias", {Json::object()}, "leave it out");
  fields["response_format"] =
      only("response_format", {Json{{"type", "text"}}}, "ask for the form in the message, and check the answer");
  for (const char* name : {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                           "skip_special_tokens", "spaces_between_special_tokens"}) {
    fields[name] = nothing;
  }
  return fields;
}

std::map<std::string, ReadField, std::less<>> chat_fields() {
  auto fields = common_fields();
  fields["messages"] = [](ApiRequest& r, const Json& v) {
    if (!v.is_array() || v.empty()) fail("messages", "a list of messages");
    r.messages = v;
  };
  fields["max_completion_tokens"] = fields["max_tokens"];
  fields["tools"] = [](ApiRequest& r, const Json& v) {
    if (!v.is_array()) fail("tools", "a list of tools");
    r.tools = v;
  };
  fields["tool_choice"] = [](ApiRequest& r, const Json& v) {
    if (v == "none") r.tools = JsonValue(nullptr);
    if (v != "none" && v != "auto") {
      throw ApiError(400, fmt::format("tool_choice {} is not in this version: use auto or none", line_of(v)),
                     "tool_choice");
    }
  };
  fields["chat_template_kwargs"] = [](ApiRequest& r, const Json& v) {
    if (!v.is_object()) fail("chat_template_kwargs", "an object");
    r.template_kwargs->update(v);
  };
  fields["reasoning_effort"] = [](ApiRequest& r, const Json& v) {
    (*r.template_kwargs)["reasoning_effort"] = text(v, "reasoning_effort");
  };
  fields["logprobs"] = [](ApiRequest& r, const Json& v) {
    if (truth(v, "logprobs")) r.likely = r.likely.value_or(0);
  };
  fields["top_logprobs"] = [](ApiRequest& r, const Json& v) {
    const int count = whole(v, "top_logprobs", 0, kMostLikely);
    if (count > 0) r.likely = count;
  };
  fields["modalities"] = only("modalities", {Json::array({"text"})}, "answers are texts");
  fields["parallel_tool_calls"] = only("parallel_tool_calls", {true}, "the model decides how many calls it makes");
  return fields;
}

std::map<std::string, ReadField, std::less<>> text_fields() {
  auto fields = common_fields();
  fields["prompt"] = [](ApiRequest& r, const Json& v) { r.prompts = prompts_of(v); };
  fields["logprobs"] = [](ApiRequest& r, const Json& v) { r.likely = whole(v, "logprobs", 0, kMostLikely); };
  fields["echo"] = only("echo", {false}, "put the prompt before the answer yourself");
  fields["best_of"] = only("best_of", {1}, "use n");
  fields["suffix"] = only("suffix", {""}, "write the prompt in the form that the model has for it");
  return fields;
}

}  // namespace

ApiRequest read_request(ApiForm form, std::string_view body) {
  static const auto of_chats = chat_fields(), of_texts = text_fields();
  const auto& fields = form == ApiForm::kChat ? of_chats : of_texts;
  const Json json = parse_json(body);
  if (!json.is_object()) throw ApiError(400, "the body is not a JSON object");
  ApiRequest request;
  request.form = form;
  // tool_choice takes tools away, so it comes last.
  const auto read = [&](const std::string& name, const Json& value) {
    const auto field = fields.find(name);
    if (field == fields.end()) {
      std::vector<std::string> known;
      for (const auto& [key, unused] : fields) known.push_back(key);
      throw ApiError(400, fmt::format("{} is not known.{}", name, did_you_mean(name, known)), name);
    }
    if (!value.is_null()) field->second(request, value);
  };
  for (const auto& [name, value] : json.items()) {
    if (name != "tool_choice") read(name, value);
  }
  if (json.contains("tool_choice")) read("tool_choice", json["tool_choice"]);
  if (form == ApiForm::kChat && request.likely && json.value("logprobs", Json(nullptr)) != Json(true)) {
    throw ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs");
  }
  if (form == ApiForm::kChat && request.messages.empty()) fail("messages", "a list of messages");
  if (form == ApiForm::kText && request.prompts.empty()) fail("prompt", "a text or token ids");
  return request;
}

namespace {

Json bytes_of(const std::string& bytes) {
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return list;
}

Json shown(const ShownToken& token) {
  return {{"token", token.text}, {"logprob", token.value}, {"bytes", bytes_of(token.bytes)}};
}

Json likely_of(const ApiAnswer& answer, const ApiChoice& choice) {
  if (!answer.tells_likely) return nullptr;
  if (answer.form == ApiForm::kChat) {
    Json content = Json::array();
    for (const ShownChoice& token : choice.tokens) {
      Json entry = shown(token.chosen);
      entry["top_logprobs"] = Json::array();
      for (const ShownToken& other : token.likely) entry["top_logprobs"].push_back(shown(other));
      content.push_back(std::move(entry));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }
  Json tokens = Json::array(), values = Json::array(), likely = Json::array(), offsets = Json::array();
  size_t offset = choice.text_offset;
  for (const ShownChoice& token : choice.tokens) {
    tokens.push_back(token.chosen.text);
    values.push_back(token.chosen.value);
    Json others = Json::object();
    for (const ShownToken& other : token.likely) others[other.text] = other.value;
    likely.push_back(std::move(others));
    offsets.push_back(offset);
    offset += token.chosen.text.size();
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(likely)},
          {"text_offset", std::move(offsets)}};
}

Json calls_of(const ApiAnswer& answer, const ApiChoice& choice, bool indexed) {
  Json calls = Json::array();
  for (size_t i = 0; i < choice.piece.calls.size(); ++i) {
    const ToolCall& call = choice.piece.calls[i];
    const size_t number = choice.calls_before + i;
    Json entry = Json::object();
    if (indexed) entry["index"] = number;
    // An id that the model has written is what its template writes again.
    entry["id"] = call.id.empty()
                      ? fmt::format("call_{}_{}_{}", answer.id.substr(answer.id.find('-') + 1), choice.index, number)
                      : call.id;
    entry["type"] = "function";
    entry["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    calls.push_back(std::move(entry));
  }
  return calls;
}

Json finish_of(const ApiChoice& choice) { return choice.finish ? Json(*choice.finish) : Json(nullptr); }

Json usage_of(const ApiUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Json object_of(const ApiAnswer& answer, const char* kind) {
  return {{"id", answer.id}, {"object", kind}, {"created", answer.created}, {"model", answer.model}};
}

const char* chunk_kind(const ApiAnswer& answer) {
  return answer.form == ApiForm::kChat ? "chat.completion.chunk" : "text_completion";
}

}  // namespace

JsonValue whole_answer(const ApiAnswer& answer, std::span<const ApiChoice> choices, const ApiUsage& usage) {
  const bool chat = answer.form == ApiForm::kChat;
  Json object = object_of(answer, chat ? "chat.completion" : "text_completion");
  Json list = Json::array();
  for (const ApiChoice& choice : choices) {
    Json entry = {{"index", choice.index}};
    if (chat) {
      const AnswerPiece& piece = choice.piece;
      const bool only_calls = piece.content.empty() && !piece.calls.empty();
      Json message = {{"role", "assistant"}, {"content", only_calls ? Json(nullptr) : Json(piece.content)}};
      if (!piece.reasoning.empty()) message["reasoning_content"] = piece.reasoning;
      if (!piece.calls.empty()) message["tool_calls"] = calls_of(answer, choice, false);
      entry["message"] = std::move(message);
    } else {
      entry["text"] = choice.piece.content;
    }
    entry["logprobs"] = likely_of(answer, choice);
    entry["finish_reason"] = finish_of(choice);
    list.push_back(std::move(entry));
  }
  object["choices"] = std::move(list);
  object["usage"] = usage_of(usage);
  return object;
}

JsonValue chunk(const ApiAnswer& answer, const ApiChoice& choice, bool first) {
  Json entry = {{"index", choice.index}};
  if (answer.form == ApiForm::kChat) {
    Json delta = Json::object();
    if (first) delta["role"] = "assistant";
    if (first || !choice.piece.content.empty()) delta["content"] = choice.piece.content;
    if (!choice.piece.reasoning.empty()) delta["reasoning_content"] = choice.piece.reasoning;
    if (!choice.piece.calls.empty()) delta["tool_calls"] = calls_of(answer, choice, true);
    entry["delta"] = std::move(delta);
  } else {
    entry["text"] = choice.piece.content;
  }
  entry["logprobs"] = likely_of(answer, choice);
  entry["finish_reason"] = finish_of(choice);
  Json object = object_of(answer, chunk_kind(answer));
  object["choices"] = Json::array({std::move(entry)});
  return object;
}

JsonValue usage_chunk(const ApiAnswer& answer, const ApiUsage& usage) {
  Json object = object_of(answer, chunk_kind(answer));
  object["choices"] = Json::array();
  object["usage"] = usage_of(usage);
  return object;
}

JsonValue model_list(std::span<const std::string> names, int64_t created) {
  Json data = Json::array();
  for (const std::string& name : names) {
    data.push_back({{"id", name}, {"object", "model"}, {"created", created}, {"owned_by", "hone"}});
  }
  return Json{{"object", "list"}, {"data", std::move(data)}};
}

}  // namespace hone
