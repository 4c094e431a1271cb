#include "text/jinja/predicates.h"

#include <algorithm>
#include <unordered_map>

#include "text/jinja/arithmetic.h"
#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/methods.h"

namespace hone::jinja {

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
  return v.as_string() || v.as_list() || v.as_dict() || v.is_undefined() || v.as_loop();
}
bool is_sequence(Interp&, const Value& v, const Args&) {
  return v.as_string() || v.as_dict() || v.is_undefined() || (v.as_list() && v.as_list()->indexable());
}
bool is_true_itself(Interp&, const Value& v, const Args&) { return v.is_bool() && *v.get<bool>(); }
bool is_false_itself(Interp&, const Value& v, const Args&) { return v.is_bool() && !*v.get<bool>(); }
bool is_callable(Interp&, const Value& v, const Args&) { return v.as_callable(); }
bool is_escaped(Interp&, const Value&, const Args&) { return false; }

int64_t whole(const Value& v) { return require_integer(v, "the value of this test"); }
/// value % 2, which a float may also have
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
bool is_upper(Interp& interp, const Value& v, const Args&) { return has_case(interp, v, "isupper"); }
bool is_lower(Interp& interp, const Value& v, const Args&) { return has_case(interp, v, "islower"); }

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
/// Python's `is`: one object. Equal simple values of one type are one; containers only if shared.
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
      {"upper", is_upper},        {"lower", is_lower},
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
