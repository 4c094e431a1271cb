// Patterns over parameter and module names, for LoRA targets, freezing and weight-decay groups.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace hone {

/// One pattern of a config:
///   re:EXPRESSION     a regular expression (PCRE2) that must match somewhere in the name
///   a*b, a?c, [xy]    a shell glob over the whole name ('*' also matches dots)
///   q_proj            otherwise: a name, or the end of one at a dot ("self_attn.q_proj")
/// A name is tried with and without a final ".weight".
class Pattern {
 public:
  /// Throws UserError for a regular expression that does not compile.
  explicit Pattern(std::string text);

  /// UserError for a regular expression that takes too long.
  bool matches(std::string_view name) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::function<bool(const std::string&)> test_;
};

/// A weight's name without a final ".weight": that of its module.
std::string_view without_weight(std::string_view name);

/// The pattern of an expression that must match a whole name, as PEFT's do: "re:^(?:EXPRESSION)$"; and the expression
/// of such a pattern, none of others.
std::string whole_name_pattern(std::string_view expression);
std::optional<std::string> whole_name_expression_of(std::string_view pattern);

}  // namespace hone
