// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace hone::jinja {

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Comparison {
  Operator op;
  ExprPtr operand;
};

struct Expr {
  enum class Kind {
    kConstant,     // value
    kName,         // name
    kList,         // children
    kTuple,        // children
    kDict,         // children: key, value, key, value, ...
    kAttribute,    // children[0] . name
    kItem,         // children[0] [ children[1] ]
    kSlice,        // children[0] [ children[1] : children[2] : children[3] ], each may be null
    kCall,         // children[0] ( children[1...], named )
    kFilter,       // children[0] | name ( children[1...], named )
    kTest,         // children[0] is name ( children[1...], named )
    kNot,          // children[0]
    kNegate,       // children[0]
    kPositive,     // children[0]
    kBinary,       // children[0] op children[1]
    kConcat,       // children joined with ~
    kAnd,          // children[0], children[1]
    kOr,           // children[0], children[1]
    kCompare,      // children[0], comparisons
    kConditional,  // children[0] if children[1] else children[2], which may be null
    kCaptured,     // the text of the block that a filter chain is applied to
  };
  Kind kind;
  int line;
  int depth = 1;  ///< depth of the expression tree, this node included
  std::string name;
  Value value;
  Operator op = Operator::kAdd;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr unpacked_list, unpacked_dict;  ///< for calls: *list and **dict, may be null
  std::vector<Comparison> comparisons;
};

struct Stmt;
using Block = std::vector<Stmt>;

struct Parameter {
  std::string name;
  ExprPtr default_value;  // may be null
};

struct Stmt {
  enum class Kind {
    kText,        // text
    kOutput,      // {{ expr }}
    kIf,          // branches, else_body
    kFor,         // for target in expr if condition: body, else_body
    kSet,         // set target = expr
    kSetBlock,    // set target | expr: body
    kMacro,       // macro text(parameters): body
    kWith,        // with assignments: body
    kFilter,      // filter expr: body
    kGeneration,  // body
    kBreak,
    kContinue,
  };
  struct Branch {
    ExprPtr condition;
    Block body;
  };
  Kind kind;
  int line;
  std::shared_ptr<const MarkedString> literal;
  std::string text;
  ExprPtr target, expr, condition;
  Block body, else_body;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  /// For macros: the body uses `varargs` or `kwargs`, which hold the arguments without a parameter.
  bool takes_varargs = false, takes_kwargs = false;
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;
};

}  // namespace hone::jinja
