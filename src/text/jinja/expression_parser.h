// The expressions of Jinja2's grammar.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace hone::jinja {

/// The tokens and a position in them. Errors contain the line.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  void next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool at_operator(std::string_view op) const { return current().is(Token::Type::kOperator, op); }
  bool at_name(std::string_view name) const { return current().is(Token::Type::kName, name); }
  bool skip_operator(std::string_view op);
  bool skip_name(std::string_view name);
  /// Returns the current token, which must be of `type`, and advances; `what` describes it in the error.
  const Token& expect(Token::Type type, std::string_view what);
  void expect_operator(std::string_view op);
  /// The index of the current token.
  size_t position() const { return at_; }
  /// Whether one of the tokens from `begin` to the current one is this name.
  bool names_since(size_t begin, std::string_view name) const;
  [[noreturn]] void fail(const std::string& message) const { throw TemplateError(message, current().line); }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExprPtr expression() { return conditional(); }
  /// One expression, or a tuple: several with commas. Without `with_conditional` it does not parse a following `if`.
  ExprPtr tuple(bool with_conditional = true);
  /// The target of a for or set: a name, names with commas, or (with_attribute) namespace.attribute.
  ExprPtr target(bool with_attribute = false);
  /// The filters after `set NAME` or `filter`, applied to the text of the block. `begins_with_filter`: the first filter
  /// has no '|' before it.
  ExprPtr filters_of_block(bool begins_with_filter = false);

 private:
  friend class NestingGuard;

  ExprPtr conditional();
  ExprPtr disjunction();
  ExprPtr conjunction();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters = true);
  ExprPtr primary();
  ExprPtr parenthesised();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr node);
  ExprPtr filters(ExprPtr node);
  ExprPtr one_filter(ExprPtr node);
  ExprPtr test(ExprPtr node);
  ExprPtr subscript(ExprPtr node);
  void unpacked_argument(Expr& call);
  void arguments(Expr& call);
  std::string dotted_name(std::string_view what);
  ExprPtr target_part(bool with_attribute);

  ExprPtr make(Expr::Kind kind) const;
  /// A node with `first` and more as children; computes the depth and throws for expressions that are nested too deep.
  ExprPtr make(Expr::Kind kind, ExprPtr first, ExprPtr second = nullptr) const;
  void adopt(Expr& parent, ExprPtr child) const;
  ExprPtr binary(Operator op, ExprPtr left, ExprPtr right) const;

  TokenStream& tokens_;
  int nesting_ = 0;
};

/// Counts open blocks and brackets, so a malicious template cannot overflow the stack.
class NestingGuard {
 public:
  explicit NestingGuard(ExpressionParser& parser);
  ~NestingGuard() { --parser_.nesting_; }
  NestingGuard(const NestingGuard&) = delete;
  NestingGuard& operator=(const NestingGuard&) = delete;

 private:
  ExpressionParser& parser_;
};

}  // namespace hone::jinja
