#include "text/jinja/python_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/arithmetic.h"
#include "text/jinja/characters.h"
#include "text/jinja/interpreter.h"

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

/// Copies `text` to `result`; `escape(code)` returns the escape of a character, or "" for the character itself.
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
    for (const auto& entry : dict.entries) {
      if (!entry.second.is_blank()) entries.push_back(&entry);
    }
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
  if (value.is_undefined() || value.is_blank()) return {};
  if (value.is_json_text()) return json_text(value, {});
  return repr_text(value);
}

MarkedString repr_text(const Value& value) {
  MarkedString result;
  append_repr(result, value);
  return result;
}

MarkedString json_text(const Value& value, const JsonStyle& style) { return JsonWriter(style).write(value); }

namespace {

constexpr int64_t kMaxWidth = 10'000;

/// A format specification of {} fields, or its common part with % fields.
struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool alternate = false, grouped = false;
  int width = 0;
  int precision = -1;
  char type = '\0';
};

int digits_at(std::string_view text, size_t& at) {
  int64_t value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    value = value * 10 + (text[at] - '0');
    if (value > kMaxWidth) throw TemplateError("a width or precision in a format is too large");
  }
  return static_cast<int>(value);
}

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const size_t fill_size = text.empty() ? 0 : character_at(text, 0).size;
  if (fill_size < text.size() && is_align(text[fill_size])) {
    spec.fill = text.substr(0, fill_size);
    spec.align = text[fill_size];
    at = fill_size + 1;
  } else if (!text.empty() && is_align(text[0])) {
    spec.align = text[at++];
  }
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) spec.sign = text[at++];
  if (at < text.size() && text[at] == '#') spec.alternate = true, ++at;
  if (at < text.size() && text[at] == '0' && !spec.align) spec.fill.assign(1, '0'), spec.align = '=', ++at;
  spec.width = digits_at(text, at);
  if (at < text.size() && text[at] == ',') spec.grouped = true, ++at;
  if (at < text.size() && text[at] == '.') spec.precision = digits_at(text, ++at);
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) throw TemplateError(fmt::format("the format specification '{}' is not understood", text));
  return spec;
}

void group_thousands(std::string& digits) {
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t at = end; at > 3; at -= 3) digits.insert(at - 3, ",");
}

std::string integer_digits(uint64_t magnitude, const Spec& spec) {
  const std::string prefix = spec.alternate && spec.type != 'd' && spec.type ? std::string("0") + spec.type : "";
  switch (spec.type) {
    case 'x':
      return prefix + fmt::format("{:x}", magnitude);
    case 'X':
      return prefix + fmt::format("{:X}", magnitude);
    case 'o':
      return prefix + fmt::format("{:o}", magnitude);
    case 'b':
      return prefix + fmt::format("{:b}", magnitude);
    default:
      return std::to_string(magnitude);
  }
}

std::string real_digits(double magnitude, const Spec& spec) {
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  switch (spec.type) {
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", magnitude, precision);
    case 'e':
      return fmt::format("{:.{}e}", magnitude, precision);
    case 'E':
      return fmt::format("{:.{}E}", magnitude, precision);
    case 'g':
      return fmt::format("{:.{}g}", magnitude, precision);
    case 'G':
      return fmt::format("{:.{}G}", magnitude, precision);
    case '%':
      return fmt::format("{:.{}f}%", magnitude * 100, precision);
    default:
      return spec.precision < 0 ? float_text(magnitude) : fmt::format("{:.{}g}", magnitude, precision);
  }
}

bool is_integer_type(char type) { return std::string_view("dxXob").find(type) != std::string_view::npos; }

/// The sign and digits of a number, padded to the width.
std::string number_text(const Value& value, const Spec& spec) {
  const bool as_integer = value.is_integral() && (!spec.type || is_integer_type(spec.type));
  bool negative = false;
  std::string digits;
  if (as_integer) {
    const int64_t number = value.as_int();
    negative = number < 0;
    digits = integer_digits(negative ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number), spec);
    if (spec.precision > static_cast<int>(digits.size())) digits.insert(0, spec.precision - digits.size(), '0');
  } else {
    negative = std::signbit(value.as_double());
    digits = real_digits(std::fabs(value.as_double()), spec);
  }
  if (spec.grouped) group_thousands(digits);
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  const size_t size = sign.size() + digits.size();
  const size_t padding = static_cast<size_t>(spec.width) > size ? static_cast<size_t>(spec.width) - size : 0;
  std::string pad;
  for (size_t i = 0; i < padding; ++i) pad += spec.fill;
  if (spec.align == '<') return sign + digits + pad;
  if (spec.align == '=') return sign + pad + digits;
  if (spec.align != '^') return pad + sign + digits;
  const size_t before = padding / 2 * spec.fill.size();
  return pad.substr(0, before) + sign + digits + pad.substr(before);
}

void append_padded(MarkedString& result, const MarkedString& text, const Spec& spec, char default_align) {
  const size_t limit = spec.precision < 0 ? text.size() : byte_offset(text.view(), static_cast<size_t>(spec.precision));
  const size_t length = count_characters(text.view().substr(0, limit));
  const size_t padding = static_cast<size_t>(spec.width) > length ? static_cast<size_t>(spec.width) - length : 0;
  const char align = spec.align && spec.align != '=' ? spec.align : default_align;
  const size_t before = align == '<' ? 0 : align == '^' ? padding / 2 : padding;
  for (size_t i = 0; i < before; ++i) result.append_text(spec.fill);
  result.append_part(text, 0, limit);
  for (size_t i = before; i < padding; ++i) result.append_text(spec.fill);
}

class PercentFormatter {
 public:
  PercentFormatter(Interpreter& interpreter, const MarkedString& format, const Value& values)
      : interpreter_(interpreter), format_(format), values_(values) {
    const List* list = values.as_list();
    is_tuple_ = list && list->type == List::Type::kTuple;
  }

  MarkedString run() {
    const std::string& text = format_.text();
    size_t at = 0;
    while (at < text.size()) {
      const size_t percent = std::min(text.find('%', at), text.size());
      result_.append_part(format_, at, percent);
      at = percent;
      if (at < text.size()) field(++at);
    }
    // Python allows unused values if they have keys or indices.
    const bool has_items =
        values_.as_dict() || values_.is_undefined() || (values_.as_list() && values_.as_list()->indexable());
    const bool unused = is_tuple_ ? next_ < values_.as_list()->items.size() : next_ == 0 && !has_items;
    if (unused) throw TemplateError("not all arguments of '%' are used by the format");
    return std::move(result_);
  }

 private:
  const Value& next_value() {
    const size_t index = next_++;
    if (!is_tuple_ && index == 0) return values_;
    if (!is_tuple_ || index >= values_.as_list()->items.size()) {
      throw TemplateError("the format of '%' needs more arguments");
    }
    return values_.as_list()->items[index];
  }

  /// Formats one field; `at` is after the percent sign, and is moved to the end of the field.
  void field(size_t& at) {
    const std::string& text = format_.text();
    const Value* named = nullptr;
    if (at < text.size() && text[at] == '(') {
      const size_t end = text.find(')', at);
      if (end == std::string::npos) throw TemplateError("a '%(' in a format is never closed");
      const std::string name = text.substr(at + 1, end - at - 1);
      named = values_.as_dict() ? values_.as_dict()->find(std::string_view(name)) : nullptr;
      if (!named) throw TemplateError(fmt::format("the format needs the key '{}'", name));
      at = end + 1;
    }
    Spec spec;
    spec.align = '>';
    for (; at < text.size() && std::string_view("-+ #0").find(text[at]) != std::string_view::npos; ++at) {
      if (text[at] == '-') spec.align = '<', spec.fill.assign(1, ' ');
      if (text[at] == '+' || (text[at] == ' ' && spec.sign != '+')) spec.sign = text[at];
      if (text[at] == '#') spec.alternate = true;
      if (text[at] == '0' && spec.align != '<') spec.align = '=', spec.fill.assign(1, '0');
    }
    spec.width = digits_at(text, at);
    if (at < text.size() && text[at] == '.') spec.precision = digits_at(text, ++at);
    if (at >= text.size()) throw TemplateError("a '%' field in a format is incomplete");
    const char type = text[at++];
    if (type == '%') return result_.append_text("%");
    convert(named ? *named : next_value(), type, spec);
  }

  void convert(const Value& value, char type, Spec spec) {
    if (type == 's' || type == 'r') {
      if (spec.align == '=') spec.align = '>', spec.fill.assign(1, ' ');
      const MarkedString text = type == 's' ? interpreter_.text_of(value) : repr_text(value);
      return append_padded(result_, text, spec, '>');
    }
    if (type == 'c') type = 's';
    const bool integer = type == 'd' || type == 'i' || type == 'u' || type == 'x' || type == 'X' || type == 'o';
    if (!integer && std::string_view("fFeEgG").find(type) == std::string_view::npos) {
      throw TemplateError(fmt::format("the format field '%{}' is not supported", type));
    }
    if (!value.is_number()) {
      if (value.is_undefined()) fail_undefined(value);
      throw TemplateError(fmt::format("the format field '%{}' needs a number, not '{}'", type, type_name(value)));
    }
    spec.type = type == 'i' || type == 'u' ? 'd' : type;
    const Value number = integer && !value.is_integral() ? Value::integer(truncated(value.as_double())) : value;
    result_.append_text(number_text(number, spec), value.source());
  }

  Interpreter& interpreter_;
  const MarkedString& format_;
  const Value& values_;
  bool is_tuple_ = false;
  size_t next_ = 0;
  MarkedString result_;
};

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& interpreter, const MarkedString& format, const Arguments& arguments)
      : interpreter_(interpreter), format_(format), arguments_(arguments) {}

  MarkedString run() {
    const std::string& text = format_.text();
    for (size_t at = 0; at < text.size();) {
      const size_t brace = std::min(text.find_first_of("{}", at), text.size());
      result_.append_part(format_, at, brace);
      if (brace == text.size()) break;
      if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
        result_.append_part(format_, brace, brace + 1);
        at = brace + 2;
        continue;
      }
      const size_t end = text[brace] == '{' ? text.find('}', brace) : std::string::npos;
      if (end == std::string::npos) throw TemplateError(fmt::format("a single '{}' in a format", text[brace]));
      field(std::string_view(text).substr(brace + 1, end - brace - 1));
      at = end + 1;
    }
    return std::move(result_);
  }

 private:
  const Value& argument(std::string_view name) {
    const bool is_index = name.find_first_not_of("0123456789") == std::string_view::npos;
    if (is_index) {
      const auto index = name.empty() ? next_++ : static_cast<size_t>(parse_int(name, 10).value_or(INT64_MAX));
      if (index >= arguments_.positional.size()) throw TemplateError("format() needs more arguments");
      return arguments_.positional[index];
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) return value;
    }
    throw TemplateError(fmt::format("format() has no argument '{}' (attributes in fields are not supported)", name));
  }

  void field(std::string_view field) {
    const size_t colon = std::min(field.find(':'), field.size());
    std::string_view name = field.substr(0, colon);
    const size_t mark = name.find('!');
    const std::string_view conversion = mark == std::string_view::npos ? "" : name.substr(mark + 1);
    if (!conversion.empty() && conversion != "s" && conversion != "r") {
      throw TemplateError(fmt::format("the conversion '!{}' in a format is not supported", conversion));
    }
    name = name.substr(0, mark);
    const Spec spec = parse_spec(colon < field.size() ? field.substr(colon + 1) : std::string_view());
    const Value& value = argument(name);
    const bool plain = spec.width == 0 && !spec.type && spec.precision < 0 && spec.sign == '-' && !spec.grouped;
    if (conversion.empty() && value.is_number() && !(value.is_bool() && plain)) {
      if (spec.type == 's' || (is_integer_type(spec.type) && spec.type && !value.is_integral())) {
        throw TemplateError(fmt::format("the format code '{}' does not fit a '{}'", spec.type, type_name(value)));
      }
      return result_.append_text(number_text(value, spec), value.source());
    }
    if (spec.type && spec.type != 's') {
      throw TemplateError(fmt::format("the format code '{}' does not fit a '{}'", spec.type, type_name(value)));
    }
    if (spec.align == '=' || spec.sign != '-' || spec.grouped || spec.alternate) {
      if (spec.fill != "0") throw TemplateError("the format specification does not fit a string");
    }
    append_padded(result_, conversion == "r" ? repr_text(value) : interpreter_.text_of(value), spec, '<');
  }

  Interpreter& interpreter_;
  const MarkedString& format_;
  const Arguments& arguments_;
  size_t next_ = 0;
  MarkedString result_;
};

}  // namespace

Value percent_format(Interpreter& interpreter, const MarkedString& format, const Value& values) {
  interpreter.charge(format.size() / 8 + 4 * values.weight());
  return interpreter.make_string(PercentFormatter(interpreter, format, values).run());
}

Value brace_format(Interpreter& interpreter, const MarkedString& format, const Arguments& arguments) {
  interpreter.charge(format.size());
  return interpreter.make_string(BraceFormatter(interpreter, format, arguments).run());
}

}  // namespace hone::jinja
