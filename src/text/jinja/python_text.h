// Formats values as Python's str(), repr() and json.dumps() do.
#pragma once

#include <optional>
#include <string>

#include "text/jinja/value.h"

namespace hone::jinja {

/// repr(float): the shortest digits that give the same number; 1.0, 1e+16, nan, -inf.
std::string float_text(double value);

/// str(value), with the provenance of the strings in it. Undefined and blank values give "", as_json_text() its JSON.
MarkedString str_text(const Value& value);

/// repr(value), with the provenance of the strings in it.
MarkedString repr_text(const Value& value);

/// Keyword arguments of json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  ///< indentation of one level; none: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

/// json.dumps(value), with the provenance of the strings in it; blank members of dicts are left out. Throws for values
/// without a JSON form.
MarkedString json_text(const Value& value, const JsonStyle& style);

// Python's string formatting: "%s" % values and "{}".format(values).

class Interpreter;

/// format % values; values is one value, a tuple or (for %(name)s) a dict.
Value percent_format(Interpreter& interpreter, const MarkedString& format, const Value& values);

/// format.format(arguments): {} {0} {name} with a format specification; throws for attributes in fields.
Value brace_format(Interpreter& interpreter, const MarkedString& format, const Arguments& arguments);

}  // namespace hone::jinja
