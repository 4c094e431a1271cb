#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/interpreter.h"

namespace hone::jinja {

namespace {

/// Sets a member and restores it at the end of a block.
template <class T>
class Restored {
 public:
  Restored(T& member, T value) : member_(member), old_(std::exchange(member, std::move(value))) {}
  ~Restored() { member_ = std::move(old_); }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

 private:
  T& member_;
  T old_;
};

}  // namespace

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->parent) {
    for (const auto& [key, value] : scope->variables) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

/// A new scope for a block. It outlives the block if a macro was defined in it.
class Interpreter::ScopeGuard {
 public:
  ScopeGuard(Interpreter& interpreter, Scope* parent)
      : interpreter_(interpreter), scope_(std::make_unique<Scope>()), outer_(interpreter.scope_) {
    scope_->parent = parent;
    interpreter.scope_ = scope_.get();
  }
  ~ScopeGuard() {
    interpreter_.scope_ = outer_;
    if (scope_->captured) interpreter_.kept_scopes_.push_back(std::move(scope_));
  }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Interpreter& interpreter_;
  std::unique_ptr<Scope> scope_;
  Scope* outer_;
};

Interpreter::Interpreter(const Limits& limits, std::optional<std::time_t> now) : limits_(limits), now_(now) {}

Interpreter::~Interpreter() {
  for (auto& ns : namespaces_) ns->attributes.clear();
}

std::shared_ptr<Namespace> Interpreter::new_namespace() {
  namespaces_.push_back(std::make_shared<Namespace>());
  return namespaces_.back();
}

void Interpreter::charge(size_t steps) {
  steps_ += steps;
  if (steps_ > limits_.max_steps) {
    TemplateError error("the template takes too many steps", 0, "look for a loop that never gets shorter");
    error.out_of_steps = true;
    throw error;
  }
}

Value Interpreter::make_string(MarkedString text) {
  if (text.size() > limits_.max_string) throw TemplateError("the template makes a string that is too long");
  charge(text.size() / 32);
  return Value::string(std::move(text));
}

MarkedString Interpreter::render(const Block& block, std::vector<std::pair<std::string, Value>> context) {
  Scope globals, variables, top;
  globals.variables = global_functions();
  variables.parent = &globals;
  variables.variables = std::move(context);
  top.parent = &variables;
  scope_ = &top;
  MarkedString output;
  output_ = &output;
  try {
    run(block);
  } catch (TemplateError& error) {
    if (error.line == 0) error.line = line_;
    throw;
  }
  return output;
}

void Interpreter::write(const MarkedString& text) {
  charge(text.size() / 32);
  output_->append_output(text, owner_, generation_);
  if (output_->size() > limits_.max_string) throw TemplateError("the output of the template is too long");
}

Interpreter::Flow Interpreter::run(const Block& block) {
  for (const Stmt& stmt : block) {
    const Flow flow = run(stmt);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run(const Stmt& stmt) {
  const DepthGuard guard(*this);
  charge(1);
  line_ = stmt.line;
  switch (stmt.kind) {
    case Stmt::Kind::kText:
      write(*stmt.literal);
      break;
    case Stmt::Kind::kOutput: {
      const Value value = evaluate(*stmt.expr);
      const MarkedString* text = value.as_string();
      write(text ? *text : text_of(value));
      break;
    }
    case Stmt::Kind::kIf:
      return run_if(stmt);
    case Stmt::Kind::kFor:
      return run_for(stmt);
    case Stmt::Kind::kSet:
      assign(*stmt.target, evaluate(*stmt.expr));
      break;
    case Stmt::Kind::kSetBlock:
      run_set_block(stmt);
      break;
    case Stmt::Kind::kMacro:
      define_macro(stmt);
      break;
    case Stmt::Kind::kWith:
      return run_with(stmt);
    case Stmt::Kind::kFilter:
      run_filter_block(stmt);
      break;
    case Stmt::Kind::kGeneration:
      return run_generation(stmt);
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_if(const Stmt& stmt) {
  for (const auto& branch : stmt.branches) {
    if (is_true(evaluate(*branch.condition))) return run(branch.body);
  }
  return run(stmt.else_body);
}

std::vector<Value> Interpreter::loop_items(const Stmt& stmt) {
  std::vector<Value> items = iterate(evaluate(*stmt.expr));
  if (!stmt.condition) return items;
  std::vector<Value> chosen;
  for (Value& item : items) {
    const ScopeGuard scope(*this, scope_);
    assign(*stmt.target, item);
    if (is_true(evaluate(*stmt.condition))) chosen.push_back(std::move(item));
  }
  return chosen;
}

Interpreter::Flow Interpreter::run_for(const Stmt& stmt) {
  List items;
  items.items = loop_items(stmt);
  charge(items.items.size());
  const Restored depth(loop_depth_, loop_depth_ + 1);
  auto loop = std::make_shared<Loop>();
  loop->items = std::make_shared<const List>(std::move(items));
  loop->depth = loop_depth_;
  bool completed = false;
  for (loop->index = 0; loop->index < loop->items->items.size(); ++loop->index) {
    const Flow flow = run_iteration(stmt, loop->items->items[loop->index], loop);
    if (flow == Flow::kBreak) break;
    completed = completed || flow == Flow::kNormal;
  }
  if (completed) return Flow::kNormal;
  // Jinja2 runs the else block unless some iteration reached the end of the body, also after break and continue.
  const ScopeGuard scope(*this, scope_);
  return run(stmt.else_body);
}

Interpreter::Flow Interpreter::run_iteration(const Stmt& stmt, const Value& item, const std::shared_ptr<Loop>& loop) {
  const ScopeGuard scope(*this, scope_);
  const Restored owner(owner_, item.source() ? item.source() : owner_);
  line_ = stmt.line;
  assign(*stmt.target, item);
  scope_->set("loop", Value::of(loop));
  return run(stmt.body);
}

Interpreter::Flow Interpreter::run_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const auto& [target, expr] : stmt.assignments) values.push_back(evaluate(*expr));
  const ScopeGuard scope(*this, scope_);
  for (size_t i = 0; i < values.size(); ++i) assign(*stmt.assignments[i].first, values[i]);
  return run(stmt.body);
}

Interpreter::Flow Interpreter::run_generation(const Stmt& stmt) {
  const ScopeGuard scope(*this, scope_);
  const Restored generation(generation_, true);
  return run(stmt.body);
}

MarkedString Interpreter::capture(const Block& block) {
  MarkedString text;
  const Restored output(output_, &text);
  run(block);
  return text;
}

void Interpreter::run_set_block(const Stmt& stmt) {
  Value text;
  {
    const ScopeGuard scope(*this, scope_);
    text = make_string(capture(stmt.body));
  }
  const Restored<const Value*> captured(captured_, &text);
  assign(*stmt.target, evaluate(*stmt.expr));
}

void Interpreter::run_filter_block(const Stmt& stmt) {
  Value text;
  {
    const ScopeGuard scope(*this, scope_);
    text = make_string(capture(stmt.body));
  }
  const Restored<const Value*> captured(captured_, &text);
  write(text_of(evaluate(*stmt.expr)));
}

void Interpreter::define_macro(const Stmt& stmt) {
  for (Scope* scope = scope_; scope; scope = scope->parent) scope->captured = true;
  Scope* defined_in = scope_;
  const Stmt* macro = &stmt;
  scope_->set(stmt.text, Value::callable({stmt.text, [macro, defined_in](Interpreter& interpreter, const Arguments& a) {
                                            return interpreter.call_macro(*macro, *defined_in, a);
                                          }}));
}

Value Interpreter::call_macro(const Stmt& macro, Scope& defined_in, const Arguments& arguments) {
  const DepthGuard guard(*this);
  const auto& parameters = macro.parameters;
  const size_t taken = std::min(arguments.positional.size(), parameters.size());
  if (arguments.positional.size() > taken && !macro.takes_varargs) {
    throw TemplateError(fmt::format("the macro '{}' takes at most {} arguments, {} given", macro.text,
                                    parameters.size(), arguments.positional.size()));
  }
  std::vector<const Value*> given(parameters.size(), nullptr);
  for (size_t i = 0; i < taken; ++i) given[i] = &arguments.positional[i];
  std::vector<std::pair<Value, Value>> rest;
  for (const auto& [name, value] : arguments.named) {
    const auto found =
        std::find_if(parameters.begin(), parameters.end(), [&](const Parameter& p) { return p.name == name; });
    if (found != parameters.end()) {
      given[static_cast<size_t>(found - parameters.begin())] = &value;
    } else if (macro.takes_kwargs) {
      rest.emplace_back(Value::string(name), value);
    } else {
      throw TemplateError(fmt::format("the macro '{}' has no parameter '{}'", macro.text, name));
    }
  }
  const ScopeGuard scope(*this, &defined_in);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    Value value = given[i]                  ? *given[i]
                  : parameter.default_value ? evaluate(*parameter.default_value)
                                            : Value::undefined(fmt::format("parameter '{}' of the macro '{}' was not "
                                                                           "provided",
                                                                           parameter.name, macro.text));
    scope_->set(parameter.name, std::move(value));
  }
  const auto is_parameter = [&](const char* name) {
    return std::any_of(parameters.begin(), parameters.end(), [&](const Parameter& p) { return p.name == name; });
  };
  if (macro.takes_varargs && !is_parameter("varargs")) {
    const auto first = arguments.positional.begin() + static_cast<std::ptrdiff_t>(taken);
    scope_->set("varargs", Value::tuple({first, arguments.positional.end()}));
  }
  if (macro.takes_kwargs && !is_parameter("kwargs")) scope_->set("kwargs", Value::dict(std::move(rest)));
  return make_string(capture(macro.body));
}

void Interpreter::assign(const Expr& target, const Value& value) {
  if (target.kind == Expr::Kind::kName) {
    scope_->set(target.name, value);
    return;
  }
  if (target.kind == Expr::Kind::kAttribute) {
    const Value object = lookup(target.children[0]->name);
    Namespace* ns = object.as_namespace();
    if (!ns) {
      throw TemplateError(fmt::format("cannot assign to '{}.{}'", target.children[0]->name, target.name), target.line,
                          "only attributes of a namespace() can be assigned");
    }
    ns->set(target.name, value);
    return;
  }
  const auto items = iterate(value);
  if (items.size() != target.children.size()) {
    throw TemplateError(
        fmt::format("{} values cannot be unpacked into {} names", items.size(), target.children.size()));
  }
  for (size_t i = 0; i < target.children.size(); ++i) assign(*target.children[i], items[i]);
}

}  // namespace hone::jinja
