// Runs a syntax tree: scopes, control flow, calls, and the limits that make untrusted templates safe to run.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace hone::jinja {

/// The limits of one rendering. Exceeding one is a TemplateError.
struct Limits {
  size_t max_steps = 20'000'000;         ///< expressions and statements evaluated, plus work on long values
  size_t max_string = 64 * 1024 * 1024;  ///< bytes of the output or of any string
  int max_depth = 600;                   ///< nested expressions, statements and macro calls
  bool strict = false;                   ///< a missing value is an error in the output, too, where Jinja writes nothing
};

/// Variables by name; names that are not found are looked up in the parent.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> variables;
  bool captured = false;  ///< a macro defined here may still need it after its block has ended

  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

class Interpreter {
 public:
  Interpreter(const Limits& limits, std::optional<std::time_t> now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// The output of `block` with the variables of `context`. Throws TemplateError with the line.
  MarkedString render(const Block& block, std::vector<std::pair<std::string, Value>> context);

  /// Counts `steps` of work; throws when the template exceeds its limit.
  void charge(size_t steps);
  /// Checks the size of `text` and returns it as a value.
  Value make_string(MarkedString text);

  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  Value call(const Value& function, const Arguments& arguments);
  Value filter(std::string_view name, const Value& subject, const Arguments& arguments);
  bool test(std::string_view name, const Value& subject, const Arguments& arguments);
  /// The items of a for loop over `value`. Throws if it is not iterable.
  std::vector<Value> iterate(const Value& value);
  /// namespace(): registered here to break reference cycles at the end.
  std::shared_ptr<Namespace> new_namespace();
  /// str(value), with provenance.
  MarkedString text_of(const Value& value);

  std::time_t now() const { return now_ ? *now_ : std::time(nullptr); }

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class DepthGuard;
  class ScopeGuard;

  Flow run(const Block& block);
  Flow run(const Stmt& stmt);
  Flow run_if(const Stmt& stmt);
  Flow run_for(const Stmt& stmt);
  Flow run_iteration(const Stmt& stmt, const Value& item, const std::shared_ptr<Loop>& loop);
  Flow run_with(const Stmt& stmt);
  Flow run_generation(const Stmt& stmt);
  std::vector<Value> loop_items(const Stmt& stmt);
  void run_set_block(const Stmt& stmt);
  void run_filter_block(const Stmt& stmt);
  void define_macro(const Stmt& stmt);
  Value call_macro(const Stmt& macro, Scope& defined_in, const Arguments& arguments);
  MarkedString capture(const Block& block);
  void write(const MarkedString& text);
  void assign(const Expr& target, const Value& value);

  Value evaluate(const Expr& expr);
  Value evaluate_kind(const Expr& expr);
  Value lookup(const std::string& name) const;
  std::vector<Value> evaluate_children(const Expr& expr, size_t first = 0);
  void unpack_dict(const Value& value, Arguments& arguments);
  Arguments evaluate_arguments(const Expr& expr);
  Value evaluate_dict(const Expr& expr);
  Value evaluate_slice(const Expr& expr);
  Value evaluate_call(const Expr& expr);
  Value evaluate_concat(const Expr& expr);
  Value evaluate_compare(const Expr& expr);
  Value evaluate_conditional(const Expr& expr);
  bool compare(Operator op, const Value& left, const Value& right);

  Limits limits_;
  std::optional<std::time_t> now_;
  size_t steps_ = 0;
  int depth_ = 0;
  int line_ = 0;
  int loop_depth_ = 0;
  SourceId owner_ = 0;
  bool generation_ = false;
  MarkedString* output_ = nullptr;
  Scope* scope_ = nullptr;
  const Value* captured_ = nullptr;
  std::vector<std::unique_ptr<Scope>> kept_scopes_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

// Limits the recursion of the interpreter.

class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(Interpreter& interpreter) : interpreter_(interpreter) {
    if (interpreter.depth_ >= interpreter.limits_.max_depth) {
      throw TemplateError("the template recurses too deep", 0, "look for a macro that always calls itself");
    }
    ++interpreter.depth_;
  }
  ~DepthGuard() { --interpreter_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Interpreter& interpreter_;
};

// Filters: {{ value | name(arguments) }}.

using Filter = Value (*)(Interpreter& interpreter, const Value& subject, const Arguments& arguments);

/// The filter `name` of Jinja2, or null. tojson is that of Hugging Face's chat templates: plain JSON, without HTML
/// escapes.
Filter find_filter(std::string_view name);

/// The text filters and the sequence filters; null if `name` is not one of them.
Filter find_text_filter(std::string_view name);
Filter find_sequence_filter(std::string_view name);

// Tests: {{ value is name(arguments) }}.

using Predicate = bool (*)(Interpreter& interpreter, const Value& subject, const Arguments& arguments);

/// The test `name`, or null.
Predicate find_predicate(std::string_view name);

// Methods of strings, dicts and lists.

using Method = Value (*)(Interpreter& interpreter, const Value& self, const Arguments& arguments);

/// The method `name` of the type of `object`, or null. Methods that would change a list or dict throw when called: the
/// sandbox of Hugging Face's templates has immutable containers too.
Method find_method(const Value& object, std::string_view name);

/// The methods of str.
Method find_string_method(std::string_view name);

// The global functions of templates.

/// range, dict, namespace, raise_exception, strftime_now.
std::vector<std::pair<std::string, Value>> global_functions();

}  // namespace hone::jinja
