// A parsed Jinja template, which can be rendered many times; thread-safe.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "text/jinja/ast.h"
#include "text/jinja/interpreter.h"

namespace hone::jinja {

/// The error of a template that takes too many steps. It would be slow for every conversation, so code that tries
/// whether a template accepts messages passes it on.
struct OutOfSteps : UserError {
  explicit OutOfSteps(const UserError& error) : UserError(error) {}
};

class Template {
 public:
  /// Parses `source`. `name` (a file) is used in errors, which are UserErrors with "name:line".
  Template(std::string_view source, std::string name);

  /// The output for the variables `context`. Values with a source keep it in the runs of the output. Every error of a
  /// template, endless loops (OutOfSteps) and endless output included, is a UserError "chat template: ..." with
  /// "name:line". `now`
  /// is the time for strftime_now(); default: the present.
  MarkedString render(std::vector<std::pair<std::string, Value>> context, const Limits& limits = {},
                      std::optional<std::time_t> now = {}) const;

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  Block block_;
};

}  // namespace hone::jinja
