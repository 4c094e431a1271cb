#include "text/jinja/globals.h"

#include <fmt/format.h>

#include <ctime>

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

/// Entries of the one positional dict, then the named arguments.
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

}  // namespace hone::jinja
