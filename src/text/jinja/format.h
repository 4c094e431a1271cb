// Python's string formatting: "%s" % values and "{}".format(values).
#pragma once

#include "text/jinja/value.h"

namespace hone::jinja {

class Interpreter;

/// format % values, where values is one value, a tuple or (for %(name)s) a dict.
Value percent_format(Interpreter& interpreter, const MarkedString& format, const Value& values);

/// format.format(arguments): {} {0} {name} with a format specification; attributes in fields are refused.
Value brace_format(Interpreter& interpreter, const MarkedString& format, const Arguments& arguments);

}  // namespace hone::jinja
