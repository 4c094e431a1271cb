#include "text/jinja/template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "text/jinja/expression_parser.h"
#include "text/jinja/lexer.h"

namespace hone::jinja {
namespace {

// Parses tokens to a syntax tree: the grammar of Jinja2, as far as chat templates use it.

using Type = Token::Type;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)), expressions_(tokens_) {}

  Block run() { return block({}, nullptr); }

 private:
  /// Parses statements up to a tag in `ends`, whose name is then the current token; up to the end if `ends` is empty.
  Block block(std::initializer_list<std::string_view> ends, const Token* opener) {
    const NestingGuard guard(expressions_);
    Block result;
    while (true) {
      const Token& token = tokens_.current();
      if (token.type == Type::kEnd) {
        if (ends.size() == 0) return result;
        throw TemplateError(
            fmt::format("the block '{{% {} %}}' is never closed with '{{% {} %}}'", opener->text, *(ends.end() - 1)),
            opener->line);
      }
      if (token.type == Type::kData) {
        Stmt text = make(Stmt::Kind::kText);
        text.literal = std::make_shared<const MarkedString>(token.text);
        result.push_back(std::move(text));
        tokens_.next();
      } else if (token.type == Type::kVariableBegin) {
        tokens_.next();
        Stmt output = make(Stmt::Kind::kOutput);
        output.expr = expressions_.tuple();
        tokens_.expect(Type::kVariableEnd, "}}");
        result.push_back(std::move(output));
      } else {
        tokens_.expect(Type::kBlockBegin, "{%");
        const Token& name = tokens_.current();
        if (name.type != Type::kName) throw TemplateError("a tag begins with a name", name.line);
        if (std::find(ends.begin(), ends.end(), name.text) != ends.end()) return result;
        result.push_back(statement());
      }
    }
  }

  Stmt make(Stmt::Kind kind) const {
    Stmt stmt{};
    stmt.kind = kind;
    stmt.line = tokens_.current().line;
    return stmt;
  }

  Stmt statement() {
    const Token& name = tokens_.current();
    tokens_.next();
    if (name.text == "if") return if_statement(name);
    if (name.text == "for") return for_statement(name);
    if (name.text == "set") return set_statement(name);
    if (name.text == "macro") return macro_statement(name);
    if (name.text == "with") return with_statement(name);
    if (name.text == "filter") return filter_statement(name);
    if (name.text == "generation") return generation_statement(name);
    if (name.text == "break" || name.text == "continue") return jump_statement(name);
    static constexpr std::array<std::string_view, 9> kRefused = {"block", "extends", "include", "import",    "from",
                                                                 "call",  "do",      "print",   "autoescape"};
    if (std::find(kRefused.begin(), kRefused.end(), name.text) != kRefused.end()) {
      throw TemplateError(fmt::format("the tag '{{% {} %}}' is not supported in chat templates", name.text), name.line);
    }
    throw TemplateError(fmt::format("unknown tag '{{% {} %}}'", name.text), name.line);
  }

  void end_tag() { tokens_.expect(Type::kBlockEnd, "%}"); }

  /// Parses the body of `opener` and its end tag.
  Block closed_body(const Token& opener, std::string_view end) {
    end_tag();
    Block body = block({end}, &opener);
    tokens_.next();
    end_tag();
    return body;
  }

  Stmt if_statement(const Token& opener) {
    Stmt stmt = make(Stmt::Kind::kIf);
    while (true) {
      Stmt::Branch branch;
      branch.condition = expressions_.tuple(false);
      end_tag();
      branch.body = block({"elif", "else", "endif"}, &opener);
      stmt.branches.push_back(std::move(branch));
      const std::string& end = tokens_.current().text;
      tokens_.next();
      if (end == "elif") continue;
      if (end == "else") {
        stmt.else_body = closed_body(opener, "endif");
      } else {
        end_tag();
      }
      return stmt;
    }
  }

  Stmt for_statement(const Token& opener) {
    Stmt stmt = make(Stmt::Kind::kFor);
    stmt.target = expressions_.target();
    if (!tokens_.skip_name("in")) throw TemplateError("a for tag reads 'for NAME in VALUES'", opener.line);
    stmt.expr = expressions_.tuple(false);
    if (tokens_.skip_name("if")) stmt.condition = expressions_.expression();
    if (tokens_.current().is(Type::kName, "recursive")) {
      throw TemplateError("recursive loops are not supported in chat templates", opener.line);
    }
    end_tag();
    ++loop_depth_;
    stmt.body = block({"else", "endfor"}, &opener);
    --loop_depth_;
    const bool has_else = tokens_.current().text == "else";
    tokens_.next();
    if (has_else) {
      stmt.else_body = closed_body(opener, "endfor");
    } else {
      end_tag();
    }
    return stmt;
  }

  Stmt set_statement(const Token& opener) {
    Stmt stmt = make(Stmt::Kind::kSet);
    stmt.target = expressions_.target(true);
    if (tokens_.skip_operator("=")) {
      stmt.expr = expressions_.tuple();
      end_tag();
      return stmt;
    }
    stmt.kind = Stmt::Kind::kSetBlock;
    stmt.expr = expressions_.filters_of_block();
    stmt.body = closed_body(opener, "endset");
    return stmt;
  }

  Stmt macro_statement(const Token& opener) {
    Stmt stmt = make(Stmt::Kind::kMacro);
    stmt.text = tokens_.expect(Type::kName, "a name").text;
    tokens_.expect_operator("(");
    while (!tokens_.skip_operator(")")) {
      if (!stmt.parameters.empty()) tokens_.expect_operator(",");
      Parameter parameter;
      parameter.name = tokens_.expect(Type::kName, "a parameter").text;
      if (tokens_.skip_operator("=")) {
        parameter.default_value = expressions_.expression();
      } else if (!stmt.parameters.empty() && stmt.parameters.back().default_value) {
        throw TemplateError(
            fmt::format("the parameter '{}' without a default follows one with a default", parameter.name),
            opener.line);
      }
      stmt.parameters.push_back(std::move(parameter));
    }
    const int outer_loops = std::exchange(loop_depth_, 0);
    const size_t begin = tokens_.position();
    stmt.body = closed_body(opener, "endmacro");
    stmt.takes_varargs = tokens_.names_since(begin, "varargs");
    stmt.takes_kwargs = tokens_.names_since(begin, "kwargs");
    loop_depth_ = outer_loops;
    return stmt;
  }

  Stmt with_statement(const Token& opener) {
    Stmt stmt = make(Stmt::Kind::kWith);
    while (tokens_.current().type != Type::kBlockEnd) {
      if (!stmt.assignments.empty()) tokens_.expect_operator(",");
      ExprPtr target = expressions_.target();
      tokens_.expect_operator("=");
      stmt.assignments.emplace_back(std::move(target), expressions_.expression());
    }
    stmt.body = closed_body(opener, "endwith");
    return stmt;
  }

  Stmt filter_statement(const Token& opener) {
    Stmt stmt = make(Stmt::Kind::kFilter);
    stmt.expr = expressions_.filters_of_block(true);
    stmt.body = closed_body(opener, "endfilter");
    return stmt;
  }

  Stmt generation_statement(const Token& opener) {
    Stmt stmt = make(Stmt::Kind::kGeneration);
    stmt.body = closed_body(opener, "endgeneration");
    return stmt;
  }

  Stmt jump_statement(const Token& opener) {
    if (loop_depth_ == 0) throw TemplateError(fmt::format("'{}' outside of a loop", opener.text), opener.line);
    Stmt stmt = make(opener.text == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue);
    end_tag();
    return stmt;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int loop_depth_ = 0;
};

/// Parses a template. Throws TemplateError with the line. Tags of template inheritance, imports and `call` blocks are
/// not supported.
Block parse(std::string_view source) { return Parser(source).run(); }

constexpr size_t kMaxTemplateSize = 4 * 1024 * 1024;

[[noreturn]] void rethrow(const TemplateError& error, const std::string& name, std::string_view default_fix) {
  const UserError for_user(fmt::format("chat template: {}", error.what()), fmt::format("{}:{}", name, error.line),
                           error.fix.empty() ? std::string(default_fix) : error.fix);
  if (error.out_of_steps) throw OutOfSteps(for_user);
  throw for_user;
}

}  // namespace

Template::Template(std::string_view source, std::string name) : name_(std::move(name)) {
  if (source.size() > kMaxTemplateSize) {
    throw UserError(
        fmt::format("chat template: the template has {} bytes, the limit is {}", source.size(), kMaxTemplateSize),
        name_, "check that the file is a chat template");
  }
  try {
    block_ = parse(source);
  } catch (const TemplateError& error) {
    rethrow(error, name_,
            "correct the template; its syntax is Jinja2 with the settings of Hugging Face's chat templates");
  }
}

MarkedString Template::render(std::vector<std::pair<std::string, Value>> context, const Limits& limits,
                              std::optional<std::time_t> now) const {
  Interpreter interpreter(limits, now);
  try {
    return interpreter.render(block_, std::move(context));
  } catch (const TemplateError& error) {
    rethrow(error, name_, "correct the template, or pass the messages and variables that it expects");
  }
}

}  // namespace hone::jinja
