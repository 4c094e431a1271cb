#include "text/jinja/python_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/characters.h"

namespace hone::jinja {

namespace {

std::string scalar_text(const Value& value) {
  if (value.is_none()) return "None";
  if (const bool* b = value.get<bool>()) return *b ? "True" : "False";
  if (const int64_t* i = value.get<int64_t>()) return std::to_string(*i);
  if (const double* d = value.get<double>()) return float_text(*d);
  if (value.as_namespace()) return "<Namespace>";
  if (const Loop* loop = value.as_loop())
    return fmt::format("<LoopContext {}/{}>", loop->index + 1, loop->items->items.size());
  if (const Callable* function = value.as_callable()) return fmt::format("<function {}>", function->name);
  return "Undefined";
}

/// Copies `text` to `result`; `escape(code)` gives what stands for a character, or "" for the character itself.
template <class Escape>
void append_escaped(MarkedString& result, const MarkedString& text, Escape escape) {
  size_t copied = 0;
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text.view(), at);
    const std::string escaped = escape(c.code);
    if (!escaped.empty()) {
      result.append_part(text, copied, at);
      result.append_standing_for(escaped, text, at);
      copied = at + c.size;
    }
    at += c.size;
  }
  result.append_part(text, copied, text.size());
}

void append_string_repr(MarkedString& result, const MarkedString& text, SourceId source) {
  const bool has_single = text.text().find('\'') != std::string::npos;
  const bool has_double = text.text().find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  const std::string_view quotes(&quote, 1);
  result.append_text(quotes, source);
  append_escaped(result, text, [quote](char32_t c) -> std::string {
    if (c == static_cast<char32_t>(quote) || c == '\\') return fmt::format("\\{}", static_cast<char>(c));
    if (c == '\n') return "\\n";
    if (c == '\r') return "\\r";
    if (c == '\t') return "\\t";
    if (is_printable(c)) return {};
    if (c < 0x100) return fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    if (c < 0x10000) return fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    return fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
  });
  result.append_text(quotes, source);
}

void append_repr(MarkedString& result, const Value& value);

void append_list_repr(MarkedString& result, const List& list, SourceId source) {
  if (list.type == List::Type::kGenerator) return result.append_text("<generator object>", source);
  if (list.type == List::Type::kRange) {
    const auto& items = list.items;
    const int64_t first = items.empty() ? 0 : items.front().as_int();
    const int64_t step = items.size() > 1 ? items[1].as_int() - first : 1;
    return result.append_text(step == 1 ? fmt::format("range({}, {})", first, list.stop)
                                        : fmt::format("range({}, {}, {})", first, list.stop, step));
  }
  const bool is_tuple = list.type == List::Type::kTuple;
  const bool is_view = !is_tuple && list.type != List::Type::kList;
  if (is_view) result.append_text(fmt::format("{}(", type_name(list.type)), source);
  result.append_text(is_tuple ? "(" : "[", source);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i) result.append_text(", ", source);
    append_repr(result, list.items[i]);
  }
  if (is_tuple && list.items.size() == 1) result.append_text(",", source);
  result.append_text(is_tuple ? ")" : "]", source);
  if (is_view) result.append_text(")", source);
}

void append_repr(MarkedString& result, const Value& value) {
  if (const MarkedString* text = value.as_string()) return append_string_repr(result, *text, value.source());
  if (const List* list = value.as_list()) return append_list_repr(result, *list, value.source());
  const Dict* dict = value.as_dict();
  if (!dict) return result.append_text(scalar_text(value), value.source());
  result.append_text("{", value.source());
  for (size_t i = 0; i < dict->entries.size(); ++i) {
    if (i) result.append_text(", ", value.source());
    append_repr(result, dict->entries[i].first);
    result.append_text(": ", value.source());
    append_repr(result, dict->entries[i].second);
  }
  result.append_text("}", value.source());
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  MarkedString write(const Value& value) {
    append(value, 0);
    return std::move(result_);
  }

 private:
  void append(const Value& value, int level) {
    const SourceId source = value.source();
    if (const MarkedString* text = value.as_string()) return append_string(*text, source);
    if (const Dict* dict = value.as_dict()) return append_dict(*dict, source, level);
    const List* list = value.as_list();
    if (list && (list->type == List::Type::kList || list->type == List::Type::kTuple)) {
      return append_list(*list, source, level);
    }
    if (value.is_none()) return result_.append_text("null", source);
    if (const bool* b = value.get<bool>()) return result_.append_text(*b ? "true" : "false", source);
    if (const double* d = value.get<double>()) return result_.append_text(number(*d), source);
    if (value.is_integral()) return result_.append_text(scalar_text(value), source);
    if (value.is_undefined()) fail_undefined(value);
    throw TemplateError(fmt::format("tojson: a {} has no JSON form", type_name(value)));
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_text(value);
  }

  void append_string(const MarkedString& text, SourceId source) {
    result_.append_text("\"", source);
    append_escaped(result_, text, [this](char32_t c) { return escape(c); });
    result_.append_text("\"", source);
  }

  std::string escape(char32_t c) const {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
      default:
        break;
    }
    const auto unit = [](uint32_t u) { return fmt::format("\\u{:04x}", u); };
    if (c < 0x20) return unit(c);
    if (!style_.ensure_ascii || c < 0x7F) return {};
    if (c < 0x10000) return unit(c);
    return unit(0xD800 + ((c - 0x10000) >> 10)) + unit(0xDC00 + ((c - 0x10000) & 0x3FF));
  }

  void new_line(int level, SourceId source) {
    if (!style_.indent) return;
    result_.append_text("\n", source);
    for (int i = 0; i < level; ++i) result_.append_text(*style_.indent, source);
  }

  void append_list(const List& list, SourceId source, int level) {
    result_.append_text("[", source);
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i) result_.append_text(style_.item_separator, source);
      new_line(level + 1, source);
      append(list.items[i], level + 1);
    }
    if (!list.items.empty()) new_line(level, source);
    result_.append_text("]", source);
  }

  void append_key(const Value& key) {
    if (const MarkedString* text = key.as_string()) return append_string(*text, key.source());
    if (!key.is_none() && !key.is_number()) {
      throw TemplateError(fmt::format("tojson: a {} cannot be a key", type_name(key)));
    }
    result_.append_text("\"", key.source());
    append(key, 0);
    result_.append_text("\"", key.source());
  }

  void append_dict(const Dict& dict, SourceId source, int level) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [](auto* a, auto* b) { return less_than(a->first, b->first); });
    }
    result_.append_text("{", source);
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i) result_.append_text(style_.item_separator, source);
      new_line(level + 1, source);
      append_key(entries[i]->first);
      result_.append_text(style_.key_separator, source);
      append(entries[i]->second, level + 1);
    }
    if (!entries.empty()) new_line(level, source);
    result_.append_text("}", source);
  }

  const JsonStyle& style_;
  MarkedString result_;
};

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view scientific(buffer, static_cast<size_t>(end - buffer));
  const int exponent = std::atoi(std::string(scientific.substr(scientific.find('e') + 1)).c_str());
  constexpr int kFirstExponentForm = 16;
  if (exponent < -4 || exponent >= kFirstExponentForm) return std::string(scientific);
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string text(buffer, fixed_end);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

MarkedString str_text(const Value& value) {
  if (const MarkedString* text = value.as_string()) return *text;
  if (value.is_undefined()) return {};
  return repr_text(value);
}

MarkedString repr_text(const Value& value) {
  MarkedString result;
  append_repr(result, value);
  return result;
}

MarkedString json_text(const Value& value, const JsonStyle& style) { return JsonWriter(style).write(value); }

}  // namespace hone::jinja
