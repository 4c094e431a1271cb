#include "text/call_reader.h"

#include <algorithm>
#include <optional>

#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {
namespace {

constexpr std::string_view kWhite = " \t\r\n";
constexpr size_t kLongestName = 256, kLongestHeader = 1024, kDeepest = 64;

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

const Json& member(const Json& json, const char* name) {
  static const Json none;
  return json.is_object() && json.contains(name) ? json[name] : none;
}

/// What a tool says of itself, with and without OpenAI's wrapper; null for none of this name.
const Json& function_named(const Json& tools, const std::string& name) {
  static const Json none;
  for (const Json& tool : tools.is_array() ? tools : none) {
    const Json& inner = member(tool, "function");
    const Json& function = inner.is_object() ? inner : tool;
    if (member(function, "name") == name) return function;
  }
  return none;
}

/// Whether a schema's own "type" is this one, or one of several that it lists.
bool has_type(const Json& schema, const char* type) {
  const Json& own = member(schema, "type");
  return own == type || (own.is_array() && std::find(own.begin(), own.end(), type) != own.end());
}

/// The same of a schema or of one of its choices, no deeper: schemas are the client's.
bool allows(const Json& schema, const char* type) {
  if (has_type(schema, type)) return true;
  for (const char* choice : {"anyOf", "oneOf"}) {
    const Json& choices = member(schema, choice);
    const auto is_type = [type](const Json& one) { return has_type(one, type); };
    if (choices.is_array() && std::any_of(choices.begin(), choices.end(), is_type)) return true;
  }
  return false;
}

/// A value without quotes: JSON if the schema has its type, else text.
Json typed_value(std::string_view text, const Json& schema) {
  if (allows(schema, "boolean")) {  // Python's spelling, which templates write
    if (text == "True") return true;
    if (text == "False") return false;
  }
  if (schema.is_object()) {
    Json value = parse_json(text);
    const bool fits = (value.is_number() && (allows(schema, "integer") || allows(schema, "number"))) ||
                      (value.is_boolean() && allows(schema, "boolean")) ||
                      (value.is_object() && allows(schema, "object")) ||
                      (value.is_array() && allows(schema, "array")) || (value.is_null() && allows(schema, "null"));
    if (fits) return value;
  }
  return std::string(text);
}

/// JSON's form of a call; nothing for another value.
std::optional<ToolCall> call_of(const Json& json) {
  const Json& name = member(json, "name");
  if (!name.is_string() || name == "") return std::nullopt;
  const Json& first = member(json, "arguments");
  const Json& arguments = first.is_null() ? member(json, "parameters") : first;
  ToolCall call{.name = name.get<std::string>(), .arguments = "{}"};
  if (arguments.is_object()) {
    call.arguments = text_of(arguments);
  } else if (arguments.is_string()) {
    call.arguments = arguments.get<std::string>();
  } else if (!arguments.is_null()) {
    return std::nullopt;
  }
  const Json& id = member(json, "id");
  if (id.is_string()) call.id = id.get<std::string>();
  return call;
}

/// Reads along a text. What fails says whether more text may change that.
class CallReader {
 public:
  CallReader(const CallForm& form, std::string_view text, const Json& tools)
      : form_(form), text_(text), tools_(tools) {}

  ReadCalls read(bool last) {
    ReadCalls result;
    const bool section = !form_.section_begin.empty() && take(form_.section_begin);
    while (true) {
      if (section) skip_white();
      if (section && !result.calls.empty() && take(form_.section_end)) {
        result.size = at_;
        return result;
      }
      if (!read_call(result.calls)) break;
      result.size = at_;
      if (section) continue;
      if (form_.section_end.empty()) return result;
      skip_white();  // models leave a section's begin out, and write its end
      if (take(form_.section_end)) result.size = at_;
      return more_ && !last ? ReadCalls{.more = true} : result;
    }
    if (more_ && !last) return {.more = true};
    if (result.calls.empty()) result.size = more_ ? text_.size() : std::max<size_t>(at_, 1);
    return result;
  }

  /// JSON from the first bracket to the one that closes it.
  std::optional<Json> json() {
    skip_white();
    if (at_ == text_.size()) return more();
    if (text_[at_] != '{' && text_[at_] != '[') return broken();
    const size_t begin = at_;
    size_t depth = 0;
    bool quoted = false;
    for (size_t i = at_; i < text_.size(); ++i) {
      const char c = text_[i];
      if (quoted) {
        if (c == '\\') ++i;
        if (c == '"') quoted = false;
      } else if (c == '"') {
        quoted = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if ((c == '}' || c == ']') && --depth == 0) {
        at_ = i + 1;
        Json value = parse_json(text_.substr(begin, at_ - begin));
        if (value.is_discarded()) return broken();
        return value;
      }
    }
    return more();
  }

 private:
  std::nullopt_t more() {
    more_ = true;
    return std::nullopt;
  }
  std::nullopt_t broken() {
    more_ = false;
    return std::nullopt;
  }

  void skip_white() { at_ = std::min(text_.find_first_not_of(kWhite, at_), text_.size()); }

  bool take(std::string_view mark) {
    const std::string_view rest = text_.substr(at_);
    if (!rest.starts_with(mark)) {
      more_ |= mark.starts_with(rest);
      return false;
    }
    at_ += mark.size();
    more_ = false;
    return true;
  }

  std::optional<std::string> until(std::string_view mark) {
    const size_t end = text_.find(mark, at_);
    if (end == std::string_view::npos) return more();
    const std::string_view found = text_.substr(at_, end - at_);
    at_ = end + mark.size();
    more_ = false;
    return std::string(found);
  }

  /// A name: no white space and no character that marks begin with.
  std::optional<std::string> word() {
    skip_white();
    const size_t end = text_.find_first_of(" \t\r\n<>{}[]\"`", at_);
    const std::string_view found = text_.substr(at_, end == std::string_view::npos ? end : end - at_);
    if (found.size() > kLongestName || (found.empty() && end != std::string_view::npos)) return broken();
    if (end == std::string_view::npos) return more();
    at_ = end;
    more_ = false;
    return std::string(found);
  }

  bool read_call(std::vector<ToolCall>& calls) {
    if (form_.begin.empty()) return read_answer(calls);
    if (!take(form_.begin)) return false;
    if (form_.body == CallBody::kJson) {
      std::vector<ToolCall> found;
      if (!read_json(found) || !read_end()) return false;
      std::move(found.begin(), found.end(), std::back_inserter(calls));
      return true;
    }
    ToolCall call;
    if (!read_name(call)) return false;
    std::optional<Json> arguments;
    if (form_.body == CallBody::kArguments) arguments = json();
    if (form_.body == CallBody::kBraces) arguments = braces(0);
    if (form_.body == CallBody::kPairs) {
      arguments = pairs(call.name);
    } else if (arguments && !read_end()) {
      return false;
    }
    if (!arguments) return false;
    if (!arguments->is_object()) return broken(), false;
    call.arguments = text_of(*arguments);
    calls.push_back(std::move(call));
    return true;
  }

  bool read_json(std::vector<ToolCall>& calls) {
    const std::optional<Json> value = json();
    if (!value) return false;
    for (const Json& one : value->is_array() ? *value : Json::array({*value})) {
      std::optional<ToolCall> call = call_of(one);
      if (!call) return broken(), false;
      calls.push_back(std::move(*call));
    }
    return !calls.empty() || (broken(), false);
  }

  /// An answer that is a call and nothing else. Its end is known when no text follows.
  bool read_answer(std::vector<ToolCall>& calls) {
    std::vector<ToolCall> found;
    if (!read_json(found)) return false;
    const bool known = std::all_of(found.begin(), found.end(), [this](const ToolCall& call) {
      return !function_named(tools_, call.name).is_null();
    });
    skip_white();
    if (!known || at_ < text_.size()) return broken(), false;
    calls = std::move(found);
    return true;
  }

  bool read_end() {
    if (form_.end.empty()) return true;  // white space that follows is not the call's
    skip_white();
    return take(form_.end);
  }

  bool read_name(ToolCall& call) {
    if (form_.id == CallId::kBeforeName) {
      std::optional<std::string> id = word();
      if (!id || !take(form_.id_mark)) return false;
      call.id = std::move(*id);
    }
    std::optional<std::string> name = word();
    if (!name) return false;
    call.name = std::move(*name);
    if (form_.id == CallId::kAfterName && take(form_.id_mark)) {
      std::optional<std::string> id = word();
      if (!id) return false;
      call.id = std::move(*id);
    }
    if (form_.id == CallId::kIsName) {
      call.id = call.name;
      constexpr std::string_view kSpace = "functions.";
      if (call.name.starts_with(kSpace)) call.name.erase(0, kSpace.size());
      const size_t before_index = call.name.find_last_not_of("0123456789");
      if (before_index != std::string::npos && call.name[before_index] == ':') call.name.resize(before_index);
      if (call.name.empty()) return broken(), false;
    }
    if (form_.name_end.empty()) return true;
    if (!form_.name_end.starts_with('>')) skip_white();
    return take(form_.name_end);
  }

  std::optional<Json> pairs(const std::string& name) {
    const Json& properties = member(member(function_named(tools_, name), "parameters"), "properties");
    Json result = Json::object();
    while (true) {
      skip_white();
      if (take(form_.end)) return result;
      if (!take(form_.key_begin)) return std::nullopt;
      const std::optional<std::string> key = until(form_.key_end);
      if (!key) return std::nullopt;
      if (key->empty() || key->size() > kLongestName) return broken();
      if (!form_.value_begin.empty()) {
        skip_white();
        if (!take(form_.value_begin)) return std::nullopt;
      }
      const std::optional<std::string> value = until(form_.value_end);
      if (!value) return std::nullopt;
      std::string_view text = *value;
      if (form_.lines && text.starts_with('\n')) text.remove_prefix(1);
      if (form_.lines && text.ends_with('\n')) text.remove_suffix(1);
      result[*key] = typed_value(text, member(properties, key->c_str()));
    }
  }

  std::optional<Json> braces(size_t depth) {
    if (depth > kDeepest) return broken();
    Json result = Json::object();
    if (!take("{")) return std::nullopt;
    while (true) {
      skip_white();
      if (take("}")) return result;
      if (!result.empty()) {
        if (!take(",")) return std::nullopt;
        skip_white();
      }
      std::optional<std::string> key = quoted();
      if (!key && !more_) key = bare(":,{}[]<");
      if (!key || !take(":")) return std::nullopt;
      if (key->empty() || key->size() > kLongestName) return broken();
      std::optional<Json> value = braced_value(depth);
      if (!value) return std::nullopt;
      result[*key] = std::move(*value);
    }
  }

  std::optional<Json> braced_list(size_t depth) {
    if (depth > kDeepest) return broken();
    Json result = Json::array();
    if (!take("[")) return std::nullopt;
    while (true) {
      skip_white();
      if (take("]")) return result;
      if (!result.empty() && !take(",")) return std::nullopt;
      std::optional<Json> value = braced_value(depth);
      if (!value) return std::nullopt;
      result.push_back(std::move(*value));
    }
  }

  std::optional<Json> braced_value(size_t depth) {
    skip_white();
    if (at_ == text_.size()) return more();
    if (text_[at_] == '{') return braces(depth + 1);
    if (text_[at_] == '[') return braced_list(depth + 1);
    if (const std::optional<std::string> text = quoted()) return Json(*text);
    if (more_) return std::nullopt;
    const std::optional<std::string> word = bare(",}]<");
    if (!word) return std::nullopt;
    if (*word == "None") return Json(nullptr);
    Json value = parse_json(*word);
    if (value.is_discarded() || value.is_string()) return broken();
    return value;
  }

  /// A text of kBraces.
  std::optional<std::string> quoted() {
    if (!take(form_.value_begin)) return std::nullopt;
    return until(form_.value_end);
  }
  /// Up to the first of these characters, which is not taken.
  std::optional<std::string> bare(const char* ends) {
    const size_t end = text_.find_first_of(ends, at_);
    if (end == std::string_view::npos) return more();
    const std::string_view found = text_.substr(at_, end - at_);
    at_ = end;
    more_ = false;
    return std::string(found);
  }

  const CallForm& form_;
  const std::string_view text_;
  const Json& tools_;
  size_t at_ = 0;
  bool more_ = false;  // what failed last may hold with more text
};

}  // namespace

ReadCalls read_calls(const CallForm& form, std::string_view text, bool last, const Json& tools) {
  if (form.begin.empty() && !last) {  // a whole answer
    ReadCalls read = CallReader(form, text, tools).read(false);
    return read.calls.empty() ? read : ReadCalls{.more = true};
  }
  return CallReader(form, text, tools).read(last);
}

ReadMessage read_message(const CallForm& form, std::string_view text, bool last, bool calls) {
  const auto may_begin = [](std::string_view rest, std::string_view mark) {
    return rest.starts_with(mark) || mark.starts_with(rest);
  };
  size_t begin = 0;
  if (text.starts_with(form.section_begin)) {
    begin = form.section_begin.size();
  } else if (!last && form.section_begin.starts_with(text)) {
    return {.more = true};
  }
  const std::string_view rest = text.substr(begin);
  if (!may_begin(rest, form.begin) && !may_begin(rest, " to=")) return {};
  const size_t end = std::min(rest.find(form.name_end), kLongestHeader);
  if (end >= rest.size() || end == kLongestHeader) return {.more = !last && rest.size() <= kLongestHeader};
  const std::string_view header = rest.substr(0, end);
  const size_t body = begin + end + form.name_end.size();
  const size_t channel = header.find(form.begin);
  if (channel == std::string_view::npos) return {};
  if (header.find("to=") == std::string_view::npos) {
    return {.size = body, .thinks = header.substr(channel + form.begin.size()).starts_with("analysis")};
  }
  const size_t name = header.find(form.name_begin);
  if (!calls || name == std::string_view::npos) return {};
  const std::string_view called = header.substr(name + form.name_begin.size());
  ToolCall call{.name = std::string(called.substr(0, called.find_first_of(" \t\r\n<"))), .arguments = {}};
  if (call.name.empty()) return {};
  const size_t ended = text.find(form.end, body), closed = text.find(form.section_end, body);
  const size_t stop = std::min({ended, closed, text.size()});
  if (stop == text.size() && !last) return {.more = true};
  const Json arguments = parse_json(text.substr(body, stop - body));
  if (!arguments.is_object()) return {};
  call.arguments = text_of(arguments);
  const size_t mark = stop == text.size() ? 0 : stop == ended ? form.end.size() : form.section_end.size();
  return {.size = stop + mark, .calls = {std::move(call)}};
}

}  // namespace hone
