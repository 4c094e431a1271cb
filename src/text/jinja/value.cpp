#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>

namespace hone::jinja {

namespace {

constexpr size_t kIndexedDictSize = 16;

/// Adds the depth and weight of one item to a list or dict.
template <class Container>
void add_extent(Container& container, const Value& item) {
  container.depth = std::max(container.depth, item.depth() + 1);
  container.weight += item.weight();
  if (container.depth > kMaxValueDepth) throw TemplateError("lists or dicts are nested too deep");
  if (container.weight > kMaxValueWeight) throw TemplateError("a list or dict grows too large");
}

bool hashable(const Value& value) {
  if (const List* list = value.as_list()) {
    if (list->type == List::Type::kTuple) return std::all_of(list->items.begin(), list->items.end(), hashable);
    return list->type == List::Type::kRange || list->type == List::Type::kGenerator;
  }
  return !value.as_dict();
}

bool same_items(const List& a, const List& b) {
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), equals);
}

bool same_entries(const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  return std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
    const Value* other = b.find(entry.first);
    return other && equals(entry.second, *other);
  });
}

}  // namespace

Value Value::undefined(std::string description) {
  return Value(Storage(Undefined{std::make_shared<const std::string>(std::move(description))}));
}

Value Value::string(MarkedString text) { return Value(Storage(std::make_shared<const MarkedString>(std::move(text)))); }

Value Value::list(List list) {
  list.depth = 1;
  list.weight = 1;
  for (const Value& item : list.items) add_extent(list, item);
  return Value(Storage(std::make_shared<const List>(std::move(list))));
}

Value Value::list(std::vector<Value> items) { return list(List{List::Type::kList, std::move(items)}); }
Value Value::tuple(std::vector<Value> items) { return list(List{List::Type::kTuple, std::move(items)}); }

Value Value::dict(std::vector<std::pair<Value, Value>> entries) {
  Dict dict;
  for (auto& [key, value] : entries) {
    if (!hashable(key)) throw TemplateError(fmt::format("a {} cannot be a key of a dict", type_name(key)));
    add_extent(dict, key);
    add_extent(dict, value);
    if (Value* earlier = const_cast<Value*>(dict.find(key))) {
      *earlier = std::move(value);
      continue;
    }
    dict.entries.emplace_back(std::move(key), std::move(value));
    if (const MarkedString* name = dict.entries.back().first.as_string(); name && !dict.index.empty()) {
      dict.index.emplace(name->view(), dict.entries.size() - 1);
    } else if (dict.index.empty() && dict.entries.size() > kIndexedDictSize) {
      for (size_t i = 0; i < dict.entries.size(); ++i) {
        if (const auto* text = dict.entries[i].first.as_string()) dict.index.emplace(text->view(), i);
      }
    }
  }
  return Value(Storage(std::make_shared<const Dict>(std::move(dict))));
}

Value Value::callable(Callable callable) {
  return Value(Storage(std::make_shared<const Callable>(std::move(callable))));
}

int64_t Value::as_int() const { return is_bool() ? int64_t{*get<bool>()} : *get<int64_t>(); }

double Value::as_double() const {
  if (const double* real = get<double>()) return *real;
  return static_cast<double>(as_int());
}

int Value::depth() const {
  if (const List* list = as_list()) return list->depth;
  if (const Dict* dict = as_dict()) return dict->depth;
  return 0;
}

size_t Value::weight() const {
  constexpr size_t kBytesPerStep = 32;
  if (const MarkedString* text = as_string()) return 1 + text->size() / kBytesPerStep;
  if (const List* list = as_list()) return list->weight;
  if (const Dict* dict = as_dict()) return dict->weight;
  return 1;
}

const Value* Dict::find(std::string_view key) const {
  if (!index.empty()) {
    const auto found = index.find(key);
    return found == index.end() ? nullptr : &entries[found->second].second;
  }
  for (const auto& [name, value] : entries) {
    const MarkedString* text = name.as_string();
    if (text && text->view() == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (const MarkedString* text = key.as_string()) return find(text->view());
  if (!hashable(key)) throw TemplateError(fmt::format("unhashable type: '{}'", type_name(key)));
  for (const auto& [name, value] : entries) {
    if (equals(name, key)) return &value;
  }
  return nullptr;
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [key, value] : attributes) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Namespace::set(std::string_view name, Value value) {
  for (auto& [key, old] : attributes) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  attributes.emplace_back(name, std::move(value));
}

std::vector<const Value*> Arguments::bind(std::string_view function, std::initializer_list<std::string_view> names,
                                          size_t required) const {
  if (positional.size() > names.size()) {
    throw TemplateError(
        fmt::format("{}() takes at most {} arguments, {} given", function, names.size(), positional.size()));
  }
  std::vector<const Value*> bound(names.size(), nullptr);
  for (size_t i = 0; i < positional.size(); ++i) bound[i] = &positional[i];
  for (const auto& [name, value] : named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) throw TemplateError(fmt::format("{}() has no argument '{}'", function, name));
    const Value*& slot = bound[static_cast<size_t>(found - names.begin())];
    if (slot) throw TemplateError(fmt::format("{}() got argument '{}' twice", function, name));
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!bound[i]) throw TemplateError(fmt::format("{}() needs the argument '{}'", function, names.begin()[i]));
  }
  return bound;
}

std::string_view type_name(List::Type type) {
  switch (type) {
    case List::Type::kTuple:
      return "tuple";
    case List::Type::kRange:
      return "range";
    case List::Type::kKeys:
      return "dict_keys";
    case List::Type::kValues:
      return "dict_values";
    case List::Type::kItems:
      return "dict_items";
    case List::Type::kGenerator:
      return "generator";
    default:
      return "list";
  }
}

std::string_view type_name(const Value& value) {
  if (const List* list = value.as_list()) return type_name(list->type);
  if (value.as_string()) return "str";
  if (value.as_dict()) return "dict";
  if (value.as_namespace()) return "Namespace";
  if (value.as_callable()) return "function";
  if (value.as_loop()) return "LoopContext";
  if (value.is_bool()) return "bool";
  if (value.get<int64_t>()) return "int";
  if (value.get<double>()) return "float";
  return value.is_none() ? "NoneType" : "Undefined";
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.as_double() != 0;
  if (const auto* text = value.as_string()) return !text->empty();
  if (const auto* list = value.as_list()) return list->type == List::Type::kGenerator || !list->items.empty();
  if (const auto* dict = value.as_dict()) return !dict->entries.empty();
  return true;
}

bool equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? a.as_int() == b.as_int() : a.as_double() == b.as_double();
  }
  if (a.as_string() && b.as_string()) return a.as_string()->view() == b.as_string()->view();
  if (const List* x = a.as_list(), *y = b.as_list(); x && y) {
    return x == y || (x->type == y->type && x->type != List::Type::kGenerator && same_items(*x, *y));
  }
  if (a.as_dict() && b.as_dict()) return a.as_dict() == b.as_dict() || same_entries(*a.as_dict(), *b.as_dict());
  if (a.is_undefined() || a.is_none()) return a.is_undefined() ? b.is_undefined() : b.is_none();
  if (a.as_namespace()) return a.as_namespace() == b.as_namespace();
  if (a.as_callable()) return a.as_callable() == b.as_callable();
  return a.as_loop() && a.as_loop() == b.as_loop();
}

bool less_than(const Value& a, const Value& b, std::string_view op) {
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? a.as_int() < b.as_int() : a.as_double() < b.as_double();
  }
  if (a.as_string() && b.as_string()) return a.as_string()->view() < b.as_string()->view();
  if (const List* x = a.as_list(), *y = b.as_list(); x && y && x->type == y->type && x->indexable()) {
    for (size_t i = 0; i < x->items.size() && i < y->items.size(); ++i) {
      if (!equals(x->items[i], y->items[i])) return less_than(x->items[i], y->items[i], op);
    }
    return x->items.size() < y->items.size();
  }
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  throw TemplateError(fmt::format("'{}' is not supported between '{}' and '{}'", op, type_name(a), type_name(b)));
}

void fail_undefined(const Value& value) {
  const auto& description = value.get<Undefined>()->description;
  throw TemplateError(
      description ? *description : "an undefined value is used", 0,
      "guard its use with 'is defined' or default(), or pass the value (for a variable: in chat_template_kwargs)");
}

const MarkedString& require_string(const Value& value, std::string_view what) {
  if (value.is_undefined()) fail_undefined(value);
  if (const MarkedString* text = value.as_string()) return *text;
  throw TemplateError(fmt::format("{} must be a string, not {}", what, type_name(value)));
}

int64_t require_integer(const Value& value, std::string_view what) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_integral()) return value.as_int();
  throw TemplateError(fmt::format("{} must be an integer, not {}", what, type_name(value)));
}

}  // namespace hone::jinja
