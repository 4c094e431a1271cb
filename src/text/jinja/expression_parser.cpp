#include "text/jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace hone::jinja {

namespace {

using Kind = Expr::Kind;
using Type = Token::Type;

constexpr int kMaxNesting = 200;
constexpr int kMaxExpressionDepth = 400;

std::string shown(const Token& token) {
  switch (token.type) {
    case Type::kEnd:
      return "the end of the template";
    case Type::kBlockBegin:
      return "'{%'";
    case Type::kBlockEnd:
      return "'%}'";
    case Type::kVariableBegin:
      return "'{{'";
    case Type::kVariableEnd:
      return "'}}'";
    case Type::kData:
      return "text";
    case Type::kString:
      return fmt::format("the string '{}'", token.text.substr(0, 40));
    default:
      return fmt::format("'{}'", token.text);
  }
}

Value integer_constant(const Token& token) {
  std::string_view digits = token.text;
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0') {
    const char mark = digits[1];
    base = mark == 'x' || mark == 'X' ? 16 : mark == 'o' || mark == 'O' ? 8 : mark == 'b' || mark == 'B' ? 2 : 10;
    if (base != 10) digits.remove_prefix(2);
  }
  int64_t value = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), value, base).ec != std::errc()) {
    throw TemplateError(fmt::format("the integer {} is too large", token.text), token.line);
  }
  return Value::integer(value);
}

Value float_constant(const Token& token) {
  double value = 0;
  const auto& digits = token.text;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec == std::errc::invalid_argument) {
    throw TemplateError(fmt::format("'{}' is not a number", digits), token.line);
  }
  return Value::real(value);
}

bool ends_tuple(const Token& token) {
  return token.type == Type::kVariableEnd || token.type == Type::kBlockEnd || token.type == Type::kEnd ||
         token.is(Type::kOperator, ")") || token.is(Type::kOperator, "=") || token.is(Type::kName, "in");
}

}  // namespace

bool TokenStream::skip_operator(std::string_view op) {
  if (!at_operator(op)) return false;
  next();
  return true;
}

bool TokenStream::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  next();
  return true;
}

const Token& TokenStream::expect(Type type, std::string_view what) {
  const Token& token = current();
  if (token.type != type) fail(fmt::format("expected {}, found {}", what, shown(token)));
  next();
  return token;
}

void TokenStream::expect_operator(std::string_view op) {
  if (!skip_operator(op)) fail(fmt::format("expected '{}', found {}", op, shown(current())));
}

NestingGuard::NestingGuard(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.nesting_ > kMaxNesting) {
    --parser_.nesting_;
    parser_.tokens_.fail("blocks or brackets are nested too deep");
  }
}

ExprPtr ExpressionParser::make(Kind kind) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = tokens_.current().line;
  return node;
}

ExprPtr ExpressionParser::make(Kind kind, ExprPtr first, ExprPtr second) const {
  ExprPtr node = make(kind);
  node->line = first->line;
  adopt(*node, std::move(first));
  if (second) adopt(*node, std::move(second));
  return node;
}

void ExpressionParser::adopt(Expr& parent, ExprPtr child) const {
  if (child) {
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxExpressionDepth) tokens_.fail("an expression is nested too deep");
  }
  parent.children.push_back(std::move(child));
}

ExprPtr ExpressionParser::binary(Operator op, ExprPtr left, ExprPtr right) const {
  ExprPtr node = make(Kind::kBinary, std::move(left), std::move(right));
  node->op = op;
  return node;
}

ExprPtr ExpressionParser::tuple(bool with_conditional) {
  const auto item = [&] { return with_conditional ? conditional() : disjunction(); };
  ExprPtr first = item();
  if (!tokens_.at_operator(",")) return first;
  ExprPtr node = make(Kind::kTuple, std::move(first));
  while (tokens_.skip_operator(",")) {
    if (ends_tuple(tokens_.current())) break;
    adopt(*node, item());
  }
  return node;
}

ExprPtr ExpressionParser::target(bool with_attribute) {
  ExprPtr first = target_part(with_attribute);
  if (!tokens_.at_operator(",")) return first;
  ExprPtr node = make(Kind::kTuple, std::move(first));
  while (tokens_.skip_operator(",")) {
    if (ends_tuple(tokens_.current())) break;
    adopt(*node, target_part(with_attribute));
  }
  return node;
}

ExprPtr ExpressionParser::target_part(bool with_attribute) {
  if (tokens_.skip_operator("(")) {
    const NestingGuard guard(*this);
    ExprPtr inner = target(with_attribute);
    tokens_.expect_operator(")");
    return inner;
  }
  ExprPtr node = make(Kind::kName);
  node->name = tokens_.expect(Type::kName, "a name to assign to").text;
  static constexpr std::array<std::string_view, 6> kReserved = {"true", "false", "none", "True", "False", "None"};
  for (auto reserved : kReserved) {
    if (node->name == reserved) tokens_.fail(fmt::format("cannot assign to '{}'", reserved));
  }
  if (with_attribute && tokens_.skip_operator(".")) {
    node = make(Kind::kAttribute, std::move(node));
    node->name = tokens_.expect(Type::kName, "an attribute").text;
  }
  return node;
}

ExprPtr ExpressionParser::filters_of_block(bool begins_with_filter) {
  ExprPtr node = make(Kind::kCaptured);
  if (begins_with_filter) node = one_filter(std::move(node));
  while (tokens_.skip_operator("|")) node = one_filter(std::move(node));
  return node;
}

ExprPtr ExpressionParser::conditional() {
  const NestingGuard guard(*this);
  ExprPtr node = disjunction();
  while (tokens_.skip_name("if")) {
    ExprPtr condition = disjunction();
    node = make(Kind::kConditional, std::move(node), std::move(condition));
    adopt(*node, tokens_.skip_name("else") ? conditional() : nullptr);
  }
  return node;
}

ExprPtr ExpressionParser::disjunction() {
  ExprPtr node = conjunction();
  while (tokens_.skip_name("or")) node = make(Kind::kOr, std::move(node), conjunction());
  return node;
}

ExprPtr ExpressionParser::conjunction() {
  ExprPtr node = negation();
  while (tokens_.skip_name("and")) node = make(Kind::kAnd, std::move(node), negation());
  return node;
}

ExprPtr ExpressionParser::negation() {
  if (!tokens_.skip_name("not")) return comparison();
  const NestingGuard guard(*this);
  return make(Kind::kNot, negation());
}

ExprPtr ExpressionParser::comparison() {
  static constexpr std::array<std::pair<std::string_view, Operator>, 6> kOperators = {{
      {"==", Operator::kEqual},
      {"!=", Operator::kNotEqual},
      {"<", Operator::kLess},
      {"<=", Operator::kLessEqual},
      {">", Operator::kGreater},
      {">=", Operator::kGreaterEqual},
  }};
  ExprPtr first = sum();
  ExprPtr node;
  const auto add = [&](Operator op) {
    if (!node) node = make(Kind::kCompare, std::move(first));
    ExprPtr operand = sum();
    node->depth = std::max(node->depth, operand->depth + 1);
    node->comparisons.push_back({op, std::move(operand)});
  };
  while (true) {
    bool found = false;
    for (const auto& [text, op] : kOperators) {
      if (!found && tokens_.skip_operator(text)) {
        add(op);
        found = true;
      }
    }
    if (found) continue;
    if (tokens_.skip_name("in")) {
      add(Operator::kIn);
    } else if (tokens_.at_name("not") && tokens_.ahead().is(Type::kName, "in")) {
      tokens_.next();
      tokens_.next();
      add(Operator::kNotIn);
    } else {
      return node ? std::move(node) : std::move(first);
    }
  }
}

ExprPtr ExpressionParser::sum() {
  ExprPtr node = concatenation();
  while (true) {
    if (tokens_.skip_operator("+")) {
      node = binary(Operator::kAdd, std::move(node), concatenation());
    } else if (tokens_.skip_operator("-")) {
      node = binary(Operator::kSubtract, std::move(node), concatenation());
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::concatenation() {
  ExprPtr first = product();
  if (!tokens_.at_operator("~")) return first;
  ExprPtr node = make(Kind::kConcat, std::move(first));
  while (tokens_.skip_operator("~")) adopt(*node, product());
  return node;
}

ExprPtr ExpressionParser::product() {
  static constexpr std::array<std::pair<std::string_view, Operator>, 4> kOperators = {{
      {"*", Operator::kMultiply},
      {"/", Operator::kDivide},
      {"//", Operator::kFloorDivide},
      {"%", Operator::kModulo},
  }};
  ExprPtr node = power();
  while (true) {
    const auto* found = kOperators.begin();
    while (found != kOperators.end() && !tokens_.skip_operator(found->first)) ++found;
    if (found == kOperators.end()) return node;
    node = binary(found->second, std::move(node), power());
  }
}

ExprPtr ExpressionParser::power() {
  ExprPtr node = unary();
  while (tokens_.skip_operator("**")) node = binary(Operator::kPower, std::move(node), unary());
  return node;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  const NestingGuard guard(*this);
  ExprPtr node;
  if (tokens_.skip_operator("-")) {
    node = make(Kind::kNegate, unary(false));
  } else if (tokens_.skip_operator("+")) {
    node = make(Kind::kPositive, unary(false));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filters ? filters(std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::primary() {
  const Token& token = tokens_.current();
  ExprPtr node = make(Kind::kConstant);
  if (token.type == Type::kName) {
    if (token.text == "true" || token.text == "True") {
      node->value = Value::boolean(true);
    } else if (token.text == "false" || token.text == "False") {
      node->value = Value::boolean(false);
    } else if (token.text == "none" || token.text == "None") {
      node->value = Value::none();
    } else {
      node->kind = Kind::kName;
      node->name = token.text;
    }
    tokens_.next();
    return node;
  }
  if (token.type == Type::kString) {
    std::string text;
    for (; tokens_.current().type == Type::kString; tokens_.next()) text += tokens_.current().text;
    node->value = Value::string(std::move(text));
    return node;
  }
  if (token.type == Type::kInteger || token.type == Type::kFloat) {
    node->value = token.type == Type::kInteger ? integer_constant(token) : float_constant(token);
    tokens_.next();
    return node;
  }
  if (tokens_.skip_operator("(")) return parenthesised();
  if (tokens_.skip_operator("[")) return list();
  if (tokens_.skip_operator("{")) return dict();
  tokens_.fail(fmt::format("expected an expression, found {}", shown(token)));
}

ExprPtr ExpressionParser::parenthesised() {
  if (tokens_.skip_operator(")")) return make(Kind::kTuple);
  ExprPtr node = tuple();
  tokens_.expect_operator(")");
  return node;
}

ExprPtr ExpressionParser::list() {
  ExprPtr node = make(Kind::kList);
  while (!tokens_.skip_operator("]")) {
    if (!node->children.empty()) {
      tokens_.expect_operator(",");
      if (tokens_.skip_operator("]")) break;
    }
    adopt(*node, conditional());
  }
  return node;
}

ExprPtr ExpressionParser::dict() {
  ExprPtr node = make(Kind::kDict);
  while (!tokens_.skip_operator("}")) {
    if (!node->children.empty()) {
      tokens_.expect_operator(",");
      if (tokens_.skip_operator("}")) break;
    }
    adopt(*node, conditional());
    tokens_.expect_operator(":");
    adopt(*node, conditional());
  }
  return node;
}

ExprPtr ExpressionParser::postfix(ExprPtr node) {
  while (true) {
    if (tokens_.skip_operator(".")) {
      const Token& token = tokens_.current();
      if (token.type == Type::kInteger) {
        ExprPtr key = make(Kind::kConstant);
        key->value = integer_constant(token);
        tokens_.next();
        node = make(Kind::kItem, std::move(node), std::move(key));
      } else {
        node = make(Kind::kAttribute, std::move(node));
        node->line = token.line;
        node->name = tokens_.expect(Type::kName, "a name or number after '.'").text;
      }
    } else if (tokens_.at_operator("[")) {
      node = subscript(std::move(node));
    } else if (tokens_.at_operator("(")) {
      node = make(Kind::kCall, std::move(node));
      arguments(*node);
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr node) {
  const int line = tokens_.current().line;
  tokens_.expect_operator("[");
  ExprPtr parts[3];
  size_t count = 0;
  bool is_slice = false;
  while (!tokens_.at_operator("]")) {
    if (tokens_.skip_operator(":")) {
      is_slice = true;
      if (++count > 2) tokens_.fail("a slice has at most three parts");
    } else if (parts[count]) {
      tokens_.fail(fmt::format("expected ']', found {}", shown(tokens_.current())));
    } else {
      parts[count] = conditional();
    }
  }
  tokens_.next();
  if (!is_slice && !parts[0]) tokens_.fail("a subscript is empty");
  ExprPtr result = make(is_slice ? Kind::kSlice : Kind::kItem, std::move(node));
  result->line = line;
  for (size_t i = 0; i < (is_slice ? 3u : 1u); ++i) adopt(*result, std::move(parts[i]));
  return result;
}

ExprPtr ExpressionParser::filters(ExprPtr node) {
  while (true) {
    if (tokens_.skip_operator("|")) {
      node = one_filter(std::move(node));
    } else if (tokens_.skip_name("is")) {
      node = test(std::move(node));
    } else if (tokens_.at_operator("(")) {
      node = make(Kind::kCall, std::move(node));
      arguments(*node);
    } else {
      return node;
    }
  }
}

std::string ExpressionParser::dotted_name(std::string_view what) {
  std::string name = tokens_.expect(Type::kName, what).text;
  while (tokens_.skip_operator(".")) name += "." + tokens_.expect(Type::kName, what).text;
  return name;
}

ExprPtr ExpressionParser::one_filter(ExprPtr node) {
  node = make(Kind::kFilter, std::move(node));
  node->line = tokens_.current().line;
  node->name = dotted_name("the name of a filter");
  if (tokens_.at_operator("(")) arguments(*node);
  return node;
}

ExprPtr ExpressionParser::test(ExprPtr node) {
  const bool negated = tokens_.skip_name("not");
  node = make(Kind::kTest, std::move(node));
  node->line = tokens_.current().line;
  node->name = dotted_name("the name of a test");
  const Token& token = tokens_.current();
  const bool begins_value = token.type == Type::kName || token.type == Type::kString || token.type == Type::kInteger ||
                            token.type == Type::kFloat || tokens_.at_operator("[") || tokens_.at_operator("{");
  const bool is_keyword = tokens_.at_name("else") || tokens_.at_name("or") || tokens_.at_name("and") ||
                          tokens_.at_name("if") || tokens_.at_name("in") || tokens_.at_name("not");
  if (tokens_.at_operator("(")) {
    arguments(*node);
  } else if (tokens_.at_name("is")) {
    tokens_.fail("tests cannot be chained with 'is'");
  } else if (begins_value && !is_keyword) {
    adopt(*node, postfix(primary()));
  }
  return negated ? make(Kind::kNot, std::move(node)) : std::move(node);
}

bool TokenStream::names_since(size_t begin, std::string_view name) const {
  for (size_t i = begin; i < at_; ++i) {
    if (tokens_[i].is(Token::Type::kName, name)) return true;
  }
  return false;
}

/// Parses `*` or `**` of a call and its expression.
void ExpressionParser::unpacked_argument(Expr& call) {
  const bool dict = tokens_.at_operator("**");
  ExprPtr& place = dict ? call.unpacked_dict : call.unpacked_list;
  if (place || call.unpacked_dict) tokens_.fail("a call unpacks one list with * and then one dict with **");
  tokens_.next();
  place = conditional();
  call.depth = std::max(call.depth, place->depth + 1);
}

void ExpressionParser::arguments(Expr& call) {
  tokens_.expect_operator("(");
  bool first = true;
  while (!tokens_.skip_operator(")")) {
    if (!first) {
      tokens_.expect_operator(",");
      if (tokens_.skip_operator(")")) return;
    }
    first = false;
    if (tokens_.at_operator("*") || tokens_.at_operator("**")) {
      unpacked_argument(call);
    } else if (call.unpacked_dict) {
      tokens_.fail("an argument follows **, which is the last one");
    } else if (tokens_.current().type == Type::kName && tokens_.ahead().is(Type::kOperator, "=")) {
      std::string name = tokens_.current().text;
      tokens_.next();
      tokens_.next();
      ExprPtr value = conditional();
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty() || call.unpacked_list) {
        tokens_.fail("an argument without a name follows one with a name, or *");
      }
      adopt(call, conditional());
    }
  }
}

}  // namespace hone::jinja
