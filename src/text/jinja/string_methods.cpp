#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "text/jinja/characters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/marked_string.h"
#include "text/jinja/python_text.h"

namespace hone::jinja {

namespace {

using Interp = Interpreter;
using Args = Arguments;

const MarkedString& text(const Value& self) { return *self.as_string(); }

int64_t integer_or(const Value* argument, int64_t absent) {
  return given(argument) ? require_integer(*argument, "the argument of a string method") : absent;
}

const MarkedString& string_argument(const Value* argument) {
  return require_string(*argument, "the argument of a string method");
}

Value list_of(Interp& interp, const MarkedString& whole, const std::vector<Piece>& pieces) {
  interp.charge(whole.size() / 32 + pieces.size());
  std::vector<Value> items;
  items.reserve(pieces.size());
  for (const Piece& piece : pieces) items.push_back(Value::string(whole.part(piece.begin, piece.end)));
  return Value::list(std::move(items));
}

template <bool kLeft, bool kRight>
Value strip(Interp& interp, const Value& self, const Args& args) {
  const auto bound = args.bind("strip", {"chars"});
  if (!given(bound[0])) return interp.make_string(trimmed(text(self), nullptr, kLeft, kRight));
  const std::string_view chars = string_argument(bound[0]).view();
  interp.charge(text(self).size() * chars.size() / 32);
  return interp.make_string(trimmed(text(self), &chars, kLeft, kRight));
}

template <bool kFromRight>
Value split_method(Interp& interp, const Value& self, const Args& args) {
  const auto bound = args.bind("split", {"sep", "maxsplit"});
  const int64_t max_splits = integer_or(bound[1], -1);
  if (!given(bound[0])) return list_of(interp, text(self), split(text(self).view(), nullptr, max_splits, kFromRight));
  const std::string_view separator = string_argument(bound[0]).view();
  if (separator.empty()) throw TemplateError("split(): the separator is empty");
  return list_of(interp, text(self), split(text(self).view(), &separator, max_splits, kFromRight));
}

Value splitlines(Interp& interp, const Value& self, const Args& args) {
  const auto bound = args.bind("splitlines", {"keepends"});
  return list_of(interp, text(self), split_lines(text(self).view(), bound[0] && is_true(*bound[0])));
}

template <Case kCase>
Value case_method(Interp& interp, const Value& self, const Args& args) {
  args.bind("case", {});
  interp.charge(text(self).size() / 8);
  return interp.make_string(with_case(text(self), kCase));
}

Value replace(Interp& interp, const Value& self, const Args& args) {
  const auto bound = args.bind("replace", {"old", "new", "count"}, 2);
  const MarkedString &old = string_argument(bound[0]), &replacement = string_argument(bound[1]);
  const size_t count = count_occurrences(text(self).view(), old.view());
  interp.charge(text(self).size() / 32 + count * (1 + replacement.size() / 32));
  return interp.make_string(replaced(text(self), old.view(), replacement, integer_or(bound[2], -1)));
}

/// Characters [start, end) of a string, as bytes, with Python's rules for bounds. `valid` is false if start > length.
struct Window {
  Piece bytes;
  size_t first_character;
  bool valid;
};

Window window_of(const MarkedString& whole, const Value* start_argument, const Value* end_argument) {
  if (!given(start_argument) && !given(end_argument)) return {{0, whole.size()}, 0, true};
  const auto length = static_cast<int64_t>(count_characters(whole.view()));
  const auto position = [&](const Value* argument, int64_t absent) {
    const int64_t index = integer_or(argument, absent);
    return index < 0 ? std::max<int64_t>(index + length, 0) : index;
  };
  const int64_t start = position(start_argument, 0), end = std::min(position(end_argument, length), length);
  if (start > end) return {{0, 0}, 0, false};
  const auto first = static_cast<size_t>(start);
  return {{byte_offset(whole.view(), first), byte_offset(whole.view(), static_cast<size_t>(end))}, first, true};
}

/// Index of the character where the argument starts; -1 if it is not found.
template <bool kLast>
int64_t found_at(Interp& interp, const Value& self, const Args& args) {
  const auto bound = args.bind("find", {"sub", "start", "end"}, 1);
  const std::string_view part = string_argument(bound[0]).view();
  interp.charge(text(self).size() / 8);
  const Window window = window_of(text(self), bound[1], bound[2]);
  if (!window.valid) return -1;
  const std::string_view view = text(self).view().substr(window.bytes.begin, window.bytes.end - window.bytes.begin);
  const size_t at = kLast ? view.rfind(part) : view.find(part);
  if (at == std::string_view::npos) return -1;
  return static_cast<int64_t>(window.first_character + count_characters(view.substr(0, at)));
}

template <bool kLast>
Value find(Interp& interp, const Value& self, const Args& args) {
  return Value::integer(found_at<kLast>(interp, self, args));
}

template <bool kLast>
Value index(Interp& interp, const Value& self, const Args& args) {
  const int64_t at = found_at<kLast>(interp, self, args);
  if (at < 0) throw TemplateError("index(): the part is not in the string");
  return Value::integer(at);
}

Value count(Interp& interp, const Value& self, const Args& args) {
  const auto bound = args.bind("count", {"sub", "start", "end"}, 1);
  const std::string_view part = string_argument(bound[0]).view();
  interp.charge(text(self).size() / 8);
  const Window window = window_of(text(self), bound[1], bound[2]);
  if (!window.valid) return Value::integer(0);
  const std::string_view view = text(self).view().substr(window.bytes.begin, window.bytes.end - window.bytes.begin);
  return Value::integer(static_cast<int64_t>(count_occurrences(view, part)));
}

template <bool kEnd>
Value affix(Interp& interp, const Value& self, const Args& args) {
  const auto bound = args.bind(kEnd ? "endswith" : "startswith", {"affix", "start", "end"}, 1);
  if (given(bound[1]) || given(bound[2])) interp.charge(text(self).size() / 8);
  const Window window = window_of(text(self), bound[1], bound[2]);
  const std::string_view view = text(self).view().substr(window.bytes.begin, window.bytes.end - window.bytes.begin);
  const auto fits = [&](const Value& part) {
    const std::string_view wanted = string_argument(&part).view();
    return window.valid && (kEnd ? view.ends_with(wanted) : view.starts_with(wanted));
  };
  const List* choices = bound[0]->as_list();
  if (!choices || choices->type != List::Type::kTuple) return Value::boolean(fits(*bound[0]));
  return Value::boolean(std::any_of(choices->items.begin(), choices->items.end(), fits));
}

template <bool kEnd>
Value remove_affix(Interp& interp, const Value& self, const Args& args) {
  const auto bound = args.bind(kEnd ? "removesuffix" : "removeprefix", {"affix"}, 1);
  const std::string_view wanted = string_argument(bound[0]).view(), view = text(self).view();
  if (!(kEnd ? view.ends_with(wanted) : view.starts_with(wanted))) return self;
  const size_t kept = view.size() - wanted.size();
  return interp.make_string(kEnd ? text(self).part(0, kept) : text(self).part(wanted.size(), view.size()));
}

Value join(Interp& interp, const Value& self, const Args& args) {
  const auto bound = args.bind("join", {"iterable"}, 1);
  MarkedString result;
  bool first = true;
  for (const Value& item : interp.iterate(*bound[0])) {
    if (!std::exchange(first, false)) result.append(text(self));
    result.append(require_string(item, "an item of join()"));
    interp.charge(1 + text(self).size() / 32);
  }
  return interp.make_string(std::move(result));
}

template <bool kLast>
Value partition(Interp& interp, const Value& self, const Args& args) {
  const auto bound = args.bind("partition", {"sep"}, 1);
  const std::string_view separator = string_argument(bound[0]).view(), view = text(self).view();
  if (separator.empty()) throw TemplateError("partition(): the separator is empty");
  interp.charge(view.size() / 32);
  const size_t at = kLast ? view.rfind(separator) : view.find(separator);
  const Value empty = Value::string(MarkedString());
  if (at == std::string_view::npos)
    return kLast ? Value::tuple({empty, empty, self}) : Value::tuple({self, empty, empty});
  const size_t end = at + separator.size();
  return Value::tuple({Value::string(text(self).part(0, at)), Value::string(text(self).part(at, end)),
                       Value::string(text(self).part(end, view.size()))});
}

enum class Side { kLeft, kRight, kCenter };

template <Side kSide>
Value justify(Interp& interp, const Value& self, const Args& args) {
  const auto bound = args.bind("justify", {"width", "fillchar"}, 1);
  const MarkedString fill = bound[1] ? string_argument(bound[1]) : MarkedString(" ");
  const auto length = static_cast<int64_t>(count_characters(text(self).view()));
  const int64_t width = require_integer(*bound[0], "the width");
  if (count_characters(fill.view()) != 1) throw TemplateError("the fill must be one character");
  if (width <= length) return self;
  interp.charge(static_cast<size_t>(width));
  const int64_t padding = width - length;
  const int64_t centered = padding / 2 + (padding & width & 1);
  const int64_t before = kSide == Side::kLeft ? 0 : kSide == Side::kRight ? padding : centered;
  MarkedString result;
  for (int64_t i = 0; i < before; ++i) result.append(fill);
  result.append(text(self));
  for (int64_t i = before; i < padding; ++i) result.append(fill);
  return interp.make_string(std::move(result));
}

Value zfill(Interp& interp, const Value& self, const Args& args) {
  const auto bound = args.bind("zfill", {"width"}, 1);
  const auto length = static_cast<int64_t>(count_characters(text(self).view()));
  const int64_t width = require_integer(*bound[0], "the width");
  if (width <= length) return self;
  interp.charge(static_cast<size_t>(width));
  const bool has_sign = !text(self).empty() && (text(self).text()[0] == '-' || text(self).text()[0] == '+');
  MarkedString result = text(self).part(0, has_sign ? 1 : 0);
  result.append_text(std::string(static_cast<size_t>(width - length), '0'));
  result.append_part(text(self), has_sign ? 1 : 0, text(self).size());
  return interp.make_string(std::move(result));
}

Value format(Interp& interp, const Value& self, const Args& args) { return brace_format(interp, text(self), args); }

/// True if there are characters and `kPredicate` is true for all of them.
template <auto kPredicate>
Value all_characters(Interp& interp, const Value& self, const Args& args) {
  args.bind("is", {});
  const std::string_view view = text(self).view();
  interp.charge(view.size() / 8);
  for (size_t at = 0; at < view.size();) {
    const Character c = character_at(view, at);
    if (!kPredicate(c.code)) return Value::boolean(false);
    at += c.size;
  }
  return Value::boolean(!view.empty());
}

/// str.isupper, str.islower: at least one cased character, and none of the other case.
template <auto kWanted, auto kOther>
Value one_case(Interp& interp, const Value& self, const Args& args) {
  args.bind("is", {});
  const std::string_view view = text(self).view();
  interp.charge(view.size() / 8);
  bool found = false;
  for (size_t at = 0; at < view.size();) {
    const Character c = character_at(view, at);
    if (kOther(c.code) || is_title(c.code)) return Value::boolean(false);
    found = found || kWanted(c.code);
    at += c.size;
  }
  return Value::boolean(found);
}

bool is_alphanumeric(char32_t c) { return is_alphabetic(c) || is_numeric(c); }

}  // namespace

Method find_string_method(std::string_view name) {
  static const std::unordered_map<std::string_view, Method> kMethods = {
      {"strip", strip<true, true>},
      {"lstrip", strip<true, false>},
      {"rstrip", strip<false, true>},
      {"split", split_method<false>},
      {"rsplit", split_method<true>},
      {"splitlines", splitlines},
      {"upper", case_method<Case::kUpper>},
      {"lower", case_method<Case::kLower>},
      {"title", case_method<Case::kTitle>},
      {"capitalize", case_method<Case::kCapital>},
      {"swapcase", case_method<Case::kSwapped>},
      {"casefold", case_method<Case::kFolded>},
      {"replace", replace},
      {"find", find<false>},
      {"rfind", find<true>},
      {"index", index<false>},
      {"rindex", index<true>},
      {"count", count},
      {"startswith", affix<false>},
      {"endswith", affix<true>},
      {"removeprefix", remove_affix<false>},
      {"removesuffix", remove_affix<true>},
      {"join", join},
      {"partition", partition<false>},
      {"rpartition", partition<true>},
      {"ljust", justify<Side::kLeft>},
      {"rjust", justify<Side::kRight>},
      {"center", justify<Side::kCenter>},
      {"zfill", zfill},
      {"format", format},
      {"isspace", all_characters<is_space>},
      {"isalpha", all_characters<is_alphabetic>},
      {"isdigit", all_characters<is_digit>},
      {"isdecimal", all_characters<is_decimal>},
      {"isnumeric", all_characters<is_numeric>},
      {"isalnum", all_characters<is_alphanumeric>},
      {"isupper", one_case<is_upper, is_lower>},
      {"islower", one_case<is_lower, is_upper>},
  };
  const auto found = kMethods.find(name);
  return found == kMethods.end() ? nullptr : found->second;
}

}  // namespace hone::jinja
