#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/arithmetic.h"
#include "text/jinja/characters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"

namespace hone::jinja {

namespace {

std::string object_name(const Value& object) {
  return object.is_none() ? "None" : fmt::format("{} object", type_name(object));
}

Value loop_attribute(const Value& object, std::string_view name) {
  const Loop& loop = *object.as_loop();
  const auto& items = loop.items->items;
  const auto index = static_cast<int64_t>(loop.index);
  const auto length = static_cast<int64_t>(items.size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 >= length);
  if (name == "length") return Value::integer(length);
  if (name == "depth") return Value::integer(loop.depth);
  if (name == "depth0") return Value::integer(loop.depth - 1);
  if (name == "previtem") return index > 0 ? items[loop.index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem") return index + 1 < length ? items[loop.index + 1] : Value::undefined("there is no next item");
  return Value::undefined(fmt::format("'loop' has no attribute '{}'", name));
}

/// The value stored under `key`, or null.
const Value* stored(const Value& object, const Value& key) {
  if (const Dict* dict = object.as_dict()) return dict->find(key);
  const List* list = object.as_list();
  if (!list || !list->indexable() || !key.is_integral()) return nullptr;
  const auto length = static_cast<int64_t>(list->items.size());
  const int64_t index = key.as_int() < 0 ? key.as_int() + length : key.as_int();
  return index >= 0 && index < length ? &list->items[static_cast<size_t>(index)] : nullptr;
}

/// The object, or the text that it stands for if that has the method.
Value with_method(Interpreter& interpreter, const Value& object, std::string_view name) {
  const bool text = object.stands_for_text() && !find_method(object, name) && find_string_method(name);
  return text ? Value::string(interpreter.text_of(object)) : object;
}

Value bound_method(const Value& object, std::string_view name, Method method) {
  return Value::callable(
      {std::string(name), [object, method](Interpreter& i, const Arguments& a) { return method(i, object, a); }});
}

}  // namespace

Value Interpreter::attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) fail_undefined(object);
  if (object.is_blank()) {
    const Value text = with_method(*this, object, name);
    if (text.as_string()) return attribute(text, name);
  }
  if (const Method method = find_method(object, name)) return bound_method(object, name, method);
  if (object.as_loop()) return loop_attribute(object, name);
  const Value* found = nullptr;
  if (const Dict* dict = object.as_dict()) found = dict->find(name);
  if (const Namespace* ns = object.as_namespace()) found = ns->find(name);
  if (found) return *found;
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", object_name(object), name));
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined()) fail_undefined(object);
  if (const Value* found = stored(object, key)) return *found;
  const MarkedString* text = object.as_string();
  if (text && key.is_integral()) {
    const int64_t index = key.as_int();
    const Value stop = Value::integer(index == -1 || index == INT64_MAX ? INT64_MAX : index + 1);
    Value character = sliced(*this, object, &key, &stop, nullptr);
    if (!character.as_string()->empty()) return character;
  }
  if (const MarkedString* name = key.as_string()) return attribute(object, name->view());
  return Value::undefined(fmt::format("the {} has no element {}", object_name(object), repr_text(key).text()));
}

Value Interpreter::call(const Value& function, const Arguments& arguments) {
  if (function.is_undefined()) fail_undefined(function);
  const Callable* callable = function.as_callable();
  if (!callable) throw TemplateError(fmt::format("a '{}' cannot be called", type_name(function)));
  return callable->call(*this, arguments);
}

Value Interpreter::filter(std::string_view name, const Value& subject, const Arguments& arguments) {
  const Filter found = find_filter(name);
  if (!found) throw TemplateError(fmt::format("there is no filter named '{}'", name));
  return found(*this, subject, arguments);
}

bool Interpreter::test(std::string_view name, const Value& subject, const Arguments& arguments) {
  const Predicate predicate = find_predicate(name);
  if (!predicate) throw TemplateError(fmt::format("there is no test named '{}'", name));
  return predicate(*this, subject, arguments);
}

std::vector<Value> Interpreter::iterate(const Value& value) {
  if (const List* list = value.as_list()) {
    if (list->type == List::Type::kGenerator && std::exchange(list->consumed, true)) {
      return {};
    }
    charge(list->items.size() / 4);
    return list->items;
  }
  std::vector<Value> items;
  if (const Dict* dict = value.as_dict()) {
    charge(dict->entries.size() / 4);
    for (const auto& entry : dict->entries) items.push_back(entry.first);
  } else if (const MarkedString* text = value.as_string()) {
    charge(text->size());
    for (size_t at = 0; at < text->size();) {
      const size_t end = at + character_at(text->view(), at).size;
      items.push_back(Value::string(text->part(at, end)));
      at = end;
    }
  } else if (!value.is_undefined() && !value.is_blank()) {
    throw TemplateError(fmt::format("'{}' cannot be iterated over", type_name(value)));
  }
  return items;
}

MarkedString Interpreter::text_of(const Value& value) {
  charge(4 * value.weight());
  if (const auto* missing = value.get<Undefined>(); missing != nullptr && limits_.strict) {
    throw TemplateError(missing->description ? *missing->description : "a value is undefined", line_);
  }
  return str_text(value);
}

Value Interpreter::lookup(const std::string& name) const {
  const Value* found = scope_->find(name);
  return found ? *found : Value::undefined(fmt::format("'{}' is undefined", name));
}

Value Interpreter::evaluate(const Expr& expr) {
  const DepthGuard guard(*this);
  charge(1);
  line_ = expr.line;
  return evaluate_kind(expr);
}

Value Interpreter::evaluate_kind(const Expr& expr) {
  using Kind = Expr::Kind;
  const auto child = [&](size_t i) {
    Value value = evaluate(*expr.children[i]);
    line_ = expr.line;
    return value;
  };
  switch (expr.kind) {
    case Kind::kConstant:
      return expr.value;
    case Kind::kName:
      return lookup(expr.name);
    case Kind::kList:
      return Value::list(evaluate_children(expr));
    case Kind::kTuple:
      return Value::tuple(evaluate_children(expr));
    case Kind::kDict:
      return evaluate_dict(expr);
    case Kind::kAttribute:
      return attribute(child(0), expr.name);
    case Kind::kItem: {
      const Value object = child(0);
      return item(object, child(1));
    }
    case Kind::kSlice:
      return evaluate_slice(expr);
    case Kind::kCall:
      return evaluate_call(expr);
    case Kind::kFilter: {
      const Value subject = child(0);
      return filter(expr.name, subject, evaluate_arguments(expr));
    }
    case Kind::kTest: {
      const Value subject = child(0);
      return Value::boolean(test(expr.name, subject, evaluate_arguments(expr)));
    }
    case Kind::kNot:
      return Value::boolean(!is_true(child(0)));
    case Kind::kNegate:
      return negated(child(0));
    case Kind::kPositive: {
      const Value value = child(0);
      if (!value.is_number()) negated(value);
      return value.is_bool() ? Value::integer(value.as_int()) : value;
    }
    case Kind::kBinary: {
      const Value left = child(0);
      return arithmetic(*this, expr.op, left, child(1));
    }
    case Kind::kConcat:
      return evaluate_concat(expr);
    case Kind::kAnd: {
      Value left = child(0);
      return is_true(left) ? child(1) : left;
    }
    case Kind::kOr: {
      Value left = child(0);
      return is_true(left) ? left : child(1);
    }
    case Kind::kCompare:
      return evaluate_compare(expr);
    case Kind::kConditional:
      return evaluate_conditional(expr);
    case Kind::kCaptured:
      return *captured_;
  }
  return Value();
}

std::vector<Value> Interpreter::evaluate_children(const Expr& expr, size_t first) {
  std::vector<Value> values;
  values.reserve(expr.children.size() - first);
  for (size_t i = first; i < expr.children.size(); ++i) values.push_back(evaluate(*expr.children[i]));
  return values;
}

/// Adds the entries of a dict as named arguments.
void Interpreter::unpack_dict(const Value& value, Arguments& arguments) {
  const Dict* dict = value.as_dict();
  if (!dict) throw TemplateError(fmt::format("the argument after ** is a '{}', not a dict", type_name(value)));
  charge(dict->entries.size());
  for (const auto& [key, entry] : dict->entries) {
    const MarkedString* name = key.as_string();
    if (!name) throw TemplateError("keys of the dict after ** are not all strings");
    const bool doubled = std::any_of(arguments.named.begin(), arguments.named.end(),
                                     [&](const auto& named) { return named.first == name->view(); });
    if (doubled) throw TemplateError(fmt::format("the argument '{}' is given twice", name->view()));
    arguments.named.emplace_back(std::string(name->view()), entry);
  }
}

Arguments Interpreter::evaluate_arguments(const Expr& expr) {
  Arguments arguments;
  arguments.positional = evaluate_children(expr, 1);
  for (const auto& [name, value] : expr.named) arguments.named.emplace_back(name, evaluate(*value));
  if (expr.unpacked_list) {
    for (Value& item : iterate(evaluate(*expr.unpacked_list))) arguments.positional.push_back(std::move(item));
  }
  if (expr.unpacked_dict) unpack_dict(evaluate(*expr.unpacked_dict), arguments);
  line_ = expr.line;
  return arguments;
}

Value Interpreter::evaluate_dict(const Expr& expr) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < expr.children.size(); i += 2) {
    Value key = evaluate(*expr.children[i]);
    entries.emplace_back(std::move(key), evaluate(*expr.children[i + 1]));
  }
  return Value::dict(std::move(entries));
}

Value Interpreter::evaluate_slice(const Expr& expr) {
  const Value object = evaluate(*expr.children[0]);
  Value parts[3];
  const Value* given[3] = {nullptr, nullptr, nullptr};
  for (size_t i = 0; i < 3; ++i) {
    if (!expr.children[i + 1]) continue;
    parts[i] = evaluate(*expr.children[i + 1]);
    given[i] = &parts[i];
  }
  line_ = expr.line;
  return sliced(*this, object, given[0], given[1], given[2]);
}

Value Interpreter::evaluate_call(const Expr& expr) {
  const Expr& callee = *expr.children[0];
  if (callee.kind == Expr::Kind::kAttribute) {
    const Value object = with_method(*this, evaluate(*callee.children[0]), callee.name);
    if (const Method method = find_method(object, callee.name)) {
      return method(*this, object, evaluate_arguments(expr));
    }
    line_ = expr.line;
    const Value function = attribute(object, callee.name);
    return call(function, evaluate_arguments(expr));
  }
  const Value function = evaluate(callee);
  return call(function, evaluate_arguments(expr));
}

Value Interpreter::evaluate_concat(const Expr& expr) {
  MarkedString result;
  for (const ExprPtr& child : expr.children) {
    const Value value = evaluate(*child);
    const MarkedString* text = value.as_string();
    result.append(text ? *text : text_of(value));
  }
  line_ = expr.line;
  return make_string(std::move(result));
}

bool Interpreter::compare(Operator op, const Value& left, const Value& right) {
  charge(std::min(left.weight(), right.weight()));
  switch (op) {
    case Operator::kEqual:
      return equals(left, right);
    case Operator::kNotEqual:
      return !equals(left, right);
    case Operator::kLess:
      return less_than(left, right, "<");
    case Operator::kGreater:
      return less_than(right, left, ">");
    case Operator::kLessEqual:
      return less_than(left, right, "<=") || equals(left, right);
    case Operator::kGreaterEqual:
      return less_than(right, left, ">=") || equals(left, right);
    case Operator::kIn:
      return contains(*this, right, left);
    default:
      return !contains(*this, right, left);
  }
}

Value Interpreter::evaluate_compare(const Expr& expr) {
  Value left = evaluate(*expr.children[0]);
  for (const Comparison& comparison : expr.comparisons) {
    Value right = evaluate(*comparison.operand);
    line_ = expr.line;
    if (!compare(comparison.op, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_conditional(const Expr& expr) {
  if (is_true(evaluate(*expr.children[1]))) return evaluate(*expr.children[0]);
  if (expr.children[2]) return evaluate(*expr.children[2]);
  return Value::undefined("the condition of an 'if' without 'else' is false");
}

}  // namespace hone::jinja
