#include "params/pattern.h"

#include <fnmatch.h>

#include <memory>

#include "params/name_expression.h"

namespace hone {

namespace {

constexpr std::string_view kWholeNameBegin = "re:^(?:", kWholeNameEnd = ")$";

}  // namespace

std::string_view without_weight(std::string_view name) {
  constexpr std::string_view kEnd = ".weight";
  return name.ends_with(kEnd) ? name.substr(0, name.size() - kEnd.size()) : name;
}

Pattern::Pattern(std::string text) : text_(std::move(text)) {
  if (text_.starts_with("re:")) {
    const auto expression =
        std::make_shared<NameExpression>(text_.substr(3), NameExpression::Must::kBeginAnywhere, text_);
    test_ = [expression](const std::string& name) { return expression->matches(name); };
  } else if (text_.find_first_of("*?[") != std::string::npos) {
    test_ = [glob = text_](const std::string& name) { return fnmatch(glob.c_str(), name.c_str(), 0) == 0; };
  } else {
    test_ = [end = text_](const std::string& name) {
      return name == end || (name.ends_with(end) && name[name.size() - end.size() - 1] == '.');
    };
  }
}

bool Pattern::matches(std::string_view name) const {
  return test_(std::string(name)) || test_(std::string(without_weight(name)));
}

std::string whole_name_pattern(std::string_view expression) {
  return std::string(kWholeNameBegin).append(expression).append(kWholeNameEnd);
}

std::optional<std::string> whole_name_expression_of(std::string_view pattern) {
  if (!pattern.starts_with(kWholeNameBegin) || !pattern.ends_with(kWholeNameEnd)) return std::nullopt;
  pattern.remove_prefix(kWholeNameBegin.size());
  pattern.remove_suffix(kWholeNameEnd.size());
  return std::string(pattern);
}

}  // namespace hone
