#include "text/jinja/arithmetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "text/jinja/characters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"
#include "text/jinja/value.h"

namespace hone::jinja {
namespace {

/// `text` without white space around it and underscores between digits; nothing if an underscore is misplaced.
std::optional<std::string> plain_digits(std::string_view text) {
  const Trimmed kept = trim(text, nullptr, true, true);
  std::string digits;
  for (size_t i = kept.begin; i < kept.end; ++i) {
    if (text[i] != '_') {
      digits += text[i];
      continue;
    }
    const auto alphanumeric = [&](size_t p) {
      return p >= kept.begin && p < kept.end && std::isalnum(static_cast<unsigned char>(text[p]));
    };
    if (i == 0 || !alphanumeric(i - 1) || !alphanumeric(i + 1)) return std::nullopt;
  }
  return digits;
}

}  // namespace

std::optional<int64_t> parse_int(std::string_view text, int64_t base) {
  const auto plain = plain_digits(text);
  if (!plain || base < 2 || base > 36) return std::nullopt;
  std::string_view digits = *plain;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  const auto has_prefix = [&](char letter) {
    return digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) == letter;
  };
  if ((base == 16 && has_prefix('x')) || (base == 8 && has_prefix('o')) || (base == 2 && has_prefix('b'))) {
    digits.remove_prefix(2);
  }
  int64_t value = 0;
  if (digits.empty() || digits[0] == '-') return std::nullopt;
  const std::string signed_digits = (negative ? "-" : "") + std::string(digits);
  const char* end = signed_digits.data() + signed_digits.size();
  const auto result = std::from_chars(signed_digits.data(), end, value, static_cast<int>(base));
  if (result.ptr != end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) throw TemplateError("an integer does not fit 64 bits");
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  const auto plain = plain_digits(text);
  if (!plain) return std::nullopt;
  std::string_view digits = *plain;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  if (digits.empty() || digits[0] == '+' || (plain->starts_with('+') && digits[0] == '-')) return std::nullopt;
  double value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ptr != digits.data() + digits.size() || digits.find('(') != std::string_view::npos) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) return std::strtod(std::string(digits).c_str(), nullptr);
  return value;
}

int64_t truncated(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (!(value > -kLimit && value < kLimit)) throw TemplateError("an integer does not fit 64 bits");
  return static_cast<int64_t>(value);
}

double rounded(double value, int precision) {
  if (!std::isfinite(value)) return value;
  if (precision < 0) {
    const double scale = std::pow(10.0, -precision);
    return std::nearbyint(value / scale) * scale;
  }
  return std::strtod(fmt::format("{:.{}f}", value, precision).c_str(), nullptr);
}

namespace {

std::string_view symbol(Operator op) {
  switch (op) {
    case Operator::kAdd:
      return "+";
    case Operator::kSubtract:
      return "-";
    case Operator::kMultiply:
      return "*";
    case Operator::kDivide:
      return "/";
    case Operator::kFloorDivide:
      return "//";
    case Operator::kModulo:
      return "%";
    case Operator::kPower:
      return "**";
    default:
      return "?";
  }
}

[[noreturn]] void fail_types(Operator op, const Value& left, const Value& right) {
  if (left.is_undefined()) fail_undefined(left);
  if (right.is_undefined()) fail_undefined(right);
  throw TemplateError(
      fmt::format("'{}' is not supported between '{}' and '{}'", symbol(op), type_name(left), type_name(right)));
}

/// The result of a built-in that reports overflow. By reference, since the evaluation order of arguments is
/// unspecified.
int64_t checked(bool overflow, const int64_t& result) {
  if (overflow) throw TemplateError("an integer does not fit 64 bits");
  return result;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 ? -1 : 1;
  for (; exponent > 0; --exponent) {
    int64_t product = 0;
    result = checked(__builtin_mul_overflow(result, base, &product), product);
  }
  return result;
}

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == -1) {
    int64_t result = 0;
    return checked(__builtin_sub_overflow(int64_t{0}, a, &result), result);
  }
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integers(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  const bool divides = op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b == 0) throw TemplateError("division by zero");
  switch (op) {
    case Operator::kAdd:
      return Value::integer(checked(__builtin_add_overflow(a, b, &result), result));
    case Operator::kSubtract:
      return Value::integer(checked(__builtin_sub_overflow(a, b, &result), result));
    case Operator::kMultiply:
      return Value::integer(checked(__builtin_mul_overflow(a, b, &result), result));
    case Operator::kDivide:
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case Operator::kFloorDivide:
      return Value::integer(floor_divide(a, b));
    case Operator::kModulo:
      return Value::integer(b == -1 ? 0 : a - floor_divide(a, b) * b);
    default:
      break;
  }
  if (b >= 0) return Value::integer(integer_power(a, b));
  if (a == 0) throw TemplateError("0 cannot be raised to a negative power");
  return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
}

Value reals(Operator op, double a, double b) {
  const bool divides = op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b == 0) throw TemplateError("division by zero");
  const auto modulo = [&] {
    const double rest = std::fmod(a, b);
    if (rest == 0) return std::copysign(0.0, b);
    return (rest < 0) != (b < 0) ? rest + b : rest;
  };
  const auto quotient = [&] {
    const double exact = (a - modulo()) / b;
    return exact == 0 ? std::copysign(0.0, a / b) : std::round(exact);
  };
  switch (op) {
    case Operator::kAdd:
      return Value::real(a + b);
    case Operator::kSubtract:
      return Value::real(a - b);
    case Operator::kMultiply:
      return Value::real(a * b);
    case Operator::kDivide:
      return Value::real(a / b);
    case Operator::kFloorDivide:
      return Value::real(quotient());
    case Operator::kModulo:
      return Value::real(modulo());
    default:
      break;
  }
  if (a == 0 && b < 0) throw TemplateError("0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(b) && b != std::floor(b)) throw TemplateError("a root of a negative number");
  const double power = std::pow(a, b);
  if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) throw TemplateError("a float is too large");
  return Value::real(power);
}

Value repeated(Interpreter& interpreter, const Value& value, int64_t count) {
  const size_t times = count > 0 ? static_cast<size_t>(count) : 0;
  const size_t weight = std::max<size_t>(value.weight(), 1);
  if (times > kMaxValueWeight / weight) throw TemplateError("a repeated string or list is too long");
  interpreter.charge(times * weight);
  if (const MarkedString* text = value.as_string()) {
    MarkedString result;
    for (size_t i = 0; i < times; ++i) result.append(*text);
    return interpreter.make_string(std::move(result));
  }
  List result;
  result.type = value.as_list()->type;
  for (size_t i = 0; i < times; ++i) {
    result.items.insert(result.items.end(), value.as_list()->items.begin(), value.as_list()->items.end());
  }
  return Value::list(std::move(result));
}

bool repeats(const Value& value) {
  const List* list = value.as_list();
  return value.as_string() || (list && (list->type == List::Type::kList || list->type == List::Type::kTuple));
}

/// Whether a + b joins texts although not both of them are texts.
bool joins_as_texts(const Value& a, const Value& b) {
  return (a.stands_for_text() && (b.as_string() || b.stands_for_text())) || (b.stands_for_text() && a.as_string());
}

Value sum(Interpreter& interpreter, const Value& left, const Value& right) {
  if (joins_as_texts(left, right)) {
    MarkedString result = interpreter.text_of(left);
    result.append(interpreter.text_of(right));
    return interpreter.make_string(std::move(result));
  }
  if (const MarkedString* a = left.as_string(), *b = right.as_string(); a && b) {
    MarkedString result = *a;
    if (a == b) {
      result.append(MarkedString(*b));
    } else {
      result.append(*b);
    }
    return interpreter.make_string(std::move(result));
  }
  const List *a = left.as_list(), *b = right.as_list();
  if (!a || !b || a->type != b->type || !repeats(left)) fail_types(Operator::kAdd, left, right);
  interpreter.charge(a->items.size() + b->items.size());
  List result{a->type, a->items};
  result.items.insert(result.items.end(), b->items.begin(), b->items.end());
  return Value::list(std::move(result));
}

/// Python's slice.indices: the first index, the step and the number of items.
struct SliceRange {
  int64_t start, step;
  size_t count;

  size_t index(size_t i) const { return static_cast<size_t>(start + static_cast<int64_t>(i) * step); }
};

SliceRange slice_range(int64_t length, const Value* start, const Value* stop, const Value* step) {
  const auto given = [](const Value* part) { return part && !part->is_none(); };
  SliceRange range{0, given(step) ? require_integer(*step, "the step of a slice") : 1, 0};
  if (range.step == 0) throw TemplateError("the step of a slice is zero");
  if (range.step == INT64_MIN) range.step = -INT64_MAX;
  const int64_t low = range.step > 0 ? 0 : -1;
  const int64_t high = range.step > 0 ? length : length - 1;
  const auto clamp = [&](const Value* part, int64_t absent) {
    if (!given(part)) return absent;
    int64_t index = require_integer(*part, "the bound of a slice");
    if (index < 0) index = index < -length ? low : index + length;
    return std::clamp(index, low, high);
  };
  range.start = clamp(start, range.step > 0 ? low : high);
  const int64_t end = clamp(stop, range.step > 0 ? high : low);
  if (range.step > 0 && range.start < end) range.count = static_cast<size_t>((end - range.start - 1) / range.step + 1);
  if (range.step < 0 && range.start > end) range.count = static_cast<size_t>((range.start - end - 1) / -range.step + 1);
  return range;
}

Value sliced_string(Interpreter& interpreter, const MarkedString& text, const Value* start, const Value* stop,
                    const Value* step) {
  interpreter.charge(text.size() / 8);
  std::vector<size_t> offsets;
  for (size_t at = 0; at < text.size(); at += character_at(text.view(), at).size) offsets.push_back(at);
  const SliceRange range = slice_range(static_cast<int64_t>(offsets.size()), start, stop, step);
  offsets.push_back(text.size());
  const auto first = static_cast<size_t>(range.start);
  if (range.count == 0) return Value::string(MarkedString());
  if (range.step == 1) return interpreter.make_string(text.part(offsets[first], offsets[first + range.count]));
  MarkedString result;
  for (size_t i = 0; i < range.count; ++i) {
    const size_t index = range.index(i);
    result.append_part(text, offsets[index], offsets[index + 1]);
  }
  return interpreter.make_string(std::move(result));
}

}  // namespace

Value arithmetic(Interpreter& interpreter, Operator op, const Value& left, const Value& right) {
  if (left.is_integral() && right.is_integral()) return integers(op, left.as_int(), right.as_int());
  if (left.is_number() && right.is_number()) return reals(op, left.as_double(), right.as_double());
  if (op == Operator::kAdd) return sum(interpreter, left, right);
  if (op == Operator::kMultiply && repeats(left) && right.is_integral()) {
    return repeated(interpreter, left, right.as_int());
  }
  if (op == Operator::kMultiply && repeats(right) && left.is_integral()) {
    return repeated(interpreter, right, left.as_int());
  }
  if (op == Operator::kModulo && left.as_string()) return percent_format(interpreter, *left.as_string(), right);
  fail_types(op, left, right);
}

Value negated(const Value& value) {
  if (value.is_integral()) return integers(Operator::kSubtract, 0, value.as_int());
  if (value.is_number()) return Value::real(-value.as_double());
  if (value.is_undefined()) fail_undefined(value);
  throw TemplateError(fmt::format("'-' is not supported for '{}'", type_name(value)));
}

bool contains(Interpreter& interpreter, const Value& container, const Value& item) {
  if (const MarkedString* text = container.as_string()) {
    const auto& part = require_string(item, "the text to search for in a string");
    interpreter.charge(text->size() / 32);
    return text->text().find(part.text()) != std::string::npos;
  }
  if (const Dict* dict = container.as_dict()) return dict->find(item) != nullptr;
  if (container.is_undefined() || container.is_blank()) return false;
  const List* list = container.as_list();
  if (!list) throw TemplateError(fmt::format("'in' is not supported for '{}'", type_name(container)));
  interpreter.charge(list->weight);
  return std::any_of(list->items.begin(), list->items.end(), [&](const Value& v) { return equals(v, item); });
}

Value sliced(Interpreter& interpreter, const Value& object, const Value* start, const Value* stop, const Value* step) {
  if (const MarkedString* text = object.as_string()) return sliced_string(interpreter, *text, start, stop, step);
  if (object.is_blank() || (object.is_json_text() && object.as_dict())) {
    return sliced_string(interpreter, interpreter.text_of(object), start, stop, step);
  }
  const List* list = object.as_list();
  if (!list || !list->indexable()) {
    if (object.is_undefined()) fail_undefined(object);
    throw TemplateError(fmt::format("a '{}' cannot be sliced", type_name(object)));
  }
  const SliceRange range = slice_range(static_cast<int64_t>(list->items.size()), start, stop, step);
  interpreter.charge(range.count);
  List result;
  result.type = list->type;
  result.stop = list->stop;
  for (size_t i = 0; i < range.count; ++i) result.items.push_back(list->items[range.index(i)]);
  return Value::list(std::move(result));
}

}  // namespace hone::jinja
