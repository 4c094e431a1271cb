#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "text/jinja/arithmetic.h"
#include "text/jinja/characters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/marked_string.h"
#include "text/jinja/python_text.h"

namespace hone::jinja {

namespace {

using Interp = Interpreter;
using Args = Arguments;

Value trim_filter(Interp& interp, const Value& subject, const Args& args) {
  const auto bound = args.bind("trim", {"chars"});
  const MarkedString text = interp.text_of(subject);
  if (!given(bound[0])) return interp.make_string(trimmed(text, nullptr, true, true));
  const std::string_view chars = require_string(*bound[0], "the argument of trim").view();
  interp.charge(text.size() * chars.size() / 32);
  return interp.make_string(trimmed(text, &chars, true, true));
}

template <Case kCase>
Value case_filter(Interp& interp, const Value& subject, const Args& args) {
  args.bind("the filter", {});
  return interp.make_string(with_case(interp.text_of(subject), kCase));
}

/// Words begin after white space, hyphens and opening brackets; unlike str.title, not after apostrophes.
Value title(Interp& interp, const Value& subject, const Args& args) {
  args.bind("title", {});
  const MarkedString text = interp.text_of(subject);
  MarkedString result;
  bool begins_word = true;
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text.view(), at);
    result.append_standing_for(begins_word ? upper_case(c.code) : lower_case(c.code), text, at);
    begins_word = is_space(c.code) || (c.code < 0x80 && std::string_view("-({[<").find(static_cast<char>(c.code)) !=
                                                            std::string_view::npos);
    at += c.size;
  }
  return interp.make_string(std::move(result));
}

Value replace_filter(Interp& interp, const Value& subject, const Args& args) {
  const auto bound = args.bind("replace", {"old", "new", "count"}, 2);
  const MarkedString text = interp.text_of(subject), old = interp.text_of(*bound[0]);
  const MarkedString replacement = interp.text_of(*bound[1]);
  interp.charge(count_occurrences(text.view(), old.view()) * (1 + replacement.size() / 32));
  const int64_t count = given(bound[2]) ? require_integer(*bound[2], "the count of replace") : -1;
  return interp.make_string(replaced(text, old.view(), replacement, count));
}

Value string(Interp& interp, const Value& subject, const Args& args) {
  args.bind("string", {});
  return subject.as_string() ? subject : interp.make_string(interp.text_of(subject));
}

Value safe(Interp& interp, const Value& subject, const Args& args) { return string(interp, subject, args); }

Value escape(Interp& interp, const Value& subject, const Args& args) {
  args.bind("escape", {});
  const MarkedString text = interp.text_of(subject);
  MarkedString result;
  for (size_t at = 0; at < text.size(); ++at) {
    switch (text.text()[at]) {
      case '&':
        result.append_standing_for("&amp;", text, at);
        break;
      case '<':
        result.append_standing_for("&lt;", text, at);
        break;
      case '>':
        result.append_standing_for("&gt;", text, at);
        break;
      case '"':
        result.append_standing_for("&#34;", text, at);
        break;
      case '\'':
        result.append_standing_for("&#39;", text, at);
        break;
      default:
        result.append_part(text, at, at + 1);
    }
  }
  return interp.make_string(std::move(result));
}

Value indent(Interp& interp, const Value& subject, const Args& args) {
  const auto bound = args.bind("indent", {"width", "first", "blank"});
  const bool first = bound[1] && is_true(*bound[1]), blank = bound[2] && is_true(*bound[2]);
  MarkedString space(std::string(4, ' '));
  if (bound[0] && bound[0]->as_string()) {
    space = *bound[0]->as_string();
  } else if (bound[0]) {
    const int64_t width = require_integer(*bound[0], "the width of indent");
    if (width > 1000) throw TemplateError("indent: the width is more than 1000");
    space = MarkedString(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '));
  }
  MarkedString text = require_string(subject, "the value of indent");
  text.append_text("\n");
  const auto lines = split_lines(text.view(), false);
  interp.charge(lines.size() * (1 + space.size() / 32));
  MarkedString result;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result.append_text("\n");
    const bool empty = lines[i].begin == lines[i].end;
    if (i > 0 ? blank || !empty : first) result.append(space);
    result.append_part(text, lines[i].begin, lines[i].end);
  }
  return interp.make_string(std::move(result));
}

JsonStyle json_style(const Args& args) {
  const auto bound = args.bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound[0] && is_true(*bound[0]);
  style.sort_keys = bound[3] && is_true(*bound[3]);
  if (given(bound[1])) {
    style.item_separator.assign(1, ',');
    if (const MarkedString* text = bound[1]->as_string()) {
      style.indent = text->text();
    } else {
      const int64_t width = require_integer(*bound[1], "the indent of tojson");
      style.indent = std::string(static_cast<size_t>(std::clamp<int64_t>(width, 0, 100)), ' ');
    }
  }
  if (given(bound[2])) {
    const List* separators = bound[2]->as_list();
    if (!separators || separators->items.size() != 2) throw TemplateError("tojson: separators must be a pair");
    style.item_separator = require_string(separators->items[0], "a separator").text();
    style.key_separator = require_string(separators->items[1], "a separator").text();
  }
  return style;
}

Value tojson(Interp& interp, const Value& subject, const Args& args) {
  const JsonStyle style = json_style(args);
  const size_t longest = style.item_separator.size() + style.key_separator.size() +
                         (style.indent ? style.indent->size() * static_cast<size_t>(subject.depth() + 1) : 0);
  interp.charge(subject.weight() * (4 + longest / 32));
  return interp.make_string(json_text(subject, style));
}

Value format_filter(Interp& interp, const Value& subject, const Args& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    throw TemplateError("format: arguments with and without names cannot be mixed");
  }
  const MarkedString text = interp.text_of(subject);
  if (args.named.empty()) return percent_format(interp, text, Value::tuple(args.positional));
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [name, value] : args.named) entries.emplace_back(Value::string(name), value);
  return percent_format(interp, text, Value::dict(std::move(entries)));
}

SourceId source_of(const Value& value) {
  const MarkedString* text = value.as_string();
  return text && !text->empty() ? text->runs().front().source : value.source();
}

Value int_filter(Interp&, const Value& subject, const Args& args) {
  const auto bound = args.bind("int", {"default", "base"});
  if (subject.is_undefined()) fail_undefined(subject);
  constexpr int64_t kNoBase = 0;
  const int64_t base = !bound[1] ? 10 : bound[1]->is_integral() ? bound[1]->as_int() : kNoBase;
  const auto number = subject.as_string() ? parse_int(subject.as_string()->view(), base) : std::nullopt;
  if (number) return Value::integer(*number).with_source(source_of(subject));
  if (subject.is_integral()) return Value::integer(subject.as_int()).with_source(subject.source());
  std::optional<double> real;
  if (subject.is_number()) real = subject.as_double();
  if (subject.as_string()) real = parse_float(subject.as_string()->view());
  if (!real || !std::isfinite(*real)) return bound[0] ? *bound[0] : Value::integer(0);
  return Value::integer(truncated(*real)).with_source(source_of(subject));
}

Value float_filter(Interp&, const Value& subject, const Args& args) {
  const auto bound = args.bind("float", {"default"});
  if (subject.is_undefined()) fail_undefined(subject);
  std::optional<double> real;
  if (subject.is_number()) real = subject.as_double();
  if (subject.as_string()) real = parse_float(subject.as_string()->view());
  if (!real) return bound[0] ? *bound[0] : Value::real(0);
  return Value::real(*real).with_source(source_of(subject));
}

void require_number(const Value& value, std::string_view filter) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_number()) throw TemplateError(fmt::format("{}: a {} is not a number", filter, type_name(value)));
}

Value absolute(Interp&, const Value& subject, const Args& args) {
  args.bind("abs", {});
  require_number(subject, "abs");
  if (!subject.is_integral()) return Value::real(std::fabs(subject.as_double()));
  const int64_t value = subject.as_int();
  if (value == INT64_MIN) throw TemplateError("an integer does not fit 64 bits");
  return Value::integer(std::abs(value));
}

Value round_filter(Interp&, const Value& subject, const Args& args) {
  const auto bound = args.bind("round", {"precision", "method"});
  require_number(subject, "round");
  if (bound[0] && bound[0]->is_none()) return Value::integer(truncated(rounded(subject.as_double(), 0)));
  const int64_t precision = bound[0] ? require_integer(*bound[0], "the precision of round") : 0;
  const std::string method = bound[1] ? require_string(*bound[1], "the method of round").text() : "common";
  if (method != "common" && method != "ceil" && method != "floor") {
    throw TemplateError("round: the method must be common, ceil or floor");
  }
  if (precision < -300 || precision > 300) throw TemplateError("round: the precision is out of range");
  const double value = subject.as_double();
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    return Value::real((method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale)) / scale);
  }
  if (subject.is_integral()) {
    if (precision >= 0) return Value::integer(subject.as_int());
    return Value::integer(truncated(rounded(value, static_cast<int>(precision))));
  }
  return Value::real(rounded(value, static_cast<int>(precision)));
}

}  // namespace

Filter find_text_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> kFilters = {
      {"trim", trim_filter},
      {"upper", case_filter<Case::kUpper>},
      {"lower", case_filter<Case::kLower>},
      {"capitalize", case_filter<Case::kCapital>},
      {"title", title},
      {"replace", replace_filter},
      {"string", string},
      {"safe", safe},
      {"escape", escape},
      {"e", escape},
      {"indent", indent},
      {"tojson", tojson},
      {"format", format_filter},
      {"int", int_filter},
      {"float", float_filter},
      {"abs", absolute},
      {"round", round_filter},
  };
  const auto found = kFilters.find(name);
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace hone::jinja
