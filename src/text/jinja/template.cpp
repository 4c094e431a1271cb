#include "text/jinja/template.h"

#include <fmt/format.h>

#include "core/error.h"
#include "text/jinja/parser.h"

namespace hone::jinja {

namespace {

constexpr size_t kMaxTemplateSize = 4 * 1024 * 1024;

[[noreturn]] void rethrow(const TemplateError& error, const std::string& name, std::string_view default_fix) {
  throw UserError(fmt::format("chat template: {}", error.what()), fmt::format("{}:{}", name, error.line),
                  error.fix.empty() ? std::string(default_fix) : error.fix);
}

}  // namespace

Template::Template(std::string_view source, std::string name) : name_(std::move(name)) {
  if (source.size() > kMaxTemplateSize) {
    throw UserError(fmt::format("chat template: {} bytes are too many (at most {})", source.size(), kMaxTemplateSize),
                    name_, "give a chat template, not data");
  }
  try {
    block_ = parse(source);
  } catch (const TemplateError& error) {
    rethrow(error, name_, "correct the template; Jinja2 with the settings of Hugging Face's chat templates is read");
  }
}

MarkedString Template::render(std::vector<std::pair<std::string, Value>> context, const Limits& limits,
                              std::optional<std::time_t> now) const {
  Interpreter interpreter(limits, now);
  try {
    return interpreter.render(block_, std::move(context));
  } catch (const TemplateError& error) {
    rethrow(error, name_, "correct the template, or give the messages and variables that it expects");
  }
}

}  // namespace hone::jinja
