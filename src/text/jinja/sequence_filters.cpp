#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "text/jinja/arithmetic.h"
#include "text/jinja/characters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/marked_string.h"

namespace hone::jinja {

namespace {

using Interp = Interpreter;
using Args = Arguments;
using Items = std::vector<Value>;

Value generator(Items items) { return Value::list(List{List::Type::kGenerator, std::move(items)}); }

/// The member of `item` at the path `attribute` (a.0.b), as in the `attribute` argument of filters; without one, the
/// item itself.
Value attribute_of(Interp& interp, Value item, const Value* attribute) {
  if (!given(attribute)) return item;
  if (attribute->is_integral()) return interp.item(item, *attribute);
  const std::string_view path = require_string(*attribute, "the attribute").view();
  const std::string_view dot = ".";
  for (const Piece& piece : split(path, &dot, -1, false)) {
    const std::string_view name = path.substr(piece.begin, piece.end - piece.begin);
    const bool is_index = !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
    const auto index = is_index ? parse_int(name, 10) : std::nullopt;
    item = interp.item(item, index ? Value::integer(*index) : Value::string(std::string(name)));
  }
  return item;
}

Value length(Interp&, const Value& subject, const Args& args) {
  args.bind("length", {});
  const auto integer = [](size_t size) { return Value::integer(static_cast<int64_t>(size)); };
  if (const MarkedString* text = subject.as_string()) return integer(count_characters(text->view()));
  if (const Dict* dict = subject.as_dict()) return integer(dict->entries.size());
  if (const Loop* loop = subject.as_loop()) return integer(loop->items->items.size());
  if (subject.is_undefined() || subject.is_blank()) return integer(0);
  const List* list = subject.as_list();
  if (!list || list->type == List::Type::kGenerator) {
    throw TemplateError(fmt::format("a '{}' has no length", type_name(subject)));
  }
  return integer(list->items.size());
}

Value default_value(Interp&, const Value& subject, const Args& args) {
  const auto bound = args.bind("default", {"default_value", "boolean"});
  const bool replaces = subject.is_undefined() || (bound[1] && is_true(*bound[1]) && !is_true(subject));
  if (!replaces) return subject;
  return bound[0] ? *bound[0] : Value::string(MarkedString());
}

template <bool kLast>
Value end_item(Interp& interp, const Value& subject, const Args& args) {
  args.bind(kLast ? "last" : "first", {});
  const auto items = interp.iterate(subject);
  if (items.empty()) return Value::undefined("an empty sequence has no first or last item");
  return kLast ? items.back() : items.front();
}

Value list(Interp& interp, const Value& subject, const Args& args) {
  args.bind("list", {});
  return Value::list(interp.iterate(subject));
}

Items entries_of(const Value& subject) {
  Items entries;
  if (subject.is_undefined()) return entries;
  if (!subject.as_dict()) throw TemplateError(fmt::format("a '{}' has no key-value pairs", type_name(subject)));
  for (const auto& [key, value] : subject.as_dict()->entries) entries.push_back(Value::tuple({key, value}));
  return entries;
}

Value items_filter(Interp& interp, const Value& subject, const Args& args) {
  args.bind("items", {});
  interp.charge(subject.as_dict() ? subject.as_dict()->entries.size() : 1);
  return generator(entries_of(subject));
}

Value folded(const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.as_string()) return value;
  return Value::string(with_case(*value.as_string(), Case::kLower));
}

/// `items` sorted by `keys`, stable.
Items sorted(Interp& interp, const Items& items, const Items& keys, bool reverse) {
  constexpr size_t kComparisons = 16;
  size_t weight = 1;
  for (const Value& key : keys) weight += key.weight();
  interp.charge(kComparisons * weight);
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? less_than(keys[b], keys[a]) : less_than(keys[a], keys[b]);
  });
  Items result;
  for (size_t i : order) result.push_back(items[i]);
  return result;
}

Value dictsort(Interp& interp, const Value& subject, const Args& args) {
  const auto bound = args.bind("dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = bound[1] ? require_string(*bound[1], "the order of dictsort").text() : "key";
  if (by != "key" && by != "value") throw TemplateError("dictsort: by must be 'key' or 'value'");
  if (subject.is_undefined()) fail_undefined(subject);
  const Items entries = entries_of(subject);
  Items keys;
  for (const Value& entry : entries) {
    keys.push_back(folded(entry.as_list()->items[by == "key" ? 0 : 1], bound[0] && is_true(*bound[0])));
  }
  return Value::list(sorted(interp, entries, keys, bound[2] && is_true(*bound[2])));
}

Value sort(Interp& interp, const Value& subject, const Args& args) {
  const auto bound = args.bind("sort", {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = bound[1] && is_true(*bound[1]);
  const auto values = interp.iterate(subject);
  const std::string_view comma = ",";
  std::vector<Value> attributes;
  if (bound[2] && bound[2]->as_string()) {
    const MarkedString& names = *bound[2]->as_string();
    for (const Piece& p : split(names.view(), &comma, -1, false)) {
      attributes.push_back(Value::string(names.part(p.begin, p.end)));
    }
  } else if (given(bound[2])) {
    attributes.push_back(*bound[2]);
  }
  Items keys;
  for (const Value& item : values) {
    Items key;
    for (const Value& attribute : attributes) {
      key.push_back(folded(attribute_of(interp, item, &attribute), case_sensitive));
    }
    keys.push_back(attributes.empty() ? folded(item, case_sensitive) : Value::list(std::move(key)));
  }
  return Value::list(sorted(interp, values, keys, bound[0] && is_true(*bound[0])));
}

Value unique(Interp& interp, const Value& subject, const Args& args) {
  const auto bound = args.bind("unique", {"case_sensitive", "attribute"});
  Items seen, kept;
  for (const Value& item : interp.iterate(subject)) {
    Value key = folded(attribute_of(interp, item, bound[1]), bound[0] && is_true(*bound[0]));
    interp.charge(seen.size() + key.weight());
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& v) { return equals(v, key); })) continue;
    seen.push_back(std::move(key));
    kept.push_back(item);
  }
  return generator(std::move(kept));
}

Value reverse(Interp& interp, const Value& subject, const Args& args) {
  args.bind("reverse", {});
  if (subject.as_string()) {
    const Value step = Value::integer(-1);
    return sliced(interp, subject, nullptr, nullptr, &step);
  }
  Items items = interp.iterate(subject);
  std::reverse(items.begin(), items.end());
  return generator(std::move(items));
}

Value join_filter(Interp& interp, const Value& subject, const Args& args) {
  const auto bound = args.bind("join", {"d", "attribute"});
  const MarkedString separator = bound[0] ? interp.text_of(*bound[0]) : MarkedString();
  MarkedString result;
  bool first = true;
  for (const Value& item : interp.iterate(subject)) {
    if (!std::exchange(first, false)) result.append(separator);
    interp.charge(1 + separator.size() / 32);
    result.append(interp.text_of(attribute_of(interp, item, bound[1])));
  }
  return interp.make_string(std::move(result));
}

Value sum(Interp& interp, const Value& subject, const Args& args) {
  const auto bound = args.bind("sum", {"attribute", "start"});
  Value total = bound[1] ? *bound[1] : Value::integer(0);
  for (const Value& item : interp.iterate(subject)) {
    total = arithmetic(interp, Operator::kAdd, total, attribute_of(interp, item, bound[0]));
  }
  return total;
}

template <bool kMax>
Value extreme(Interp& interp, const Value& subject, const Args& args) {
  const auto bound = args.bind(kMax ? "max" : "min", {"case_sensitive", "attribute"});
  const auto values = interp.iterate(subject);
  Value best = Value::undefined("an empty sequence has no minimum or maximum"), best_key;
  bool first = true;
  for (const Value& item : values) {
    Value key = folded(attribute_of(interp, item, bound[1]), bound[0] && is_true(*bound[0]));
    interp.charge(key.weight());
    if (!std::exchange(first, false) && !(kMax ? less_than(best_key, key) : less_than(key, best_key))) continue;
    best = item;
    best_key = std::move(key);
  }
  return best;
}

/// The arguments after the first `count`, with the named ones.
Args rest_of(const Args& args, size_t count) {
  Args rest;
  for (size_t i = count; i < args.positional.size(); ++i) rest.positional.push_back(args.positional[i]);
  rest.named = args.named;
  return rest;
}

Value map_attribute(Interp& interp, const Value& subject, const Args& args) {
  const auto bound = args.bind("map", {"attribute", "default"}, 1);
  Items results;
  for (const Value& item : interp.iterate(subject)) {
    Value value = attribute_of(interp, item, bound[0]);
    results.push_back(value.is_undefined() && given(bound[1]) ? *bound[1] : std::move(value));
    interp.charge(1);
  }
  return generator(std::move(results));
}

Value map(Interp& interp, const Value& subject, const Args& args) {
  if (!is_true(subject)) return generator({});
  if (args.positional.empty()) return map_attribute(interp, subject, args);
  const std::string_view name = require_string(args.positional[0], "the filter of map").view();
  const Args rest = rest_of(args, 1);
  Items results;
  for (const Value& item : interp.iterate(subject)) {
    interp.charge(1);
    results.push_back(interp.filter(name, item, rest));
  }
  return generator(std::move(results));
}

/// select, reject, selectattr, rejectattr: keeps the items whose test gives `kWanted`.
template <bool kAttribute, bool kWanted>
Value choose(Interp& interp, const Value& subject, const Args& args) {
  if (!is_true(subject)) return generator({});
  const size_t test_at = kAttribute ? 1 : 0;
  if (args.positional.size() < test_at) throw TemplateError("the filter needs the name of an attribute");
  const bool has_test = args.positional.size() > test_at;
  const Args rest = rest_of(args, test_at + 1);
  Items kept;
  for (const Value& item : interp.iterate(subject)) {
    interp.charge(1);
    const Value value = kAttribute ? attribute_of(interp, item, &args.positional[0]) : item;
    const bool holds = has_test ? interp.test(require_string(args.positional[test_at], "the test").view(), value, rest)
                                : is_true(value);
    if (holds == kWanted) kept.push_back(item);
  }
  return generator(std::move(kept));
}

Value attribute(Interp& interp, const Value& subject, const Args& args) {
  const auto bound = args.bind("attr", {"name"}, 1);
  const MarkedString& name = require_string(*bound[0], "the name of attr");
  if (subject.as_dict() && subject.as_dict()->find(name.view())) {
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name.text()));
  }
  return interp.attribute(subject, name.view());
}

}  // namespace

Filter find_sequence_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> kFilters = {
      {"length", length},
      {"count", length},
      {"default", default_value},
      {"d", default_value},
      {"first", end_item<false>},
      {"last", end_item<true>},
      {"list", list},
      {"items", items_filter},
      {"dictsort", dictsort},
      {"sort", sort},
      {"unique", unique},
      {"reverse", reverse},
      {"join", join_filter},
      {"sum", sum},
      {"min", extreme<false>},
      {"max", extreme<true>},
      {"map", map},
      {"select", choose<false, true>},
      {"reject", choose<false, false>},
      {"selectattr", choose<true, true>},
      {"rejectattr", choose<true, false>},
      {"attr", attribute},
  };
  const auto found = kFilters.find(name);
  return found == kFilters.end() ? nullptr : found->second;
}

Filter find_filter(std::string_view name) {
  const Filter filter = find_text_filter(name);
  return filter ? filter : find_sequence_filter(name);
}

}  // namespace hone::jinja
