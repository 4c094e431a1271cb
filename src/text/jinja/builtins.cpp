#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <unordered_map>

#include "text/jinja/arithmetic.h"
#include "text/jinja/interpreter.h"

namespace hone::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;

Value range(Interpreter& interpreter, const Arguments& arguments) {
  const auto bound = arguments.bind("range", {"start", "stop", "step"}, 1);
  const auto integer = [](const Value* value) { return require_integer(*value, "an argument of range()"); };
  const int64_t start = bound[1] ? integer(bound[0]) : 0;
  const int64_t stop = integer(bound[1] ? bound[1] : bound[0]);
  const int64_t step = bound[2] ? integer(bound[2]) : 1;
  if (step == 0) throw TemplateError("range(): the step is zero");
  const __int128 span = step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 stride = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  const __int128 count = span > 0 ? (span - 1) / stride + 1 : 0;
  if (count > kMaxRange) throw TemplateError(fmt::format("range() of more than {} numbers", kMaxRange));
  interpreter.charge(static_cast<size_t>(count));
  List list;
  list.type = List::Type::kRange;
  list.stop = stop;
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) list.items.push_back(Value::integer(start + i * step));
  return Value::list(std::move(list));
}

/// The entries of the positional dict, then the named arguments.
std::vector<std::pair<Value, Value>> entries_of(Interpreter& interpreter, std::string_view function,
                                                const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> entries;
  if (arguments.positional.size() > 1) throw TemplateError(fmt::format("{}() takes one value at most", function));
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (const Dict* dict = source.as_dict()) {
      entries = dict->entries;
    } else {
      for (const Value& pair : interpreter.iterate(source)) {
        const auto items = interpreter.iterate(pair);
        if (items.size() != 2) throw TemplateError(fmt::format("{}() needs pairs", function));
        entries.emplace_back(items[0], items[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) entries.emplace_back(Value::string(name), value);
  interpreter.charge(entries.size());
  return entries;
}

Value dict(Interpreter& interpreter, const Arguments& arguments) {
  return Value::dict(entries_of(interpreter, "dict", arguments));
}

Value make_namespace(Interpreter& interpreter, const Arguments& arguments) {
  auto ns = interpreter.new_namespace();
  for (auto& [key, value] : entries_of(interpreter, "namespace", arguments)) {
    ns->set(require_string(key, "the name of an attribute").view(), value);
  }
  return Value::of(std::move(ns));
}

Value raise_exception(Interpreter& interpreter, const Arguments& arguments) {
  const auto bound = arguments.bind("raise_exception", {"message"}, 1);
  throw TemplateError(
      interpreter.text_of(*bound[0]).text(), 0,
      "the template refuses this conversation: change its roles or their order, or use another template");
}

Value strftime_now(Interpreter& interpreter, const Arguments& arguments) {
  const auto bound = arguments.bind("strftime_now", {"format"}, 1);
  const std::string& format = require_string(*bound[0], "the format of strftime_now()").text();
  constexpr size_t kMaxFormat = 256;
  if (format.size() > kMaxFormat) throw TemplateError("strftime_now(): the format is too long");
  const std::time_t now = interpreter.now();
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[kMaxFormat * 16];
  const size_t size = format.empty() ? 0 : std::strftime(buffer, sizeof buffer, format.c_str(), &local);
  return Value::string(std::string(buffer, size));
}

}  // namespace

std::vector<std::pair<std::string, Value>> global_functions() {
  const auto function = [](const char* name, Value (*call)(Interpreter&, const Arguments&)) {
    return std::pair(std::string(name), Value::callable({name, call}));
  };
  return {function("range", range), function("dict", dict), function("namespace", make_namespace),
          function("raise_exception", raise_exception), function("strftime_now", strftime_now)};
}

namespace {

Value get(Interpreter&, const Value& self, const Arguments& args) {
  const auto bound = args.bind("get", {"key", "default"}, 1);
  if (const Value* found = self.as_dict()->find(*bound[0])) return *found;
  return bound[1] ? *bound[1] : Value::none();
}

template <List::Type kType>
Value view(Interpreter& interpreter, const Value& self, const Arguments& args) {
  args.bind("items", {});
  interpreter.charge(self.as_dict()->entries.size());
  List list;
  list.type = kType;
  for (const auto& [key, value] : self.as_dict()->entries) {
    list.items.push_back(kType == List::Type::kKeys     ? key
                         : kType == List::Type::kValues ? value
                                                        : Value::tuple({key, value}));
  }
  return Value::list(std::move(list));
}

Value copy(Interpreter&, const Value& self, const Arguments& args) {
  args.bind("copy", {});
  return self;
}

Value index_of(Interpreter& interpreter, const Value& self, const Arguments& args) {
  const auto bound = args.bind("index", {"value"}, 1);
  const auto& items = self.as_list()->items;
  interpreter.charge(self.weight());
  const auto found = std::find_if(items.begin(), items.end(), [&](const Value& v) { return equals(v, *bound[0]); });
  if (found == items.end()) throw TemplateError("index(): the value is not in the list");
  return Value::integer(found - items.begin());
}

Value count_of(Interpreter& interpreter, const Value& self, const Arguments& args) {
  const auto bound = args.bind("count", {"value"}, 1);
  const auto& items = self.as_list()->items;
  interpreter.charge(self.weight());
  return Value::integer(
      std::count_if(items.begin(), items.end(), [&](const Value& v) { return equals(v, *bound[0]); }));
}

Value refused(Interpreter&, const Value& self, const Arguments&) {
  throw TemplateError(fmt::format("a {} cannot be changed in a chat template", type_name(self)), 0,
                      "build a new one: {% set items = items + [item] %}");
}

template <size_t kSize>
bool is_one_of(std::string_view name, const std::array<std::string_view, kSize>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Method find_dict_method(std::string_view name) {
  static constexpr std::array<std::string_view, 6> kChanging = {"clear",      "pop",    "popitem",
                                                                "setdefault", "update", "fromkeys"};
  if (name == "get") return get;
  if (name == "items") return view<List::Type::kItems>;
  if (name == "keys") return view<List::Type::kKeys>;
  if (name == "values") return view<List::Type::kValues>;
  if (name == "copy") return copy;
  return is_one_of(name, kChanging) ? refused : nullptr;
}

Method find_list_method(std::string_view name, List::Type type) {
  static constexpr std::array<std::string_view, 8> kChanging = {"append", "clear",  "extend",  "insert",
                                                                "pop",    "remove", "reverse", "sort"};
  if (name == "index") return index_of;
  if (name == "count") return count_of;
  if (type != List::Type::kList) return nullptr;
  if (name == "copy") return copy;
  return is_one_of(name, kChanging) ? refused : nullptr;
}

}  // namespace

Method find_method(const Value& object, std::string_view name) {
  if (object.as_string()) return find_string_method(name);
  if (object.as_dict()) return find_dict_method(name);
  if (const List* list = object.as_list(); list && list->indexable()) return find_list_method(name, list->type);
  if (!object.as_loop() || name != "cycle") return nullptr;
  return [](Interpreter&, const Value& self, const Arguments& args) {
    if (args.positional.empty()) throw TemplateError("loop.cycle() needs values");
    return args.positional[self.as_loop()->index % args.positional.size()];
  };
}

namespace {

using Interp = Interpreter;
using Args = Arguments;

bool is_defined(Interp&, const Value& v, const Args&) { return !v.is_undefined(); }
bool is_undefined(Interp&, const Value& v, const Args&) { return v.is_undefined(); }
bool is_none(Interp&, const Value& v, const Args&) { return v.is_none(); }
bool is_string(Interp&, const Value& v, const Args&) { return v.as_string(); }
bool is_number(Interp&, const Value& v, const Args&) { return v.is_number(); }
bool is_integer(Interp&, const Value& v, const Args&) { return v.get<int64_t>(); }
bool is_float(Interp&, const Value& v, const Args&) { return v.get<double>(); }
bool is_boolean(Interp&, const Value& v, const Args&) { return v.is_bool(); }
bool is_mapping(Interp&, const Value& v, const Args&) { return v.as_dict(); }
bool is_iterable(Interp&, const Value& v, const Args&) {
  return v.as_string() || v.as_list() || v.as_dict() || v.is_undefined() || v.as_loop() || v.is_blank();
}
bool is_sequence(Interp&, const Value& v, const Args&) {
  return v.as_string() || v.as_dict() || v.is_undefined() || v.is_blank() || (v.as_list() && v.as_list()->indexable());
}
bool is_true_itself(Interp&, const Value& v, const Args&) { return v.is_bool() && *v.get<bool>(); }
bool is_false_itself(Interp&, const Value& v, const Args&) { return v.is_bool() && !*v.get<bool>(); }
bool is_callable(Interp&, const Value& v, const Args&) { return v.as_callable(); }
bool is_escaped(Interp&, const Value&, const Args&) { return false; }

int64_t whole(const Value& v) { return require_integer(v, "the value of this test"); }
/// value % 2, also for floats
double parity(Interp& interp, const Value& v) {
  if (!v.is_number()) return static_cast<double>(whole(v));
  return arithmetic(interp, Operator::kModulo, v, Value::integer(2)).as_double();
}
bool is_odd(Interp& interp, const Value& v, const Args&) { return parity(interp, v) == 1; }
bool is_even(Interp& interp, const Value& v, const Args&) { return parity(interp, v) == 0; }
bool is_divisible(Interp& interp, const Value& v, const Args& args) {
  const Value* divisor = args.bind("divisibleby", {"num"}, 1)[0];
  const Value rest = arithmetic(interp, Operator::kModulo, v, *divisor);
  return rest.is_number() && rest.as_double() == 0;
}

bool has_case(Interp& interp, const Value& v, std::string_view method) {
  return is_true(find_string_method(method)(interp, Value::string(interp.text_of(v)), {}));
}
bool has_upper_case(Interp& interp, const Value& v, const Args&) { return has_case(interp, v, "isupper"); }
bool has_lower_case(Interp& interp, const Value& v, const Args&) { return has_case(interp, v, "islower"); }

const Value& other(Interp& interp, const Value& v, const Args& args) {
  const Value* value = args.bind("the test", {"other"}, 1)[0];
  interp.charge(std::min(v.weight(), value->weight()));
  return *value;
}
bool is_equal(Interp& i, const Value& v, const Args& args) { return equals(v, other(i, v, args)); }
bool is_unequal(Interp& i, const Value& v, const Args& args) { return !equals(v, other(i, v, args)); }
bool is_less(Interp& i, const Value& v, const Args& args) { return less_than(v, other(i, v, args)); }
bool is_greater(Interp& i, const Value& v, const Args& args) { return less_than(other(i, v, args), v); }
bool is_at_most(Interp& i, const Value& v, const Args& args) {
  const Value& bound = other(i, v, args);
  return less_than(v, bound) || equals(v, bound);
}
bool is_at_least(Interp& i, const Value& v, const Args& args) {
  const Value& bound = other(i, v, args);
  return less_than(bound, v) || equals(v, bound);
}
bool is_in(Interp& interp, const Value& v, const Args& args) {
  return contains(interp, *args.bind("in", {"seq"}, 1)[0], v);
}
/// Python's `is`: simple values are the same if type and value are equal, containers only if shared.
bool is_same(Interp& i, const Value& v, const Args& args) {
  const Value& value = other(i, v, args);
  if (v.as_list() || v.as_dict()) return v.as_list() == value.as_list() && v.as_dict() == value.as_dict();
  return type_name(v) == type_name(value) && equals(v, value);
}
bool is_filter(Interp&, const Value& v, const Args&) { return v.as_string() && find_filter(v.as_string()->view()); }
bool is_test(Interp&, const Value& v, const Args&) { return v.as_string() && find_predicate(v.as_string()->view()); }

}  // namespace

Predicate find_predicate(std::string_view name) {
  static const std::unordered_map<std::string_view, Predicate> kPredicates = {
      {"defined", is_defined},    {"undefined", is_undefined},
      {"none", is_none},          {"string", is_string},
      {"number", is_number},      {"integer", is_integer},
      {"float", is_float},        {"boolean", is_boolean},
      {"mapping", is_mapping},    {"iterable", is_iterable},
      {"sequence", is_sequence},  {"true", is_true_itself},
      {"false", is_false_itself}, {"callable", is_callable},
      {"escaped", is_escaped},    {"odd", is_odd},
      {"even", is_even},          {"divisibleby", is_divisible},
      {"upper", has_upper_case},  {"lower", has_lower_case},
      {"eq", is_equal},           {"equalto", is_equal},
      {"==", is_equal},           {"ne", is_unequal},
      {"!=", is_unequal},         {"lt", is_less},
      {"lessthan", is_less},      {"<", is_less},
      {"gt", is_greater},         {"greaterthan", is_greater},
      {">", is_greater},          {"le", is_at_most},
      {"<=", is_at_most},         {"ge", is_at_least},
      {">=", is_at_least},        {"in", is_in},
      {"sameas", is_same},        {"filter", is_filter},
      {"test", is_test},
  };
  const auto found = kPredicates.find(name);
  return found == kPredicates.end() ? nullptr : found->second;
}

}  // namespace hone::jinja
