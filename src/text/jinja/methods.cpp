#include "text/jinja/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "text/jinja/interpreter.h"

namespace hone::jinja {

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

}  // namespace hone::jinja
