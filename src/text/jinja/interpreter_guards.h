// Bounds the recursion of the interpreter.
#pragma once

#include "text/jinja/interpreter.h"

namespace hone::jinja {

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

}  // namespace hone::jinja
