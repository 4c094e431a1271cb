// The values of a template: Python's, as far as Jinja templates use them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/marked_string.h"

namespace hone::jinja {

class Interpreter;
class Value;
struct List;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

/// An error in a template. `line` is 0 until the line is known; Template converts it to a UserError.
struct TemplateError : std::runtime_error {
  explicit TemplateError(const std::string& message, int at_line = 0, std::string how_to_fix = {})
      : std::runtime_error(message), line(at_line), fix(std::move(how_to_fix)) {}
  int line;
  std::string fix;
  bool out_of_steps = false;
};

/// A missing value; using it throws an error with its description.
struct Undefined {
  std::shared_ptr<const std::string> description;
};
/// None. A blank one is a message's missing content: `is none` holds, and wherever a text is read it is the empty text,
/// so it is never written as the word None.
struct None {
  bool blank = false;
};

/// One value. Strings, lists and dicts are immutable and shared; a copy is cheap.
class Value {
 public:
  using Storage = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const MarkedString>,
                               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                               std::shared_ptr<const Callable>, std::shared_ptr<Loop>>;

  Value() : data_(Undefined{}) {}
  static Value undefined(std::string description);
  static Value none() { return Value(Storage(None{})); }
  static Value blank() { return Value(Storage(None{true})); }
  static Value boolean(bool b) { return Value(Storage(b)); }
  static Value integer(int64_t i) { return Value(Storage(i)); }
  static Value real(double d) { return Value(Storage(d)); }
  static Value string(MarkedString text);
  static Value string(std::string text) { return string(MarkedString(std::move(text))); }
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value list(List list);
  static Value dict(std::vector<std::pair<Value, Value>> entries);
  static Value callable(Callable callable);
  static Value of(std::shared_ptr<Namespace> ns) { return Value(Storage(std::move(ns))); }
  static Value of(std::shared_ptr<Loop> loop) { return Value(Storage(std::move(loop))); }

  /// The same value with the input `source` as provenance.
  Value with_source(SourceId source) const {
    Value copy = *this;
    copy.source_ = source;
    return copy;
  }
  SourceId source() const { return source_; }

  /// The same list or dict, which is its JSON wherever a text is read: in output, joined to texts, in methods of texts.
  Value as_json_text() const {
    Value copy = *this;
    copy.is_json_text_ = true;
    return copy;
  }
  bool is_json_text() const { return is_json_text_; }

  template <class T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return get<Undefined>() != nullptr; }
  bool is_none() const { return get<None>() != nullptr; }
  bool is_blank() const { return is_none() && get<None>()->blank; }
  /// Neither a text nor printed as Python prints it: see blank() and as_json_text().
  bool stands_for_text() const { return is_blank() || is_json_text_; }
  bool is_bool() const { return get<bool>() != nullptr; }
  /// bool is a number, as in Python.
  bool is_number() const { return is_bool() || get<int64_t>() || get<double>(); }
  bool is_integral() const { return is_bool() || get<int64_t>(); }
  const MarkedString* as_string() const { return pointee<std::shared_ptr<const MarkedString>>(); }
  const List* as_list() const { return pointee<std::shared_ptr<const List>>(); }
  const Dict* as_dict() const { return pointee<std::shared_ptr<const Dict>>(); }
  Namespace* as_namespace() const { return pointee<std::shared_ptr<Namespace>>(); }
  const Callable* as_callable() const { return pointee<std::shared_ptr<const Callable>>(); }
  Loop* as_loop() const { return pointee<std::shared_ptr<Loop>>(); }
  /// bool or int as int64 (is_integral() holds).
  int64_t as_int() const;
  /// Any number as double (is_number() holds).
  double as_double() const;

  /// Depth of lists and dicts in this value; limited, so recursion over values is safe.
  int depth() const;
  /// Steps of a walk over the whole value (shared parts count each time); limited too.
  size_t weight() const;

 private:
  explicit Value(Storage data) : data_(std::move(data)) {}
  template <class P>
  auto pointee() const -> typename P::element_type* {
    const P* pointer = std::get_if<P>(&data_);
    return pointer ? pointer->get() : nullptr;
  }

  Storage data_;
  SourceId source_ = 0;
  bool is_json_text_ = false;
};

/// The largest depth of lists and dicts, and the largest weight; making a value beyond them throws.
constexpr int kMaxValueDepth = 200;
constexpr size_t kMaxValueWeight = 50'000'000;

/// An ordered sequence. The types differ as in Python.
struct List {
  enum class Type { kList, kTuple, kRange, kKeys, kValues, kItems, kGenerator };
  Type type = Type::kList;
  std::vector<Value> items;
  int depth = 1;
  size_t weight = 1;
  int64_t stop = 0;               ///< the stop argument of a range, for repr()
  mutable bool consumed = false;  ///< a generator gives its items once

  bool indexable() const { return type == Type::kList || type == Type::kTuple || type == Type::kRange; }
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  std::unordered_map<std::string_view, size_t> index;  ///< finds string keys; only in large dicts
  int depth = 1;
  size_t weight = 1;

  /// The value of `key`, or null. Throws for an unhashable key (list, dict).
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
};

/// The only mutable object: namespace().
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;

  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

/// Arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  /// The arguments in the order of `names`, null for a missing one. Throws for unknown or duplicate names, too many
  /// arguments, and fewer than `required`.
  std::vector<const Value*> bind(std::string_view function, std::initializer_list<std::string_view> names,
                                 size_t required = 0) const;
};

/// Whether an optional argument was passed and is not None.
inline bool given(const Value* argument) { return argument && !argument->is_none(); }

struct Callable {
  std::string name;
  std::function<Value(Interpreter&, const Arguments&)> call;
};

/// The variable `loop` of a for statement.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
  int depth = 1;
};

/// Python's name of the type: str, int, NoneType, ...
std::string_view type_name(const Value& value);
std::string_view type_name(List::Type type);

/// Truth as in Python. Undefined is false.
bool is_true(const Value& value);

/// ==, deep, 1 == 1.0 == true.
bool equals(const Value& a, const Value& b);

/// < for numbers, strings and lists of one type; throws for anything else.
bool less_than(const Value& a, const Value& b, std::string_view op = "<");

/// Throws the error for the use of a missing value.
[[noreturn]] void fail_undefined(const Value& value);

/// The string, or an error that contains `what`.
const MarkedString& require_string(const Value& value, std::string_view what);
int64_t require_integer(const Value& value, std::string_view what);

}  // namespace hone::jinja
