// A parsed Jinja template that can be rendered many times, from many threads.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/interpreter.h"

namespace hone::jinja {

class Template {
 public:
  /// Parses `source`. `name` (a file) stands in errors, which are UserError with "name:line".
  Template(std::string_view source, std::string name);

  /// Output for the variables `context`. Values with a source keep it in the output's runs. Whatever a template does
  /// wrong, also endless loops and endless output, is a UserError "chat template: ..." with "name:line".
  /// `now` is what strftime_now() shows; the present if absent.
  MarkedString render(std::vector<std::pair<std::string, Value>> context, const Limits& limits = {},
                      std::optional<std::time_t> now = {}) const;

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  Block block_;
};

}  // namespace hone::jinja
