// Splits a template into tokens, with Jinja's rules for white space around tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hone::jinja {

struct Token {
  enum class Type {
    kData,           ///< text outside of tags
    kBlockBegin,     ///< {%
    kBlockEnd,       ///< %}
    kVariableBegin,  ///< {{
    kVariableEnd,    ///< }}
    kName,
    kString,  ///< text: the decoded characters
    kInteger,
    kFloat,
    kOperator,
    kEnd,  ///< end of the template
  };
  Type type;
  std::string text;
  int line;

  bool is(Type t, std::string_view value) const { return type == t && text == value; }
};

/// The tokens of `source`, as Jinja splits it with trim_blocks and lstrip_blocks on and keep_trailing_newline off,
/// without comments and raw tags. Line ends are \n. The last token is kEnd. Throws TemplateError with the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace hone::jinja
